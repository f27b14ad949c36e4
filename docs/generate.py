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

import glft_schema
from glft_schema.container import FORMATS, format_named
from glft_schema.describe import as_markdown as markdown
from glft_schema.describe.nodes import Schema
from glft_schema.describe.schema import schema_of
from glft_schema.formats.gguf_keys import TYPES
from glft_schema.limits import LIMITS

MODULES = {  # what is public beside the names of the package itself
    "checkpoints": ["open_checkpoint"],
    "container": ["findings", "parse_source"],
    "describe.byte_counts": ["byte_counts"],
    "describe.byte_map": ["byte_map_of"],
    "describe.as_json": ["as_data"],
    "describe.nodes": ["Schema", "StructOf", "Field", "TypeOf"],
    "describe.page.render": ["page"],
    "describe.schema": ["schema_of", "node_of"],
    "fields": ["Struct", "Count", "Derived", "Picked", "Sizes", "Padding", "TypeCode"],
    "manifests": [
        "hash_file",
        "manifest_of",
        "read_manifest",
        "compare_hashes",
        "model_hash",
        "FileHash",
        "TensorHash",
        "Verdict",
    ],
    "numbers": ["Number", "TensorField"],
    "rows": ["Table"],
    "rules": ["Rule", "Check", "Finding"],
    "splitting": ["split", "merge"],
    "strategies": ["containers", "corruptions", "Corruption", "from_construct", "values_of", "rule_ids"],
    "tensor_types": ["TensorType"],
    "tensor_types.tensor_type": ["Reserved"],
    "values": ["odd_values", "oddities", "Oddity"],
    "verify": ["compare"],
}
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
    """Returns, for each public name, the directive by which the site takes in its docstring."""
    public = [getattr(glft_schema, name) for name in sorted(glft_schema.__all__)]
    declared = [value if hasattr(value, "__qualname__") else type(value) for value in public]
    lines = ["## glft_schema", *(f"::: {value.__module__}.{value.__qualname__}" for value in declared)]
    for module, names in MODULES.items():
        lines += [f"## glft_schema.{module}", *(f"::: glft_schema.{module}.{name}" for name in names)]
    return "\n\n".join(lines) + "\n"


def limits() -> str:
    """Returns the table of the reader's limits."""
    rows: list[tuple[str, ...]] = [(f"`{name}`", f"{limit.most:,}", limit.of, limit.why) for name, limit in LIMITS.items()]
    return table(("limit", "at most", "of", "why"), rows)


def refused_files() -> str:
    """Returns what each reader does with the GGUF files that are refused."""
    from tests.cases import READS
    from tests.gguf_cases import REFUSED

    rows = [(name, "refused", READS if case.c else "refused", code_or_text(case.gguf_py)) for name, case in REFUSED.items()]
    return table(("file", "glft_schema", "llama.cpp", "gguf-py"), rows)


def read_files() -> str:
    """Returns which rules the GGUF files that are read break, and what other readers do with them."""
    from tests.cases import READS
    from tests.gguf_cases import READ

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
