"""Writes what is generated in the pages: ``python docs/generate.py``.

It comes from declarations, commands, docstrings and tables of the tests. `WRITTEN` are pages of the
site alone, which git ignores. A generated part of a stored page is between ``<!-- generated: NAME
-->`` and ``<!-- end -->``; `PARTS` maps each NAME to its function.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import glft_schema
from glft_schema.checks.roles import ROLES
from glft_schema.cli import app
from glft_schema.cli.commands import JOBS
from glft_schema.codec.context import BIG, LITTLE
from glft_schema.composites.schemes import SCHEMES
from glft_schema.describe import as_markdown as markdown
from glft_schema.describe.schema import schema_of
from glft_schema.families.page import ANY, Bias, F
from glft_schema.families.pages import FAMILIES
from glft_schema.families.requirements import Requirement
from glft_schema.families.rows import YARN
from glft_schema.formats.gguf_keys import TYPES
from glft_schema.formats.registry import FORMATS
from glft_schema.limits import LIMITS
from glft_schema.quantizer.recipes_as_markdown import recipes_as_markdown
from glft_schema.tensor_types.composite import compiled_types

sys.path.insert(0, str(Path(__file__).parents[1]))
from screens import screens

from tests.catalogue import disagreements
from tests.catalogue.__main__ import HUGE, LARGE
from tests.catalogue.__main__ import READ as READ_BY_NAME
from tests.catalogue.__main__ import REFUSED as REFUSED_BY_NAME
from tests.catalogue.cases import READS
from tests.catalogue.gguf_cases import READ, REFUSED
from tests.composites import recorded
from tests.families.tiny_models import TINY_MODELS
from tests.foreign import files
from tests.foreign.clients import CLIENTS, FAULTS, INDICES, LAYOUTS, TENSORS, expected
from tests.storage.misbehaviour import CASES

SUBJECTS = {  # the names of the package itself; each of its parts has a section after them
    "Open and load": "Container open File Tensor Typed Limits load_file load_into",
    "Save and convert": "save_file convert edit split merge",
    "Quantize and plan": "quantize plan read_importance",
    "Check, compare and describe": "check_rules check_values compare byte_map",
    "Errors": "FormatError TruncatedError LimitError TensorError OptionError SchemeError ClosedError",
}
GUIDES = {  # pages that show the functions of a subject
    "Open and load": "../concepts/python", "Save and convert": "../guides/recipes",
    "Quantize and plan": "../guides/quantizing", "Check, compare and describe": "../guides/integrity",
}  # fmt: skip
IN_CODEC = (
    "predicates",
    "rules",
    "metadata",
    "metadata_lines",
    "metadata_rules",
    "expressions",
    "context",
)  # its modules that are public
DOCS = Path(__file__).parent
ROOT = DOCS.parent
PART = re.compile(r"(<!-- generated: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def gguf_header() -> str:
    """Returns the declaration of GGUF's header, from its source."""
    source = (ROOT / "glft_schema" / "formats" / "gguf.py").read_text("utf-8")
    (declaration,) = re.findall(r"^Header = Struct\(\n.*?^\)\n", source, re.MULTILINE | re.DOTALL)
    return f"```py\n{declaration}```"  # not "python": the tests run examples in that language


def command_line() -> str:
    """Returns the page of the `glft` command, from the commands themselves."""
    context = click.Context(app, info_name="glft", **app.context_settings)
    return "\n\n".join(["# The command line", *command_parts(context, 2)]) + "\n"


def command_parts(context: click.Context, level: int) -> Iterator[str]:
    """Yields the Markdown of a command and of its subcommands."""
    command = context.command
    yield f"{'#' * level} `{context.command_path}`"
    yield inspect.cleandoc(command.help or "")
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    for title, class_ in (("Arguments", click.Argument), ("Options", click.Option)):
        parameters = [parameter for parameter in command.get_params(context) if isinstance(parameter, class_)]
        records = [getattr(parameter, "record", parameter.get_help_record)(context) for parameter in parameters]
        if records:
            yield "\n".join([f"**{title}**:\n", *(f"* `{name}`: {about}" for name, about in records)])
    if command.epilog:
        yield command.epilog.replace("\b\nExamples:\n", "**Examples**:\n\n```text\n").replace("\n  ", "\n") + "\n```"
    if isinstance(command, click.Group):
        jobs = JOBS if command is app else {"Commands": {name: made.short_help for name, made in command.commands.items()}}
        for job, names in jobs.items():
            yield "\n".join([f"**{job}**:\n", *(f"* `{name}`: {about}" for name, about in names.items())])
        for name in command.list_commands(context):
            made = command.get_command(context, name)
            yield from command_parts(click.Context(made, parent=context, info_name=name), level + 1 - (command is app))


def python_names() -> str:
    """Returns the table of the functions, by the guide that shows them, and of the parts."""
    lines = ["| name | what it does |", "| --- | --- |"]
    for subject, guide in GUIDES.items():
        lines.append(f"| [**{subject}**]({guide}.md) | |")
        for name in filter(str.islower, SUBJECTS[subject].split()):
            about = (inspect.getdoc(getattr(glft_schema, name)) or "").partition("\n\n")[0]
            lines.append(f"| `{name}` | {' '.join(about.split())} |")
    lines.append("| **Parts** | |")
    listed = re.findall(r"^    glft\.(\w+) {2,}(.*)", glft_schema.__doc__ or "", re.MULTILINE)
    for part, about in ((part, about) for part, about in listed if part in glft_schema.PARTS):
        module = getattr(glft_schema, part)
        functions = [f"`{name}`" for name in module.__all__ if inspect.isroutine(getattr(module, name))]
        lines.append(f"| `{part}` | {': '.join(filter(None, (about, ', '.join(functions))))} |")
    return "\n".join(lines)


def api() -> str:
    """Returns the page of all public names, with directives that include their docstrings.

    Raises:
        ValueError: if `SUBJECTS` lacks a public name, or has another one.
    """
    listed = {name for names in SUBJECTS.values() for name in names.split()}
    if odd := listed ^ (set(glft_schema.__all__)):
        raise ValueError(f"expected a subject for each public name, found {', '.join(sorted(odd))} in one place only")
    lines = [line for subject, names in SUBJECTS.items() for line in (f"## {subject}", *directives(glft_schema, names.split()))]
    parts = {part: getattr(glft_schema, part) for part in glft_schema.PARTS}
    parts |= {f"codec.{module}": import_module(f"glft_schema.codec.{module}") for module in IN_CODEC}
    for part, module in sorted(parts.items()):
        lines += [f"## glft_schema.{part}", *directives(module, [name for name in module.__all__ if name not in listed])]
    return "\n\n".join(["# The Python API", python_names(), *lines]) + "\n"


def directives(module: ModuleType, names: list[str]) -> list[str]:
    """Returns the directives of classes and functions, and a line with all other names."""
    values = {name: getattr(module, name) for name in names}
    if module is glft_schema and "Container" in values:
        values["Container"] = type(values["Container"])
    named = {name: value for name, value in values.items() if isinstance(getattr(value, "__qualname__", None), str)}
    others = ", ".join(f"`{name}`" for name in values if name not in named)
    declared = [f"::: {value.__module__}.{value.__qualname__}" for value in named.values()]
    return [*declared, *([f"Also {others}."] if others else [])]


def limits() -> str:
    """Returns the table of the reader's limits."""
    rows = [(f"`{name}`", f"{limit.most:,}", limit.of, limit.why) for name, limit in LIMITS.items()]
    return table(("limit", "at most", "of", "why"), rows)


def misbehaving_servers() -> str:
    """Returns the table of what users read when a server misbehaves, with 2 attempts and 1 s."""
    rows = [(case.does, f"`{case.line}`" if case.line else "nothing: the command succeeds") for case in CASES]
    return table(("server", "line after `glft: URL:`"), rows)


def gguf_cases() -> str:
    """Returns the page of the catalogue of GGUF files: what each reader does with them."""
    refused = [(name, "refused", READS if case.c else "refused", code_or_text(case.gguf_py)) for name, case in REFUSED.items()]
    read = []
    for name, case in READ.items():
        broken = (", ".join(f"`{rule}`" for rule in rules.split()) for rules in (case.spec, case.ggml))
        read.append((name, *broken, "refused" if case.ggml else READS, code_or_text(case.gguf_py)))
    parts = (
        "# Unusual GGUF files, one by one",
        "## Refused files",
        table(("file", "glft_schema", "llama.cpp", "gguf-py"), refused),
        "## Accepted files and the rules they break",
        "Rule ids are shown without the prefix `gguf-`.",
        table(("file", "breaks `spec`", "breaks `ggml`", "llama.cpp", "gguf-py"), read),
    )
    return "\n\n".join(parts) + "\n"


def catalogue() -> str:
    """Returns the number of files in the catalogue, by kind and format."""
    kinds: dict[str, Iterable[str]] = {
        "small bad files": REFUSED_BY_NAME,
        "small unusual files that are legal": READ_BY_NAME,
        "large bad files": [name for name, case in LARGE.items() if case.error],
        "large legal files": [name for name, case in LARGE.items() if not case.error],
        "bad files with a huge count or length": ["GGUF"] * len(HUGE),
    }
    counts = {kind: Counter(name.partition(",")[0] for name in names) for kind, names in kinds.items()}
    return table(("files", "GGUF", "GLFT"), [(kind, f"{count['GGUF']}", f"{count['GLFT']}") for kind, count in counts.items()])


def random_files() -> str:
    """Returns why other readers disagree with this package on random GGUF files."""
    rows = [(reader, row.files, row.we, row.they, row.why) for reader, reasons in disagreements.ROWS.items() for row in reasons]
    return table(("reader", "file", "glft_schema", "the reader", "why"), rows)


def known_keys() -> str:
    """Returns the well-known keys of GGUF by type."""
    keys = {type_: [f"`{key}`" for key in TYPES if TYPES[key] == type_] for type_ in TYPES.values()}
    return table(("type", "keys"), [(f"`{type_}`", ", ".join(names)) for type_, names in keys.items()])


def clients() -> str:
    """Returns the clients, and what is compared with each."""
    rows = [(f"`{of.package}` {of.version}", of.registry, of.reads, of.writes) for of in CLIENTS]
    return table(("client", "from", "reads our files: compared are", "writes files that we read"), rows)


def client_layouts() -> str:
    """Returns the versions and byte orders that each client reads."""
    layouts = [(version, order) for version in (1, 2, 3) for order in (LITTLE, BIG)]
    rows = [
        (f"`{client}`", *(failures[layout].why if layout in failures else "read" for layout in layouts))
        for client, failures in LAYOUTS.items()
    ]
    return table(("client", *(f"v{version}, {order}" for version, order in layouts)), rows)


def client_tables() -> str:
    """Returns the page of what clients do with each tensor type, and of their faults."""
    types = [(type_.name, *(expected(client, type_.name) for client in TENSORS)) for type_ in files.TYPES]
    faults = [(f"`{fault.client}`", fault.files, fault.they, fault.why) for fault in FAULTS]
    parts = (
        "# What other clients do, type by type",
        '"Refused" means an error for the whole file.',
        table(("type", *(f"`{client}`" for client in TENSORS)), types),
        "## What clients get wrong",
        table(("client", "file", "what it does", "why"), faults),
    )
    return "\n\n".join(parts) + "\n"


def slice_indices() -> str:
    """Returns the kinds of index that safetensors treats differently."""
    they = {row.kind: f"`{row.they}`" if isinstance(row.they, str) else "takes it, as torch does" for row in INDICES}
    return table(("index", "safetensors", "glft_schema"), [(kind, verdict, "`IndexError`") for kind, verdict in they.items()])


def roles() -> str:
    """Returns the roles of GGUF files, with the keys and tensors that llama.cpp requires."""
    rows = []
    for role in ROLES.values():
        keys = [f"`{key.key}` {key.types.replace(' ', ' or ')}{condition_of(key)}" for key in role.keys]
        tensors = [role.tensors_text, *([f"`NAME{'`, `NAME'.join(role.pairs.suffixes)}`"] if role.pairs else [])]
        mark = " = ".join(f"`{part}`" for part in role.mark)
        rows.append((f"`{role.name}`", f"{role.title}: {mark}", ", ".join(keys), "; ".join(filter(None, tensors)), role.source))
    return table(("rule set", "files", "keys", "tensors", "source in llama.cpp"), rows)


def families() -> str:
    """Returns the table of architectures of Hugging Face folders."""
    kinds: dict[str, list[str]] = {}
    for family in FAMILIES:
        kinds.setdefault(family.arch, []).extend(family.architectures)
    rows = [(arch, ", ".join(f"`{name}`" for name in dict.fromkeys(names))) for arch, names in kinds.items()]
    return table(("architecture in GGUF", "architectures of config.json"), rows)


def refused_values() -> str:
    """Returns the table of values of config.json that are refused for a class, and why."""
    rows = []
    for family in FAMILIES:
        names = ", ".join(f"`{name}`" for name in family.architectures)
        own = [
            field
            for field in family.fields
            if field not in YARN and field.value is not ANY and not isinstance(field.value, Bias)
        ]
        refused = [stated_value(field) for field in own if not field.warns]
        rows.append((names, "; ".join(refused), "; ".join(f"`{field.name}`" for field in own if field.warns)))
    return table(("class", "expected values", "fields with a warning instead"), rows)


def stated_value(field: F) -> str:
    """Returns a field with the value that llama.cpp assumes, and the reason."""
    value = f" {json.dumps(field.value)}" if field.is_constant else ""
    reason = f" ({field.instead})" if field.instead else ""
    return f"`{field.name.removeprefix('rope.')}{value}`{reason}"


def faults_of_the_converter() -> str:
    """Returns the table of what llama.cpp's converter writes otherwise for tiny models."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for model in TINY_MODELS:
        for reason in dict.fromkeys(model.differs.values()):
            reasons.setdefault((model.config["architectures"][0], reason), []).append(model.name)
    rows = [(f"`{name}`", ", ".join(models), reason) for (name, reason), models in reasons.items()]
    return table(("class", "with the config of", "difference"), rows)


def composite_schemes() -> str:
    """Returns a table of parts for each scheme of weights that are stored as several tensors."""
    sections = []
    for scheme in SCHEMES:
        stored = {part: f"`{scheme.joint}{end}`" for end, part in scheme.stored_parts().items()}
        rows = [
            (stored[part.name], f"`{part.subcon!r}`", part.docs + " (optional)" * (part.name in scheme.optional))
            for part in scheme.parts.subcons
        ]
        about = " ".join((inspect.getdoc(scheme) or "").split())
        sections.append(f"**{scheme.library}.** {about}\n\n{table(('ending of the name', 'stored as', 'meaning'), rows)}")
    return "\n\n".join(sections)


def composite_types() -> str:
    """Returns a table of the types of composite weights."""
    rows = []
    for type_ in compiled_types():
        fields = ", ".join(f"{name} {field!r}" for name, field in type_.fields())
        rows.append((f"`{type_.scheme}`", f"`{fields}`", (inspect.getdoc(type_.formula) or "").rstrip(".")))
    return table(("type", "fields", "a weight is"), rows)


def composite_recordings() -> str:
    """Returns what was compared with the libraries: weights that they wrote, and their values."""
    rows = []
    for folder in sorted((ROOT / "tests" / "golden" / "composite").iterdir()):
        about = json.loads((folder / "about.json").read_text("utf-8"))
        with (
            glft_schema.open(folder / "model.safetensors") as file,
            glft_schema.open(folder / "expected.safetensors") as values,
        ):
            found = recorded.compare(file, values)
        rows.append((about["scheme"], f"{about['library']} {about['version']}", *found))
    return table(("scheme", "written by", "weights", "largest difference", "in GGUF"), rows)


def composite_logits() -> str:
    """Returns the differences of logits in llama.cpp to those of the libraries."""
    recorded = json.loads((ROOT / "tests" / "golden" / "composite_logits.json").read_text("utf-8"))
    families = list(dict.fromkeys(name.partition("-")[0] for name in recorded))
    schemes: dict[str, list[Any]] = {}
    for name, model in recorded.items():
        schemes.setdefault(name.partition("-")[2], []).append(model)
    rows = []
    for name, models in schemes.items():
        about = (f"`{name}`: {models[0]['scheme']}", models[0]["library"], models[0]["rounded_to"])
        types = dict.fromkeys(type_ for model in models for type_ in model["types"])
        rows.append((*about, ", ".join(types), *map(differences, models)))
    return table(("model", "written by", "rounded to", "in GGUF", *families), rows)


def differences(model: dict[str, Any]) -> str:
    """Returns the three differences of a model, those with other experts marked."""
    found = zip((model["converted"], model["float32"], model["rounded"]), (*model["rerouted"], 0), strict=True)
    return " / ".join("< 1e-5" if most < 1e-5 else f"{most:g}{'*' * bool(changed)}" for most, changed in found)


def condition_of(key: Requirement) -> str:
    """Returns when a role requires a key, if not always."""
    return f" (if `{key.when}`)" if key.when else "" if key.required else " (optional)"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def code_or_text(verdict: str) -> str:
    """Returns a verdict in words as it is, the name of an exception as code."""
    return verdict if " " in verdict else f"`{verdict}`"


def parts() -> dict[str, Callable[[], str]]:
    """Returns the function that writes each generated part."""
    functions = [
        gguf_header,
        limits,
        misbehaving_servers,
        roles,
        families,
        refused_values,
        faults_of_the_converter,
        random_files,
        catalogue,
        known_keys,
        python_names,
    ]
    functions += [clients, client_layouts, slice_indices, composite_schemes, composite_types, composite_recordings]
    functions += [composite_logits]
    made: dict[str, Callable[[], str]] = {function.__name__.replace("_", " "): function for function in functions}
    for format in FORMATS:
        name, schema = format.name.lower(), schema_of(format)
        for part, struct in schema.structs.items():
            made[f"{name} struct {part}"] = partial(markdown.struct_section, struct, schema)
        for write in (markdown.codes_reference, markdown.types_table, markdown.types_reference):
            made[f"{name} {write.__name__}"] = partial(write, schema)
    return made


PARTS = parts()
WRITTEN = {
    "reference/command-line.md": command_line,
    "reference/api.md": api,
    "reference/recipes.md": recipes_as_markdown,
    "reference/screens.md": screens,
    "background/gguf-cases.md": gguf_cases,
    "background/client-tables.md": client_tables,
}


def renewed(page: str) -> str:
    """Returns a page with its generated parts up to date. Raises KeyError for an unknown NAME."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[4]}", page)


def stored() -> list[Path]:
    """Returns the README and the pages that git stores."""
    return [
        ROOT / "README.md",
        *(page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).as_posix() not in WRITTEN),
    ]


if __name__ == "__main__":
    for name, function in WRITTEN.items():
        (DOCS / name).write_text(function(), "utf-8")
    for page in stored():
        text = page.read_text("utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, "utf-8")
            print(f"renewed {page.relative_to(ROOT)}")
