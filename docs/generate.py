"""Writes what the pages take from the declarations, the commands and the docstrings: ``python docs/generate.py``.

A generated part of a page stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; `PARTS` says what each NAME is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import glft_schema
from glft_schema.describe import as_markdown as markdown
from glft_schema.describe.nodes import Schema
from glft_schema.describe.schema import schema_of
from glft_schema.formats.gguf_keys import TYPES
from glft_schema.formats.registry import FORMATS, format_named
from glft_schema.limits import LIMITS

SUBJECTS = {  # the names of the package itself; those of its parts come after them, a section each
    "Files": "Container open File Tensor Typed Limits parse_source open_source Source",
    "State dicts and checkpoints": "save_file WrittenTensor load_file convert open_checkpoint StoredTensor read_importance",
    "Sets of files": "split merge",
    "Checks": "check_rules Finding check_values Oddity compare Comparison hash_file",
    "Bytes": "byte_map ByteMap Stretch",
    "The lab's": "write_gguf_lite read_gguf_lite fake_quantize",
    "Errors and warnings": "FormatError TruncatedError LimitError TensorError OptionError SchemeError ClosedError "
    "QuantizationWarning TiedWarning",
}
PARTS_OF_IT = ("types", "codec", "formats", "describe", "manifests", "testing", "lab")
DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # for the tests, whose tables are shown
PART = re.compile(r"(<!-- generated: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@lru_cache
def schema(name: str) -> Schema:
    """Returns the schema of a format by its name in lower case."""
    return schema_of(format_named(name))


def struct(format: str, name: str) -> str:
    """Returns the fields and rules of a struct."""
    return markdown.struct_section(schema(format).structs[name], schema(format))


def command_line() -> str:
    """Returns the reference of the `glft` command, from the commands themselves."""
    made = subprocess.run(
        [sys.executable, "-m", "typer", "glft_schema.cli", "utils", "docs", "--name", "glft"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "100", "TERM": "dumb"},
    )
    return made.stdout.replace("# `glft`", "## `glft`", 1).strip() + "\n"


def python() -> str:
    """Returns, for each public name, the directive by which the site takes in its docstring.

    Raises:
        ValueError: if `SUBJECTS` lacks a public name, or has another one.
    """
    named = [name for names in SUBJECTS.values() for name in names.split()]
    if odd := set(named) ^ (set(glft_schema.__all__) - set(PARTS_OF_IT)):
        raise ValueError(f"expected a subject for each public name, found {', '.join(sorted(odd))} in one place only")
    sections = {subject: names.split() for subject, names in SUBJECTS.items()}
    lines = [line for subject, names in sections.items() for line in (f"## {subject}", *directives(glft_schema, names))]
    for part in PARTS_OF_IT:
        module, seen = getattr(glft_schema, part), set(named)
        lines += [f"## glft_schema.{part}", *directives(module, [name for name in module.__all__ if name not in seen])]
    return "\n\n".join(lines) + "\n"


def directives(module: ModuleType, names: list[str]) -> list[str]:
    """Returns the directives of classes and functions; then a line of the names that are neither."""
    values = {name: getattr(module, name) for name in names}
    declared = [value for value in values.values() if hasattr(value, "__qualname__")]
    if module is glft_schema and "Container" in values:
        declared.insert(0, type(values.pop("Container")))
    others = ", ".join(f"`{name}`" for name, value in values.items() if all(value is not other for other in declared))
    return [*(f"::: {value.__module__}.{value.__qualname__}" for value in declared), *([f"Also {others}."] if others else [])]


def limits() -> str:
    """Returns the table of the reader's limits."""
    rows: list[tuple[str, ...]] = [(f"`{name}`", f"{limit.most:,}", limit.of, limit.why) for name, limit in LIMITS.items()]
    return table(("limit", "at most", "of", "why"), rows)


def refused_files() -> str:
    """Returns what each reader does with the GGUF files that are refused."""
    from tests.catalogue.cases import READS
    from tests.catalogue.gguf_cases import REFUSED

    rows = [(name, "refused", READS if case.c else "refused", code_or_text(case.gguf_py)) for name, case in REFUSED.items()]
    return table(("file", "glft_schema", "llama.cpp", "gguf-py"), rows)


def read_files() -> str:
    """Returns which rules the GGUF files that are read break, and what other readers do with them."""
    from tests.catalogue.cases import READS
    from tests.catalogue.gguf_cases import READ

    rows = []
    for name, case in READ.items():
        broken = (", ".join(f"`{rule}`" for rule in rules.split()) for rules in (case.spec, case.ggml))
        rows.append((name, *broken, "refused" if case.ggml else READS, code_or_text(case.gguf_py)))
    return table(("file", "breaks `spec`", "breaks `ggml`", "llama.cpp", "gguf-py"), rows)


def known_keys() -> str:
    """Returns the well-known keys of GGUF by type."""
    types = dict.fromkeys(TYPES.values())
    return table(
        ("type", "keys"), [(f"`{type_}`", ", ".join(f"`{key}`" for key in TYPES if TYPES[key] == type_)) for type_ in types]
    )


def clients() -> str:
    """Returns which clients are compared, and how."""
    from tests.foreign.clients import CLIENTS

    rows = [(f"`{of.package}` {of.version}", of.registry, of.reads, of.writes) for of in CLIENTS]
    return table(("client", "from", "reads our files: compared are", "writes files that we read"), rows)


def client_layouts() -> str:
    """Returns which versions and byte orders each client reads."""
    from glft_schema.codec.context import BIG, LITTLE
    from tests.foreign.clients import LAYOUTS

    layouts = [(version, order) for version in (1, 2, 3) for order in (LITTLE, BIG)]
    rows = []
    for client, failures in LAYOUTS.items():
        verdicts = (failures[layout].why if layout in failures else "read" for layout in layouts)
        rows.append((f"`{client}`", *verdicts))
    return table(("client", *(f"v{version}, {order}" for version, order in layouts)), rows)


def client_types() -> str:
    """Returns what each client makes of tensors of each type."""
    from tests.foreign.clients import TENSORS, expected
    from tests.foreign.files import TYPES

    rows = [(type_.name, *(expected(client, type_.name) for client in TENSORS)) for type_ in TYPES]
    return table(("type", *(f"`{client}`" for client in TENSORS)), rows)


def client_faults() -> str:
    """Returns what each client gets wrong."""
    from tests.foreign.clients import FAULTS

    rows: list[tuple[str, ...]] = [(f"`{fault.client}`", fault.files, fault.they, fault.why) for fault in FAULTS]
    return table(("client", "file", "what it does", "why"), rows)


def slice_indices() -> str:
    """Returns the kinds of index that safetensors' slices and ours disagree on."""
    from tests.foreign.clients import INDICES

    rows: list[tuple[str, ...]] = []
    for row in INDICES:
        they = f"`{row.they}`" if isinstance(row.they, str) else "takes it, as torch does"
        rows.append((row.kind, they, "`IndexError`"))
    return table(("index", "safetensors", "glft_schema"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def code_or_text(verdict: str) -> str:
    """Returns what a reader does: in words, or the name of what it raises."""
    return verdict if " " in verdict else f"`{verdict}`"


def parts() -> dict[str, Callable[[], str]]:
    """Returns what makes each generated part."""
    made: dict[str, Callable[[], str]] = {"command line": command_line, "python": python, "limits": limits}
    made |= {"refused files": refused_files, "read files": read_files, "known keys": known_keys}
    made |= {"clients": clients, "client layouts": client_layouts, "client types": client_types}
    made |= {"client faults": client_faults, "slice indices": slice_indices}
    for format in FORMATS:
        name = format.name.lower()
        made |= {f"{name} struct {part}": partial(struct, name, part) for part in schema(name).structs}
        for what in (markdown.codes_reference, markdown.rules_reference, markdown.types_table, markdown.types_reference):
            made[f"{name} {what.__name__}"] = partial(_of, what, name)
    return made


def _of(what: Callable[[Schema], str], name: str) -> str:
    return what(schema(name))


PARTS = parts()


def renewed(page: str) -> str:
    """Returns the text of a page with its generated parts as they should be.

    Raises:
        KeyError: for a NAME that nobody makes.
    """
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]().strip()}\n\n{found[4]}", page)


def pages() -> list[Path]:
    """Returns the pages that have generated parts."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text("utf-8"))]


if __name__ == "__main__":
    for page in pages():
        text = page.read_text("utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, "utf-8")
            print(f"renewed {page.relative_to(DOCS)}")
