"""A trial of a declaration: builds and parses small files, before the format is registered."""

from __future__ import annotations

from collections.abc import Iterator
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import construct

from glft_schema.codec.arrays import Numbers, Strings
from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.expressions import Constant
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.numbers import Number, Sizes, u8
from glft_schema.codec.rules import Check
from glft_schema.codec.structs import Derived, Struct, follows, member, unwrap
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.trace import STEP, Trace, without_root
from glft_schema.codec.typed_values import Typed
from glft_schema.errors import FormatError, LimitError, one_line, quote
from glft_schema.formats.declared import mistakes, parts_of
from glft_schema.limits import DEFAULTS, Limits
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource
from glft_schema.storage.streams import START
from glft_schema.tensors.region import TensorData, TensorFits

if TYPE_CHECKING:
    from glft_schema.formats.format import Format

NAMELESS = (Check, construct.Const, type(construct.Pass), type(construct.Terminated))  # fields that need no name
RANKS = (2, 1, 3, 4)  # dims of the tensor in a file; a format may refuse some


def first_fault(format: Format) -> str | None:
    """Returns the first field that fails in files without tensors or with one, and how, or None.

    A format may refuse the trial's values by a rule.
    """
    for name, expected, holds in _requirements(format):
        if not holds:
            return f"{name}: expected {expected}"
    for path, expected in mistakes(format.struct):
        return f"{path}: expected {expected}"
    try:
        with Limits(**DEFAULTS):
            for path, problem in _faults_of_fields(format.struct):
                return f"{path}: {problem}"
            if format.sniff:
                format.sniff(bytes(START))
            if format.struct.flagbuildnone and not format.has_tensors:
                format.build({})
            refusals = [_try_file(format, {}, {})]
            for type_ in [known for known in format.types if known.is_known][:1]:
                shapes = ([*[1] * (rank - 1), type_.least_row] for rank in RANKS)
                tried = [_try_file(format, _row(format, type_, shape), {"w": bytes(type_.nbytes(shape))}) for shape in shapes]
                refusals += tried[:1] if all(tried) else []
            for error in filter(None, refusals):
                if not error.rule and error.path.partition(" -> ")[0] in filter(None, ("metadata", format.table)):
                    raise error
    except FormatError as error:
        return f"{error.path}: a trial fails: {error.problem}"
    except Exception as error:  # of the declaration's constructs or functions: any class
        paths = [without_root(str(frame.f_locals.get("path", ""))) for frame, _ in walk_tb(error.__traceback__)]
        path = next((f"{path}: " for path in reversed(paths) if path), "")
        return f"{path}a trial raises {type(error).__name__}: {one_line(str(error))}"
    given = ("header", "metadata", "data", format.table)
    parts = [(part.name, part) for part in format.struct.subcons if part.name not in given]
    parts += [(f"header -> {part.name}", part) for part in getattr(format.field("header"), "subcons", ())]
    lacking = next((name for name, part in parts if not part.flagbuildnone), None) if format.has_tensors else None
    return lacking and f"{lacking}: expected a default for new files, such as Default(u32, 0)"


def _requirements(format: Format) -> Iterator[tuple[str, str, Any]]:
    """Yields what no trial shows: a field, what is expected of it, and whether it holds. Each may
    rely on those before it."""
    yield "format", "another name of a region", format.field("format") is None  # Container.build takes the format under it
    if not format.has_tensors and not [*format.types]:
        header, metadata = (format.field(name) for name in ("header", "metadata"))
        yield "header", "a Struct(...)", header is None or isinstance(header, Struct)
        yield "metadata", "KeyValues(...) or KeyValueLines(...)", isinstance(metadata, KeyValues | KeyValueLines | None)
        return
    is_last = format.regions[-1:] == ["data"] and isinstance(format.field("data"), TensorData)
    yield "data", 'a last region "data" / TensorData("tensors")', is_last
    table = format.field(format.table)
    is_table = isinstance(table, Table) or hasattr(table, "row")
    yield format.table, "Table(this.header.n_tensors, Row), with a Struct(...)", is_table and isinstance(format.row, Struct)
    fields = [member(format.row, name) for name in ("name", "dims", "offset")]
    is_row = None not in fields and isinstance(member(format.row, "shape"), Derived)
    yield format.table, 'the fields "name", "dims", "shape" / Derived(this.dims), "dtype" and "offset"', is_row
    is_own = getattr(member(format.row, "dtype"), "table", None) is format.types
    yield format.table, f'"dtype" / TypeCode(u8, TYPES), with the types {format.types.kind}', is_own
    fits = any(isinstance(rule, TensorFits) for rule in format.row.subcons)
    yield format.table, 'the rule TensorFits("toy-dims", "dims")', fits
    alignment = format.field("alignment")
    of = alignment.of if isinstance(alignment, Derived) else Constant(1 if alignment is None else 0)
    is_number = not isinstance(of, Constant) or (type(of.value) is int and of.value > 0)
    yield "alignment", "Derived(64), with a number above 0 or an expression", is_number


def _faults_of_fields(declared: construct.Struct) -> Iterator[tuple[str, str]]:
    """Yields the path of each field without a name, and of each one that refuses its default or has
    a rule that does, and the problem. A default that depends on other fields is not tried."""
    for path, struct, _ in parts_of(declared):
        last = "the start"
        for part in struct.subcons if isinstance(struct, construct.Struct) else ():
            if not part.name and not isinstance(field := unwrap(part), NAMELESS):
                yield path or "struct", f'expected a name of each field, "x" / u8, found {quote(field)} after {last}'
            last = part.name or last
            if isinstance(member(struct, part.name), construct.Default):
                rules = (rule for rule in struct.subcons if isinstance(rule, Check) and rule.needs() == {part.name})
                try:
                    Struct(part, *rules).build({})
                except FormatError as error:
                    yield STEP.join(filter(None, (path, error.path))), f"its default is refused: {error.problem}"
                except (KeyError, AttributeError):
                    continue


def _try_file(format: Format, row: dict[str, Any], data: dict[str, bytes]) -> FormatError | None:
    """Builds and parses a file with at most one tensor. Returns the error if its values are
    refused, and raises any other error."""
    regions: dict[str, Any] = {format.table: [row] if row else [], "data": data} if format.has_tensors else {}
    if format.metadata is not None:
        regions["metadata"] = _entries(format)
    for part in format.struct.subcons:
        if part.name == "header" or not format.has_tensors:
            regions |= _sample(part)
    try:
        stored, _ = format.build(regions, forging=True)
    except FormatError as error:
        return error
    except Exception:
        if format.has_tensors:
            raise
        return None  # a construct that does not take the sample
    try:
        record = _parse(format, stored)
    except FormatError as error:
        if error.rule or isinstance(error, LimitError):
            return error
        raise
    _check_equal(format, record, regions)
    if not format.claims(stored[:START]):
        raise FormatError(f"expected the start of its files, {stored[:START]!r}, found {format.magics!r}", "magics")
    _parse(format, stored, trace=Trace(), findings=[])  # with the rules
    try:
        format.build(record)
    except FormatError as error:
        return error
    return None


def _sample(part: construct.Construct) -> dict[str, Any]:
    """Returns a value of a field by its name; nothing if building needs none."""
    if not part.name or follows(part) or part.flagbuildnone:
        return {}
    declared: Any = unwrap(part)
    if isinstance(declared, Struct):
        return {part.name: {name: value for inner in declared.subcons for name, value in _sample(inner).items()}}
    lists, texts = (construct.Array, Numbers, Strings, Sizes), (construct.Bytes, construct.GreedyBytes.__class__)
    samples: tuple[tuple[Any, Any], ...] = ((Text, ""), (texts, b""), (lists, []))
    sample = next((sample for kind, sample in samples if isinstance(declared, kind)), 0)
    if isinstance(count := getattr(declared, "count", None), Constant):
        item: Any = Text(u8) if isinstance(declared, Strings) else getattr(declared, "subcon", u8)
        sample = [_sample("item" / item).get("item")] * count.value
    return {part.name: sample}


def _row(format: Format, type_: Any, shape: list[int]) -> dict[str, Any]:
    row = {"name": "w", "dims": format.dims_of(shape), "dtype": type_, "offset": 0}
    if format.order is not None:
        format.order(row)
    return row


def _entries(format: Format) -> dict[str, Any]:
    """Returns metadata: a text, or values of the first types of numbers and texts."""
    if not isinstance(format.metadata, KeyValues):
        return {"k": "v"}
    entries = dict[str, Any]()
    for kind, value in ((Number | construct.FormatField, 1), (Text, "v")):
        names = [type_.name for type_ in format.metadata.types if isinstance(type_.field, kind)]
        entries |= {f"k.{name}": Typed(value, name) for name in names[:1]}
    return entries


def _parse(format: Format, stored: bytes, **params: Any) -> Any:
    with our_errors():
        return format.struct._parse(Cursor(BytesSource(stored)), new_context(True, **params), "(parsing)")


def _check_equal(format: Format, record: Any, regions: dict[str, Any]) -> None:
    """Raises FormatError if a file is not parsed as it was built."""
    metadata = {key: getattr(value, "value", value) for key, value in regions.get("metadata", {}).items()}
    compared: list[tuple[str, Any, Any]] = [("metadata", metadata, dict(record["metadata"]) if metadata else {})]
    if format.has_tensors:
        names = [row["name"] for row in regions[format.table]]
        compared.append((format.table, names, [row.name for row in record[format.table]]))
    for region, built, found in compared:
        if built != found:
            advice = "the number before it must be a Count of it"
            raise FormatError(f"expected {quote(built)}, as built, found {quote(found)}: {advice}", region)
    if not format.has_tensors:
        return
    for name, payload in regions["data"].items():
        if (stored := bytes(record["data"][name].raw)) != payload:
            raise FormatError(f"expected the payload at its offset, found {quote(stored)}", "data")
    order = getattr(record.get("header"), "byte_order", record["data"].order)
    if order != record["data"].order:
        raise FormatError(
            f"expected ByteOrderOf({order.upper()}), which sets the order of what follows", "header -> byte_order"
        )
