"""Chat templates in metadata: Jinja, in the dialect of transformers and llama.cpp."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from glft_schema.codec.context import Context
from glft_schema.codec.rules import Check
from glft_schema.errors import one_line, quote

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment  # imported when a file has a template

TEMPLATE = "tokenizer.chat_template"  # prefix of the keys of chat templates
LONGEST = 1 << 16  # characters of a file's templates; others are not checked. Jinja parses them in at most 2 s
PRIVATE = re.compile("^_|__|%c")  # in a text that may become the name of a private attribute of Python's
INTERNAL = re.compile("_|(ag|co|cr|f|func|gi|im|tb)_")  # starts of attributes of Python's functions and frames
GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # transformers' own tag


class ChatTemplate(Check):
    """The rule that a chat template is Jinja and uses only Jinja's own filters and tests."""

    expected = "a chat template in Jinja"
    advice = ": rules=['ggml'] (--rules ggml) allows it"
    example = TEMPLATE
    broken_by = ("", "{{ messages | uper }}")

    def check(self, context: Context, path: str) -> None:
        if not (context.key.startswith(TEMPLATE) and isinstance(context.value, str)):
            return
        parameters = context._params
        parameters["templates"] = parameters.get("templates", 0) + len(context.value)
        if parameters.templates <= LONGEST and (problem := syntax_problem(context.key, context.value)):
            self.report(context, problem, f"{path} -> {self.field}")


def environment() -> SandboxedEnvironment:
    """Returns the sandbox in which templates are rendered."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])


def syntax_problem(key: str, text: Any) -> str:
    """Returns the problem of a key's chat template, or an empty string, without rendering it."""
    if not (key.startswith(TEMPLATE) and isinstance(text, str) and len(text) <= LONGEST):
        return ""
    return _problem_of(text) if text.strip() else "expected a chat template, found an empty text"


def unsafe_part(text: str) -> str:
    """Returns a part of a template that may access private attributes or other files, with its
    line, or an empty string. Such templates attack programs that render them without a sandbox."""
    import jinja2

    with suppress(jinja2.TemplateSyntaxError, RecursionError, ValueError):  # see `syntax_problem`
        node: Any
        for node in environment().parse(GENERATION.sub("", text)).find_all(jinja2.nodes.Node):
            kind, found = type(node).__name__, ""
            if kind == "Getattr" and INTERNAL.match(node.attr):
                found = node.attr
            elif kind == "Const" and isinstance(node.value, str) and PRIVATE.search(node.value):
                found = node.value
            elif kind in ("Include", "Import", "FromImport", "Extends") or (kind == "Filter" and node.name == "attr"):
                found = getattr(node, "name", kind.lower())
            if found:
                return f"{quote(found, 40)} at line {node.lineno}"
    return ""


@lru_cache(64)  # each pass over a file asks again
def _problem_of(text: str) -> str:
    import jinja2

    sandbox = environment()
    try:
        for node in sandbox.parse(GENERATION.sub("", text)).find_all((jinja2.nodes.Filter, jinja2.nodes.Test)):
            kind, known = ("filter", sandbox.filters) if isinstance(node, jinja2.nodes.Filter) else ("test", sandbox.tests)
            if node.name not in known:
                return f"expected a {kind} of Jinja, found {quote(node.name)} at line {node.lineno}"
    except jinja2.TemplateSyntaxError as error:
        return f"expected valid Jinja, found an error at line {error.lineno}: {one_line(str(error.message))}"
    except RecursionError:
        return "expected a chat template, found expressions that are nested too deeply"
    except ValueError as error:  # of Python, about a number
        return f"expected valid Jinja, found a number that Python cannot read: {one_line(str(error))}"
    return ""
