"""Trial rendering of chat templates, in a separate process because templates are programs."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from glft_schema.codec.rules import SPEC
from glft_schema.errors import Finding, FormatError, one_line
from glft_schema.families.apart import start_apart
from glft_schema.families.requirements import RowPaths
from glft_schema.files.file import File
from glft_schema.formats.chat_templates import GENERATION, LONGEST, TEMPLATE, environment, syntax_problem, unsafe_part
from glft_schema.limits import Limits

EMPTY = "an empty text"
SECONDS, MEMORY = 10, 1 << 28  # limits for one template; MEMORY is in bytes
TEXTS = {"user": "Hello", "assistant": "Hi"}  # a conversation
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def unrendered(key: str, text: Any) -> str:
    """Returns why a key's chat template renders no conversation, or an empty string. Named
    templates, such as those for tools, and what is not Jinja, are not rendered."""
    is_rendered = key == TEMPLATE and isinstance(text, str) and len(text) <= LONGEST and not syntax_problem(key, text)
    return _render_apart(text) if is_rendered else ""


def broken_template(file: File) -> Iterator[Finding]:
    """Yields a finding if the chat template parses but does not render."""
    if problem := unrendered(TEMPLATE, file.metadata.get(TEMPLATE)):
        yield Finding("gguf-chat-rendering", (SPEC,), RowPaths(file).key(TEMPLATE, "value"), problem)


def unsafe_templates(file: File) -> Iterator[Finding]:
    """Yields a finding for each chat template that may attack a program, and for templates that are
    too long to be checked."""
    total, row = 0, RowPaths(file).key
    for key, value in file.metadata.items():
        is_template = key.startswith(TEMPLATE) and isinstance(value, Sequence)
        for text in [value] if isinstance(value, str) else value if is_template else ():
            if is_template and isinstance(text, str):
                total += len(text)
                if total <= LONGEST and (found := unsafe_part(text)):
                    problem = f"expected no access to private attributes or other files, found {found}"
                    yield Finding("gguf-chat-unsafe", (), row(key, "value"), problem)
    if total > LONGEST:
        problem = f"expected at most {LONGEST} characters of chat templates (longer ones are not checked), found {total}"
        yield Finding("gguf-chat-unsafe", (), "metadata", problem)


@lru_cache(8)  # an edit and the checks of its result ask again
def _render_apart(text: str) -> str:
    with Limits(parser_seconds=SECONDS, parser_memory=MEMORY), start_apart(__name__) as call:
        try:
            return str(call("rendering_problem", Path(TEMPLATE), text, file=Path(TEMPLATE)))
        except FormatError as error:
            return f"the chat template cannot be rendered: {error.problem}"


def rendering_problem(_: Path, text: str) -> str:
    """Returns why a template renders no conversation, or an empty string. Message content is a text
    or, if that does not render, a list of parts."""
    sandbox, problems, refusals = environment(), list[str](), list[str]()
    sandbox.filters["tojson"] = lambda value, ensure_ascii=False, **more: json.dumps(value, ensure_ascii=ensure_ascii, **more)
    sandbox.globals |= {"raise_exception": refusals.append, "strftime_now": lambda form: "2026-01-01"}
    for content_of in (str, lambda text: [{"type": "text", "text": text}]):
        messages = [{"role": role, "content": content_of(TEXTS[role])} for role in ("user", "assistant", "user")]
        try:
            template = sandbox.from_string(GENERATION.sub("", text))
            found = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True, **TOKENS)
            if found.strip():
                return ""
            problems.append(EMPTY)
        except Exception as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
            line = f"at line {lines[-1]}: " if lines else ""
            problems.append(f"{line}{one_line(str(getattr(error, 'msg', error)) or type(error).__name__)}")
    if refusals:  # a template may refuse this conversation
        return ""
    found = next((problem for problem in problems if problem != EMPTY), EMPTY)
    return f"expected a chat template that renders a conversation, found {found}"
