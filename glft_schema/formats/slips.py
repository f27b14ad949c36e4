"""Slips in the declaration of a format, each with a sentence that says what to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import construct
from construct.expr import ExprMixin, FuncPath

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Length, Reference, read, references_in
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines, nbytes_of_lines
from glft_schema.codec.numbers import Number, TensorField
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.structs import Count, Derived, Struct, follows, member, unwrapped
from glft_schema.codec.tables import Table
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.errors import shown
from glft_schema.tensors.region import TensorData

if TYPE_CHECKING:
    from glft_schema.formats.format import Format

Fields = tuple[construct.Struct, ...]  # a Struct, after those around it

# The fields of a row that the package reads, with examples of their declarations.
ROW = {
    "name": '"name" / Text(u16)',
    "dims": '"dims" / Sizes(u8, u64, "dims")',
    "shape": '"shape" / Derived(this.dims), or Derived(reverse_(this.dims)) if the contiguous dim comes first',
    "dtype": '"dtype" / TypeCode(u8, TYPES)',
    "offset": '"offset" / u64, counted from the start of data',
}

# The fields of an entry of typed metadata.
ENTRY = {
    "key": '"key" / Text(u32)',
    "type": '"type" / TypeCode(u8, VALUES), with the table of KeyValues',
    "value": '"value" / Switch(this.type, {t: t.field for t in VALUES})',
}


def first_slip(format: Format) -> str | None:
    """Returns what is wrong with a declaration and what to write, or None."""
    return next((f"{format.name}: {slip}" for slip in _slips(format)), None)


def _slips(format: Format) -> Iterator[str]:
    """Yields slips. Each may rely on the absence of those before it."""
    for name, texts, kind, example in (
        ("magics", format.magics, bytes, (b"TOY1",)),
        ("endings", format.endings, str, (".toy",)),
    ):
        if not isinstance(texts, tuple) or not all(isinstance(text, kind) and text for text in texts):
            yield f"write {name} as a tuple such as {example}, found {texts!r}"
    if not format.magics and format.sniff is None:
        yield "give the first bytes of its files, magics=(b'TOY1',), or a function sniff that recognises them"
    for ending in format.endings:
        if not ending.startswith(".") or ending != ending.lower() or "." in ending[1:]:
            yield f"write an ending in lower case with one dot, such as '.toy', found {ending!r}"
    if not isinstance(format.types, TypeTable):
        yield f"write types as TypeTable('toy', {{0: F32}}), with the code of each type, found {format.types!r}"
    yield from _names(format.struct)
    yield from _regions(format)
    yield from _magic(format)
    yield from _references(format.struct, ())


def _magic(format: Format) -> Iterator[str]:
    """Yields a constant at the start of files by which they would not be recognised."""
    first, path = unwrapped(format.struct), ""
    while isinstance(first, construct.Struct) and first.subcons:
        field = next((field for field in first.subcons if field.name), None)
        first, path = unwrapped(field), _path(path, field.name if field else "")
    value = getattr(first, "value", None) if isinstance(first, (construct.Const, construct.Default)) else None
    if (
        isinstance(value, bytes)
        and not format.sniff
        and not any(m.startswith(value) or value.startswith(m) for m in format.magics)
    ):
        yield f"{path}: files begin with {value!r}, so write magics=({value!r},), found {format.magics!r}"


def _names(declared: Any, path: str = "") -> Iterator[str]:
    """Yields Structs of construct, and names of fields that cannot be used."""
    if not isinstance(declared, Struct):
        yield f"{path or 'struct'}: write Struct(...) of glft_schema.codec, found {shown(declared)}"
        return
    names = [field.name for field in declared.subcons if field.name]
    for name in names:
        if hasattr(Context, name) or hasattr(Record, name):
            yield f"{_path(path, name)}: choose another name, because {name} is a method of the Struct's value"
        if name.startswith("_") or not name.isidentifier():
            yield f"{_path(path, name)}: choose a name of letters, digits and '_', which does not begin with '_' or a digit"
        if names.count(name) > 1:
            yield f"{_path(path, name)}: choose another name, because another field has this one"
    for field in declared.subcons:
        inner = unwrapped(field)
        inner = getattr(inner, "row", getattr(inner, "subcon", inner))
        if isinstance(inner, construct.Struct):
            yield from _names(inner, _path(path, field.name))


def _regions(format: Format) -> Iterator[str]:
    """Yields slips in the regions, above all in the table and the payloads."""
    names = [field.name for field in format.struct.subcons if field.name]
    data = format.field("data")
    if not isinstance(data, TensorData) or names[-1] != "data":
        yield 'declare the payloads as the last region: "data" / TensorData("tensors"), with the name of the table'
    table = format.field(data.table)
    if type(table) is construct.Array or not (hasattr(table, "row") or hasattr(table, "subcon")):
        yield f'data: TensorData({data.table!r}) needs the region "{data.table}" / Table(this.header.n_tensors, Row)'
    for name, example in ROW.items():
        if member(format.row, name) is None:
            yield f"{data.table}: a row needs the field {name}: {example}"
    if not isinstance(member(format.row, "shape"), Derived):
        yield f"{data.table} -> shape: torch's order is computed from dims: {ROW['shape']}"
    dtype = member(format.row, "dtype")
    if not isinstance(dtype, TypeCode):
        yield f"{data.table} -> dtype: write {ROW['dtype']}"
    if dtype.table is not format.types:
        kinds = f"{format.types.kind}, found {dtype.table.kind}"
        yield f"{data.table} -> dtype: write TypeCode with the format's own table, {kinds}"
    if isinstance(dims := member(format.row, "dims"), (Number, TensorField, construct.FormatField)):
        yield f"{data.table} -> dims: write {ROW['dims']}, found {dims!r}"
    for field in format.row.subcons:
        if field.name and field.name not in ROW and not follows(field) and not field.flagbuildnone:
            example = f'"{field.name}" / Default({unwrapped(field) if isinstance(unwrapped(field), Number) else "u32"}, 0)'
            yield f"{data.table} -> {field.name}: new files need a default of this field, such as {example}"
    if (alignment := format.field("alignment")) is not None:
        of = getattr(alignment, "of", None)
        if not isinstance(alignment, Derived) or not (callable(of) or (type(of) is int and of > 0)):
            found = of if isinstance(alignment, Derived) else alignment
            yield f'alignment: write "alignment" / Derived(64), with a number above 0 or an expression, found {shown(found)}'
    if isinstance(format.metadata, KeyValues):
        yield from _entries(format.metadata)


def _entries(declared: KeyValues) -> Iterator[str]:
    """Yields slips in the entries of typed metadata."""
    if not isinstance(declared.types, TypeTable):
        yield f"metadata: write the value types as TypeTable('toy value', ValueType('int64', 1, i64)), found {declared.types!r}"
    entry = getattr(declared.subcon, "subcon", None)
    if not isinstance(declared.subcon, Table) or not isinstance(entry, Struct):
        yield f"metadata: write KeyValues(Table(this.header.n_kv, Entry), VALUES, once='toy-keys'), found {declared.subcon!r}"
    fields = {name: member(entry, name) for name in ENTRY}
    for name, example in ENTRY.items():
        if fields[name] is None:
            yield f"metadata: an entry needs the field {name}: {example}"
    if getattr(fields["type"], "table", None) is not declared.types:
        yield f"metadata -> type: write {ENTRY['type']}"
    value = fields["value"]
    of_type = isinstance(value, construct.Switch) and read(value.keyfunc) == Reference(("type",))
    if not of_type or not set(declared.types) <= set(value.cases):
        yield f"metadata -> value: write {ENTRY['value']}"


def _references(declared: Any, outer: Fields, path: str = "") -> Iterator[str]:
    """Yields expressions on fields that do not exist, and counts that building does not compute."""
    declared = unwrapped(declared)
    if isinstance(declared, construct.Struct):
        for field in declared.subcons:
            is_plain = isinstance(field, Check) and not isinstance(field, Rule)  # a Rule has expressions
            if unknown := sorted(name for name in field.needs() or () if not member(declared, name)) if is_plain else []:
                names = ", ".join(other.name for other in declared.subcons if other.name)
                yield f"{_path(path, field.id)}: {unknown[0]} is not a field; these are: {names}"
            yield from _references(field, (*outer, declared), _path(path, field.name or getattr(field, "id", "")))
        return
    for part in (value for name, value in vars(declared).items() if not name.startswith("_")):
        for reference in references_in(part) if isinstance(part, ExprMixin) else ():
            if _referent(reference, outer) is None:
                yield f"{path}: {_written(reference)} is not a field; these are: {_visible(outer)}"
        for inner in part.values() if isinstance(declared, construct.Switch) and isinstance(part, dict) else [part]:
            if isinstance(inner, construct.Construct):
                yield from _references(inner, outer, path)
    if isinstance(declared, Count) and not callable(declared.func):
        yield f"{path}: write the counted field as an expression, such as Count(u32, this._.tensors), found {declared.func!r}"
    if not isinstance(declared, (Table, KeyValueLines)):
        return
    number = declared.count if isinstance(declared, Table) else declared.size
    if isinstance(number, construct.Construct):
        example = "Table(this.header.n, Row)" if isinstance(declared, Table) else "KeyValueLines(this.header.n)"
        yield f"{path}: write {example}, with a Count in the header, found {shown(number)}"
    if isinstance(counting := read(number), Reference):
        yield from _count(declared, counting, outer, path)


def _count(declared: Table | KeyValueLines, number: Reference, outer: Fields, path: str) -> Iterator[str]:
    """Yields a number that is not a `Count` of the region it counts."""
    found, region = _referent(number, outer), path.rpartition(" -> ")[2]
    up = "_." * (len(number.names) - 1)
    value = f"this.{up}{region}" if isinstance(declared, Table) else f"nbytes_of_lines(this.{up}{region})"
    example = f'"{number.names[-1]}" / Count(u32, {value})'
    if isinstance(found, (Number, construct.FormatField, construct.Default)):
        yield f"{_written(number)} counts {region}, so building must compute it: {example}"
    if not isinstance(found, Count) or not isinstance(found.func, ExprMixin):
        return
    of = list(references_in(found.func))
    if of and of[0].names[-1] != region:
        yield f"{_written(number)} counts {of[0].names[-1]}, but {region} is read by it: {example}"
    if not (_is_length(found.func) if isinstance(declared, Table) else _is_nbytes_of_lines(found.func)):
        unit = "rows" if isinstance(declared, Table) else "bytes"
        yield f"{_written(number)} is the number of {unit} of {region}: {example}"


def _is_length(expression: ExprMixin) -> bool:
    """Tells whether an expression is a field or its number of elements."""
    read_ = read(expression)
    read_ = read_.of if isinstance(read_, Length) and not read_.in_bytes else read_
    return isinstance(read_, Reference)


def _is_nbytes_of_lines(expression: ExprMixin) -> bool:
    """Tells whether an expression is ``nbytes_of_lines`` of a field."""
    if not isinstance(expression, FuncPath):
        return False
    same = vars(expression)["_FuncPath__func"] is vars(nbytes_of_lines)["_FuncPath__func"]
    return same and isinstance(read(vars(expression)["_FuncPath__operand"]), Reference)


def _referent(reference: Reference, outer: Fields) -> Any:
    """Returns the field that a reference names, or a value of a field."""
    if reference.up >= len(outer):
        return None
    found: Any = outer[0] if reference.of_root else outer[-1 - reference.up]
    for name in reference.names:
        if not isinstance(found, construct.Struct):
            break
        found = member(found, name)
    return found


def _written(reference: Reference) -> str:
    return ".".join(("this", *(("_root",) if reference.of_root else ("_",) * reference.up), *reference.names))


def _visible(outer: Fields) -> str:
    """Returns the fields that expressions can name, in words."""
    names = [f"this.{'_.' * up}{field.name}" for up, at in enumerate(reversed(outer)) for field in at.subcons if field.name]
    return ", ".join(names)


def _path(path: str, name: str) -> str:
    return f"{path} -> {name}" if path else name
