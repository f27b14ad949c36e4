"""Mistakes in the declaration of a format, each with a sentence that says what to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import construct
from construct import this
from construct.expr import ExprMixin

from glft_schema.codec.arrays import Numbers, Strings
from glft_schema.codec.context import BIG, Context
from glft_schema.codec.expressions import Constant, Expression, FunctionCall, Length, Reference, as_expression, references_in
from glft_schema.codec.metadata import KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines, nbytes_of_lines
from glft_schema.codec.numbers import ByteOrderOf, Number, Picked, Sizes, TensorField, i8, u8
from glft_schema.codec.records import Record
from glft_schema.codec.rules import RULE_SETS, Check, Rule
from glft_schema.codec.structs import Count, Derived, Struct, follows, member, unwrap
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.errors import alternatives, quote
from glft_schema.formats.format import Format, ShardIndex, ShardKeys
from glft_schema.formats.trial import first_fault
from glft_schema.tensors.region import TensorData, TensorFits

Fields = tuple[construct.Struct, ...]  # a Struct, after the Structs that contain it

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


# Arguments that are numbers of this package: their size and byte order are used.
NUMBERS: dict[type, tuple[str, ...]] = {
    Text: ("length",),
    Strings: ("length",),
    Sizes: ("count", "size"),
    Picked: ("then", "otherwise"),
    Count: ("subcon",),
    TypeCode: ("subcon",),
    Numbers: ("number",),
}
A_NUMBER = "a number of glft_schema.codec, such as u32"
BYTE_ORDER = '"byte_order" / ByteOrderOf(BIG)'


def first_mistake(format: Format) -> str | None:
    """Returns the first mistake in a declaration and its correction, or None."""
    return next((f"{format.name}: {mistake}" for mistake in _mistakes(format)), None)


def _mistakes(format: Format) -> Iterator[str]:
    """Yields mistakes. Each may rely on the absence of those before it."""
    yield from _facts(format)
    yield from _names(format.struct)
    yield from _regions(format)
    yield from _magic(format)
    yield from _references(format.struct, ())
    yield from _byte_order(format.struct)
    if not any(isinstance(rule, TensorFits) for rule in format.row.subcons):
        yield f'{format.table}: a row needs the rule TensorFits("{format.name}-dims", "dims")'
    yield from filter(None, [first_fault(format)])


def _facts(format: Format) -> Iterator[str]:
    """Yields mistakes outside the Struct."""
    if not isinstance(format.name, str) or not format.name:
        yield f"write the name as text, found {format.name!r}"
    for name, texts, kind, example in (
        ("magics", format.magics, bytes, (b"TOY1",)),
        ("endings", format.endings, str, (".toy",)),
        ("keeps_to", format.keeps_to, str, RULE_SETS[:1]),
        ("unshared_by", format.unshared_by, str, RULE_SETS[:1]),
    ):
        if not isinstance(texts, tuple) or not all(isinstance(text, kind) and text for text in texts):
            yield f"write {name} as a tuple such as {example}, found {texts!r}"
    for rules in (*format.keeps_to, *format.unshared_by):
        if rules not in RULE_SETS:
            yield f"keeps_to and unshared_by have rule sets, {alternatives(RULE_SETS)}, found {rules!r}"
    if format.shards is not None and not isinstance(format.shards, (ShardKeys, ShardIndex)):
        yield f"write shards as ShardKeys(...) or ShardIndex('.index.json'), found {format.shards!r}"
    if not isinstance(format.entries, Mapping):
        yield f"write entries as a mapping of keys to texts, found {format.entries!r}"
    for name, function in (("sniff", format.sniff), ("order", format.order)):
        if function is not None and not callable(function):
            yield f"write {name} as a function, found {function!r}"
    if not format.magics and format.sniff is None:
        yield "give the first bytes of its files, magics=(b'TOY1',), or a function sniff that recognises them"
    for ending in format.endings:
        if not ending.startswith(".") or ending != ending.lower() or "." in ending[1:]:
            yield f"write an ending in lower case with one dot, such as '.toy', found {ending!r}"
    if not isinstance(format.types, TypeTable):
        yield f"write types as TypeTable('toy', {{0: F32}}), with the code of each type, found {format.types!r}"


def _magic(format: Format) -> Iterator[str]:
    """Yields a constant at the start of files that no magic matches."""
    first, path = unwrap(format.struct), ""
    while isinstance(first, construct.Struct) and first.subcons:
        field = next((field for field in first.subcons if field.name), None)
        first, path = unwrap(field), _path(path, field.name if field else "")
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
        yield f"{path or 'struct'}: write Struct(...) of glft_schema.codec, found {quote(declared)}"
        return
    names = [field.name for field in declared.subcons if field.name]
    for name in names:
        if hasattr(Context, name) or hasattr(Record, name):
            yield f"{_path(path, name)}: choose another name, because {name} is a method of the Struct's value"
        if name.startswith("_") or not name.isidentifier():
            yield f"{_path(path, name)}: choose a name of letters, digits and '_', which does not begin with '_' or a digit"
        if names.count(name) > 1:
            yield f"{_path(path, name)}: choose another name, because another field has this one"
    if "byte_order" in names and not isinstance(found := member(declared, "byte_order"), ByteOrderOf):
        yield f"{_path(path, 'byte_order')}: write {BYTE_ORDER}, which sets the order of what follows, found {quote(found)}"
    for field in declared.subcons:
        inner = unwrap(field)
        while hasattr(inner, "row") or isinstance(inner, construct.Subconstruct):
            inner = inner.row if hasattr(inner, "row") else inner.subcon
        if isinstance(inner, construct.Struct):
            yield from _names(inner, _path(path, field.name))


def _regions(format: Format) -> Iterator[str]:
    """Yields mistakes in the regions, above all in the table and the payloads."""
    names = [field.name for field in format.struct.subcons if field.name]
    data = format.field("data")
    if not isinstance(data, TensorData) or names[-1] != "data":
        yield 'declare the payloads as the last region: "data" / TensorData("tensors"), with the name of the table'
    table = format.field(data.table)
    if type(table) is construct.Array or not (hasattr(table, "row") or hasattr(table, "subcon")):
        yield f'data: TensorData({data.table!r}) needs the region "{data.table}" / Table(this.header.n_tensors, Row)'
    if not isinstance(format.row, Struct):
        yield f"{data.table}: write the rows as Struct(...) of glft_schema.codec, found {quote(format.row)}"
    if "format" in names:
        yield "format: choose another name, because Container.build takes the format's name under it"
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
    if isinstance(offset := member(format.row, "offset"), Number) and offset.is_float:
        yield f"{data.table} -> offset: write {ROW['offset']}, found {offset!r}"
    yield from _without_default(format.row, ROW, data.table)
    if (alignment := format.field("alignment")) is not None:
        of = getattr(alignment, "of", None)
        constant = of.value if isinstance(of, Constant) else 1  # of an expression, unknown
        if not isinstance(alignment, Derived) or type(constant) is not int or constant <= 0:
            found = constant if isinstance(alignment, Derived) else alignment
            yield f'alignment: write "alignment" / Derived(64), with a number above 0 or an expression, found {quote(found)}'
    if isinstance(format.metadata, KeyValues):
        yield from _entries(format.metadata)


def _without_default(row: Any, known: Mapping[str, str], path: str) -> Iterator[str]:
    """Yields the fields of a row for which new files have no value."""
    for field in row.subcons:
        if field.name and field.name not in known and not follows(field) and not field.flagbuildnone:
            number = unwrap(field) if isinstance(unwrap(field), Number) else "u32"
            example = f'"{field.name}" / Default({number}, 0)'
            if "dtype" in known and ("size" in field.name or "bytes" in field.name):
                example += f', or for the bytes of the payload "{field.name}" / Count({number}, nbytes_of_payload(this))'
            yield f"{path} -> {field.name}: new files need a default of this field, such as {example}"


def _entries(declared: KeyValues) -> Iterator[str]:
    """Yields mistakes in the entries of typed metadata."""
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
    of_type = isinstance(value, construct.Switch) and as_expression(value.keyfunc) == Reference(("type",))
    if not of_type or not set(declared.types) <= set(value.cases):
        yield f"metadata -> value: write {ENTRY['value']}"
    for type_ in declared.types:
        if isinstance(type_.field, (construct.FormatField, construct.BytesInteger, type(construct.Flag))):
            value_type = f"ValueType({type_.name!r}, {type_.code}, ...)"
            yield f"metadata -> value: write {value_type} with {A_NUMBER}, found {quote(type_.field)}"
    yield from _without_default(entry, ENTRY, "metadata")


def _byte_order(declared: Struct) -> Iterator[str]:
    """Yields a byte order that is declared after numbers, which it would not apply to."""
    before = ""
    for path, field in _leaves(declared):
        if isinstance(field, Derived) and field.of == Constant(BIG):
            yield f"{path}: write {BYTE_ORDER}, which sets the order of what follows, found {quote(field)}"
        if isinstance(field, ByteOrderOf) and before:
            yield f"{path}: declare the byte order before all numbers, found it after {before}"
        is_neutral = isinstance(field, (construct.Bytes, construct.FormatField, Derived, Check)) or field in (u8, i8)
        before = before or ("" if is_neutral else path)


def _leaves(declared: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields fields in file order, each with its path, without the constructs around them."""
    while isinstance(declared, construct.Subconstruct):
        declared = declared.subcon
    if not isinstance(declared, construct.Struct):
        yield path, declared
        return
    for field in declared.subcons:
        yield from _leaves(field, _path(path, field.name or ""))


def _references(declared: Any, outer: Fields, path: str = "") -> Iterator[str]:
    """Yields references to fields that do not exist, and counts that building does not compute."""
    declared = unwrap(declared)
    if isinstance(declared, construct.Struct):
        for field in declared.subcons:
            is_plain = isinstance(field, Check) and not isinstance(field, Rule)  # a Rule has expressions
            if unknown := sorted(name for name in field.needs() or () if not member(declared, name)) if is_plain else []:
                names = ", ".join(other.name for other in declared.subcons if other.name)
                yield f"{_path(path, field.id)}: {unknown[0]} is not a field; these are: {names}"
            yield from _references(field, (*outer, declared), _path(path, field.name or getattr(field, "id", "")))
        return
    for part in (value for name, value in vars(declared).items() if not name.startswith("_")):
        for reference in references_in(part) if isinstance(part, (Expression, ExprMixin)) else ():
            if _referent(reference, outer) is None:
                yield f"{path}: {_write(reference)} is not a field; these are: {_visible(outer)}"
        for inner in part.values() if isinstance(declared, construct.Switch) and isinstance(part, dict) else [part]:
            if isinstance(inner, construct.Construct):
                yield from _references(inner, outer, path)
    if isinstance(declared, Count) and isinstance(declared.func, Constant):
        found = declared.func.value
        yield f"{path}: write the counted field as an expression, such as Count(u32, this._.tensors), found {found!r}"
    for name in NUMBERS.get(type(declared), ()):
        yield from _number(declared, name, path)
    if not isinstance(declared, (Table, KeyValueLines)):
        return
    number = declared.count if isinstance(declared, Table) else declared.size
    if isinstance(number, Constant) and isinstance(number.value, construct.Construct):
        example = "Table(this.header.n, Row)" if isinstance(declared, Table) else "KeyValueLines(this.header.n)"
        yield f"{path}: write {example}, with a Count in the header, found {quote(number.value)}"
    if isinstance(number, Reference):
        yield from _count(declared, number, outer, path)


def _number(declared: construct.Construct, name: str, path: str) -> Iterator[str]:
    """Yields an argument that is not a number of this package, or not an integer."""
    found, kind = getattr(declared, name), type(declared).__name__
    may_be_other = isinstance(declared, construct.Subconstruct)  # a code may be text, and a count a number of construct
    if not (may_be_other or isinstance(found, (Number, Picked))):
        yield f"{path}: write {kind} with {A_NUMBER}, found {quote(found)}"
    if isinstance(found, Number) and found.is_float and not isinstance(declared, (Numbers, Picked)):
        yield f"{path}: write {kind} with an integer, such as u32, found {found!r}"


def _count(declared: Table | KeyValueLines, number: Reference, outer: Fields, path: str) -> Iterator[str]:
    """Yields a number that is not a `Count` of the region it counts."""
    referent, region = _referent(number, outer), path.rpartition(" -> ")[2]
    up = "_." * (len(number.names) - 1)
    value = f"this.{up}{region}" if isinstance(declared, Table) else f"nbytes_of_lines(this.{up}{region})"
    example = f'"{number.names[-1]}" / Count(u32, {value})'
    if isinstance(referent, (Number, construct.FormatField, construct.Default)):
        yield f"{_write(number)} counts {region}, so building must compute it: {example}"
    if not isinstance(referent, Count) or not (of := references_in(referent.func)):
        return
    if of[0].names[-1] != region:
        yield f"{_write(number)} counts {of[0].names[-1]}, but {region} is read by it: {example}"
    if not (_is_length(referent.func) if isinstance(declared, Table) else _is_nbytes_of_lines(referent.func)):
        unit = "rows" if isinstance(declared, Table) else "bytes"
        yield f"{_write(number)} is the number of {unit} of {region}: {example}"


def _is_length(expression: Expression) -> bool:
    """Tells whether an expression is a field or its number of elements."""
    counted = expression.of if isinstance(expression, Length) and not expression.in_bytes else expression
    return isinstance(counted, Reference)


OF_LINES: Any = as_expression(nbytes_of_lines(this))


def _is_nbytes_of_lines(expression: Expression) -> bool:
    """Tells whether an expression is ``nbytes_of_lines`` of a field."""
    if not isinstance(expression, FunctionCall) or expression.function is not OF_LINES.function:
        return False
    return isinstance(expression.of, Reference)


def _referent(reference: Reference, outer: Fields) -> Any:
    """Returns the field that a reference names, or the field that contains the named value."""
    if reference.up >= len(outer):
        return None
    referent: Any = outer[0] if reference.of_root else outer[-1 - reference.up]
    for name in reference.names:
        if not isinstance(referent, construct.Struct):
            break
        referent = member(referent, name)
    return referent


def _write(reference: Reference) -> str:
    return ".".join(("this", *(("_root",) if reference.of_root else ("_",) * reference.up), *reference.names))


def _visible(outer: Fields) -> str:
    """Returns the fields that expressions can name, in words."""
    names = [f"this.{'_.' * up}{field.name}" for up, at in enumerate(reversed(outer)) for field in at.subcons if field.name]
    return ", ".join(names)


def _path(path: str, name: str) -> str:
    return f"{path} -> {name}" if path else name
