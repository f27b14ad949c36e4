"""Checks of tensor values: NaN, infinities, reserved codes, subnormal scales and all-zero tensors.

The declaration of a type determines what is checked: float fields, integer fields that encode
floats (its `scales`), and fields with `reserved` codes. Payloads are read in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from glft_schema.codec.context import LITTLE
from glft_schema.codec.numbers import TensorField
from glft_schema.display import Part, Progress, align, records_table, with_display
from glft_schema.errors import quote, safe
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.lazy import outside_graphs
from glft_schema.storage.dtypes import Array, is_float, name_of, words
from glft_schema.storage.source import StrPath
from glft_schema.storage.tensor_bytes import array_over
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.blocks import Blocks
from glft_schema.tensor_types.chunks import index_of
from glft_schema.tensor_types.conversions import widen
from glft_schema.tensor_types.declaration import Floats, Reserved
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.patterns import leave_out

PIECE = 1 << 22  # bytes of a payload read at a time
FIRST_CHUNK = 1 << 10  # weights that usually show that a tensor is not all zero
NAN, INFINITE, RESERVED = "NaN", "infinite", "reserved"
SUBNORMAL, ALL_ZERO, UNKNOWN, INCOMPLETE = "subnormal", "all zero", "unknown type", "incomplete"
FAULTS = (NAN, INFINITE, RESERVED)
EXTREME = 100  # exponent of the scales beyond which products with codes may overflow
MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}  # bits of the floats that are checked


@dataclass(frozen=True)
class ValueFinding:
    """Unusual values in one field of a tensor.

    Attributes:
        tensor: name of the tensor.
        file: file that has the tensor.
        field: stored field, such as ``scales`` or ``d``, or ``weights`` for dequantized weights.
        kind: ``NaN``, ``infinite``, ``reserved`` for codes, ``subnormal`` for scales, ``all zero``
            for a whole tensor, or ``unknown type`` or ``incomplete``, in a truncated file, for a
            tensor that cannot be checked.
        count: number of such values in the field.
        index: first affected weight, in torch's order; for a reserved code, the first of its block.
        byte: position in the file of the first such value, or of the first such weight's block; for
            a weight stored as several tensors, position in its computed payload.
        meaning: description of a reserved code; empty for other kinds.
    """

    tensor: str
    file: str
    field: str
    kind: str
    count: int
    index: tuple[int, ...]
    byte: int
    meaning: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether no encoder writes this for finite weights; other kinds occur in valid files."""
        return self.kind in FAULTS


class ValueReport(NamedTuple):
    """The result of `check_values` for a file.

    Attributes:
        tensors: number of weights of the file.
        checked: number of them whose values were checked.
        findings: all findings, faults first.
        strict: whether weights that were not checked are a failure, too.
    """

    tensors: int
    checked: int
    findings: list[ValueFinding]
    strict: bool = False

    @property
    def holds(self) -> bool:
        """Whether there are no faults."""
        return not any(finding.is_fault or (self.strict and finding.kind == UNKNOWN) for finding in self.findings)

    def lines(self) -> list[str]:
        """Returns a table of the findings, and a summary."""
        rows = [
            (safe(one.tensor), one.field, one.meaning or one.kind, f"{one.count:,}", str(list(one.index)), f"{one.byte:,}")
            for one in self.findings
            if one.kind != INCOMPLETE
        ]
        head = ("tensor", "field", "found", "count", "first weight", "at byte")
        faulty = len({finding.tensor for finding in self.findings if finding.is_fault})
        result = f"{faulty or 'none'} with NaN, infinities or reserved codes"
        return [*align([head, *rows] if rows else [], 3), f"{self.checked} of {self.tensors} tensors checked, {result}"]

    def data(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        findings = [{**asdict(finding), "fault": finding.is_fault} for finding in self.findings]
        return {"checked": self.checked, "findings": findings}


def value_report(file: File, exclude: Iterable[str], progress: Progress, strict: bool = False) -> ValueReport:
    """Checks the values of all tensors. Raises as `check_values`."""
    found, checked = list[ValueFinding](), 0
    for number, (tensor, findings) in enumerate(check_values(file, exclude), 1):
        found += findings
        checked += not any(finding.kind in (UNKNOWN, INCOMPLETE) for finding in findings)
        progress(tensor.name, number / len(file.weights))
    return ValueReport(len(file.weights), checked, sorted(found, key=lambda finding: not finding.is_fault), strict)


Checked = Iterator[tuple[Tensor, list[ValueFinding]]]


@with_display
class ValueChecks(Checked):
    """Checks that are made one by one. ``str`` and notebooks make all, and show the findings."""

    def __init__(self, file: File, exclude: Iterable[str]) -> None:
        self._args = file, tuple(exclude)
        self._checked = _checked(*self._args)

    def __next__(self) -> tuple[Tensor, list[ValueFinding]]:
        return next(self._checked)

    def _display(self) -> Iterator[Part]:
        yield f"values of {quote(self._args[0].name)}"
        report = value_report(*self._args, lambda name, share: None)
        yield report.lines()[-1]
        yield records_table("findings", report.findings)


@outside_graphs
def check_values(file: File | StrPath, exclude: Iterable[str] = ()) -> ValueChecks:
    """Checks the weights, scales and codes of each tensor.

    NaN and infinities are reported where they are stored: a scale counts once for all its weights.
    A file opened with ``mmap=False`` takes a few megabytes of memory.

    Args:
        file: an open file or set, or a path.
        exclude: names or fnmatch patterns of tensors to skip.

    Returns:
        An iterator of tensors, each with its unusual values, which are searched for when it is
        reached. A notebook shows a table of all.

    Raises:
        SchemeError: for a pattern that matches nothing.
        ClosedError, TruncatedError, OSError: if the file can no longer be read.
        FormatError: if the file at a path is not valid.
    """
    return ValueChecks(as_file(file), exclude)


@outside_graphs
def _checked(file: File, exclude: Iterable[str]) -> Checked:
    results: dict[Hashable, list[ValueFinding]] = {}
    for tensor in leave_out(file.weights, exclude).values():
        if tensor.identity not in results:  # tied tensors are checked once
            results[tensor.identity] = list(findings_of(tensor))
        yield tensor, [replace(finding, tensor=tensor.name) for finding in results[tensor.identity]]


def findings_of(tensor: Tensor) -> Iterator[ValueFinding]:
    """Yields the unusual values of one tensor; see `check_values`."""
    count = math.prod(tensor.shape)
    all_zero = ValueFinding(tensor.name, tensor.file, "weights", ALL_ZERO, count, (0,) * len(tensor.shape), tensor.position)
    if tensor.type.bytes_only or tensor.missing:
        yield replace(all_zero, field="", kind=INCOMPLETE if tensor.missing else UNKNOWN)
    elif count:
        scan = _Scan(tensor)
        for name, declared in tensor.type.fields():
            if checks := list(_field_checks(tensor.type, name, declared)):
                scan.read(name, declared, checks)
        if scan.extreme:
            scan.dequantize()
        yield from scan.findings.values()
        first, chunks = next(tensor.arrays(FIRST_CHUNK)), tensor.arrays()
        if _is_zero(first) and all(map(_is_zero, chunks)):
            yield all_zero


def _is_zero(numbers: Array) -> bool:
    with np.errstate(invalid="ignore"):
        return not numbers.any()


class _FieldCheck(NamedTuple):
    """What to check in a field.

    Attributes:
        field: name of the field.
        start: its first byte in a block; 0 without blocks.
        nbytes: its bytes in a block; without blocks, bytes of a number.
        is_scale: whether its floats multiply codes.
        floats: decodes its numbers; None if they are not floats.
        reserved: its reserved codes.
    """

    field: str
    start: int
    nbytes: int
    is_scale: bool
    floats: Floats | None
    reserved: list[Reserved]


def _field_checks(type_: TensorType, name: str, declared: TensorField) -> Iterator[_FieldCheck]:
    """Yields the checks of a payload's field, or of the fields of its blocks."""
    fields = (
        [(part.name, part.subcon) for part in declared.block.subcons] if isinstance(declared, Blocks) else [(name, declared)]
    )
    start = 0
    for field, part in fields:
        nbytes = part.sizeof() if isinstance(declared, Blocks) else part.number.itemsize
        floats = (type_.scales or {}).get(field, _as_stored if is_float(part.number.dtype) else None)
        reserved = [codes for codes in type_.reserved if codes.field == field]
        if floats or reserved:
            yield _FieldCheck(field, start, nbytes, not type_.exact, floats, reserved)
        start += nbytes


def _as_stored(floats: Array) -> Array:
    return floats


class _Scan:
    """Collects the findings of one tensor.

    Attributes:
        findings: results by field, kind and meaning.
        extreme: whether a scale is so large that a weight may overflow.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.findings: dict[tuple[str, str, str], ValueFinding] = {}
        self.extreme = False
        self._tensor = tensor
        self._weights = math.prod(tensor.shape)

    def read(self, name: str, declared: TensorField, checks: list[_FieldCheck]) -> None:
        """Checks a field of the payload in pieces."""
        source, position, *_ = self._tensor.identity
        start, nbytes = self._tensor.type.field_spans(self._tensor.shape)[name]
        pitch = declared.size if isinstance(declared, Blocks) else declared.number.itemsize
        for at in range(0, nbytes, PIECE // pitch * pitch):
            view = source.private(position + start + at, min(PIECE // pitch * pitch, nbytes - at))
            numbers = array_over(view, declared.number.dtype, [len(view) // declared.number.itemsize])
            numbers = numbers if self._tensor.order == LITTLE else declared.swap(numbers)
            fields = declared.columns(name, numbers.reshape(len(view) // pitch, -1))
            rows = _Rows(at // pitch, nbytes // pitch, position + start + at, pitch)
            for check in checks:
                self._check(check, fields[check.field], rows)

    def dequantize(self) -> None:
        """Checks the dequantized weights."""
        unit, block = self._tensor.type.unit(self._tensor.shape), 0  # weights that share a scale
        blocks, check = self._weights // unit, _FieldCheck("weights", 0, 0, False, _as_stored, [])
        pitch = self._tensor.nbytes // blocks
        for chunk in self._tensor.arrays():
            weights = chunk.reshape(-1, unit)
            self._check(check, weights, _Rows(block, blocks, self._tensor.position + block * pitch, pitch))
            block += len(weights)

    def _check(self, check: _FieldCheck, numbers: Array, rows: _Rows) -> None:
        for codes in check.reserved:
            self._note(check, RESERVED, codes.found(numbers), rows, codes.numbers)
        if check.floats is None:
            return
        floats = check.floats(numbers)
        if name_of(floats.dtype) not in MANTISSA:
            floats = widen(floats)
        mantissa, sign = MANTISSA[name_of(floats.dtype)], 1 << 8 * floats.itemsize - 1
        infinite, sizes = sign - (1 << mantissa), words(floats).view(f"u{floats.itemsize}") & (sign - 1)
        largest = int(sizes.max())
        if largest >= infinite:
            self._note(check, NAN, sizes > infinite, rows)
            self._note(check, INFINITE, sizes == infinite, rows)
        if check.is_scale:
            self._note(check, SUBNORMAL, (sizes > 0) & (sizes < 1 << mantissa), rows)
            extreme = ((infinite >> mantissa) // 2 + EXTREME) << mantissa  # the bits of 2**EXTREME
            self.extreme |= largest > extreme and bool(((sizes > extreme) & (sizes < infinite)).any())

    def _note(self, check: _FieldCheck, kind: str, mask: Array, rows: _Rows, meaning: str = "") -> None:
        """Counts the set elements of `mask`, and keeps the position of the first."""
        if not (count := int(np.count_nonzero(mask))):
            return
        key = (check.field, kind, meaning)
        if earlier := self.findings.get(key):
            self.findings[key] = replace(earlier, count=earlier.count + count)
            return
        across = mask.shape[1]
        row, number = divmod(int(mask.argmax()), across)
        group = number if check.floats else 0  # which weights a byte of packed codes holds is not declared
        weight = ((rows.first + row) * across + group) * self._weights // (rows.total * across)
        byte = rows.byte + row * rows.pitch + check.start + number * check.nbytes // across
        index = index_of(weight, self._tensor.shape)
        self.findings[key] = ValueFinding(self._tensor.name, self._tensor.file, check.field, kind, count, index, byte, meaning)


class _Rows(NamedTuple):
    """Rows of numbers that are checked together: blocks, or single numbers.

    Attributes:
        first: index of the first row in the field.
        total: number of rows in the field.
        byte: position of the first row in the file.
        pitch: bytes per row.
    """

    first: int
    total: int
    byte: int
    pitch: int
