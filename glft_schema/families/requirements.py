"""Requirements of llama.cpp's loaders: metadata keys of models and of other files.

llama.cpp stops with an assertion if a key has another type than its loader reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from glft_schema.errors import Finding, Repair, quote
from glft_schema.files import parsing
from glft_schema.files.file import File

UINT32 = "uint32"


class Requirement(NamedTuple):
    """A loader's requirement for a metadata key.

    Attributes:
        key: the key.
        types: the types of its value that the loader reads, such as ``uint32 int32``.
        value: the value that it must have; None for any.
        required: whether the file must have the key.
        when: a key with a bool; `required` applies only if the value is true.
        loads_without: whether llama.cpp loads a file that lacks a `required` key.
        expected: a condition, or why `value` is expected; ``{name}`` stands for that size.
        holds: returns whether the condition holds, from the `loader.ModelSizes` of a model.
    """

    key: str
    types: str = ""
    value: str | None = None
    required: bool = True
    when: str | None = None
    loads_without: bool = False
    expected: str = ""
    holds: Callable[[Any], bool] | None = None


def limit(key: str, expected: str, holds: Callable[[Any], bool]) -> Requirement:
    """Returns a condition on the value of a key, given without the architecture's name."""
    return Requirement(key, expected=expected, holds=holds)


def locate(file: File, findings: list[Finding]) -> list[Finding]:
    """Returns findings with offsets and names of rows. Parses the file again if there are any."""
    starts = parsing.starts_of(file, {finding.path for finding in findings}) if findings else {}
    for finding in findings:
        finding.offset = starts.get(finding.path)
    parsing.name_rows(file, findings)
    return findings


class RowPaths:
    """Paths of entries and tensors of a file."""

    def __init__(self, file: File) -> None:
        self._keys = {key: i for i, key in enumerate(file.metadata)}
        self._tensors = {name: i for i, name in enumerate(file.tensors)}
        self._table = file.format.table

    def key(self, name: str, field: str) -> str:
        return f"metadata -> {self._keys[name]} -> {field}"

    def tensor(self, name: str, field: str) -> str:
        return f"{self._table} -> {self._tensors[name]} -> {field}"


def finding_of(rules: str, what: str, path: str, problem: str, name: str = "", repair: Repair | None = None) -> Finding:
    return Finding(f"{rules}-{what}", (rules,), path, problem, name=name, repair=repair)


def broken_keys(file: File, keys: Iterable[Requirement], name: str, to_load: bool = False) -> Iterator[Finding]:
    """Yields the findings of a file's metadata keys, for the rule set `name`, without offsets."""
    metadata, rows = file.metadata, RowPaths(file)
    for key in keys:
        repair: Repair | None = ("set", key.key, key.value) if key.value is not None else None
        if key.key not in metadata:
            if key.required and not (to_load and key.loads_without) and (key.when is None or metadata.get(key.when) is True):
                others = f"{len(metadata)} other key{'s' * (len(metadata) != 1)}"
                problem = f"expected the key {key.key}, found {others}"
                yield finding_of(name, "keys", "metadata", problem, key.key, repair)
        elif (type_ := metadata.type_of(key.key)) not in (types := key.types.split()):
            problem, value = f"expected {' or '.join(types)} for {key.key}, found {type_}", metadata[key.key]
            if UINT32 in types and type(value) is int and value in range(1 << 32):
                repair = ("set", f"{key.key}:{UINT32}", value)
            yield finding_of(name, "key-types", rows.key(key.key, "type"), problem, key.key, repair)
        elif key.value is not None and metadata[key.key] != key.value:
            problem = f"expected {key.value!r} for {key.key}{key.expected}, found {quote(metadata[key.key])}"
            yield finding_of(name, "values", rows.key(key.key, "value"), problem, key.key, repair)
