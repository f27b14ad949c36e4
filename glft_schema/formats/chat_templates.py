"""Chat templates in metadata: Jinja, in the dialect of transformers and llama.cpp."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from glft_schema.codec.context import Context
from glft_schema.codec.rules import Check
from glft_schema.errors import one_line, quote

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment  # imported when a file has a template

TEMPLATE = "tokenizer.chat_template"  # prefix of the keys of chat templates
LONGEST = 1 << 16  # characters of a file's templates; others are not checked. Jinja parses them in at most 2 s
PRIVATE = re.compile("__[a-z]+__")  # a name of Python's, as in a text that becomes an attribute
GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # transformers' own tag


class ChatTemplate(Check):
    """The rule that a chat template is Jinja, uses only Jinja's own filters and tests, and accesses
    nothing private. Templates that do attack programs that render them without a sandbox."""

    expected = "a chat template in Jinja"
    advice = ": rules=['ggml'] (--rules ggml) allows it"
    example = TEMPLATE
    broken_by = ("", "{{ messages | uper }}", "{{ ''.__class__ }}")

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


def _unsafe(node: Any) -> str:
    """Returns the part of a node that reaches for private attributes or other files, or an empty
    string."""
    match type(node).__name__:
        case "Getattr" if node.attr.startswith("_"):
            return str(node.attr)
        case "Const" if isinstance(node.value, str) and (found := PRIVATE.search(node.value)):
            return found[0]
        case "Filter" if node.name == "attr":
            return "attr"
        case "Include" | "Import" | "FromImport" | "Extends" as name:
            return name.lower()
    return ""


@lru_cache(64)  # each pass over a file asks again
def _problem_of(text: str) -> str:
    import jinja2

    sandbox, nodes = environment(), jinja2.nodes
    try:
        for node in sandbox.parse(GENERATION.sub("", text)).find_all(nodes.Node):
            if isinstance(node, (nodes.Filter, nodes.Test)):
                kind, known = ("filter", sandbox.filters) if isinstance(node, nodes.Filter) else ("test", sandbox.tests)
                if node.name not in known:
                    return f"expected a {kind} of Jinja, found {quote(node.name)} at line {node.lineno}"
            if found := _unsafe(node):
                return f"expected no access to private attributes or other files, found {quote(found)} at line {node.lineno}"
    except jinja2.TemplateSyntaxError as error:
        return f"expected valid Jinja, found an error at line {error.lineno}: {one_line(str(error.message))}"
    except RecursionError:
        return "expected a chat template, found expressions that are nested too deeply"
    except ValueError as error:  # of Python, about a number
        return f"expected valid Jinja, found a number that Python cannot read: {one_line(str(error))}"
    return ""
