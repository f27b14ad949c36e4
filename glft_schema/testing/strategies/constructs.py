"""Values that a construct can build, class by class: `values_of` is where a construct of one's own is taught."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

import construct
from construct.core import evaluate
from hypothesis import strategies as st

from glft_schema.codec import arrays, numbers, tables, type_codes
from glft_schema.codec import text as codec_text
from glft_schema.codec.context import BIG, LITTLE, ByteOrder, Context
from glft_schema.codec.metadata import KeyValues, TypedMetadata
from glft_schema.codec.metadata_lines import KeyValueLines, TextMetadata
from glft_schema.codec.rules import rule_sets
from glft_schema.codec.typed_values import ValueType
from glft_schema.describe.schema import LETTERS
from glft_schema.limits import Limits
from glft_schema.storage.tensor_bytes import tensor_over
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import TensorData
from glft_schema.testing.strategies.bits import floats, payloads
from glft_schema.testing.strategies.fitting import LONG, NOT_YET, evaluated, repeated
from glft_schema.testing.strategies.layouts import OPAQUE, place_of
from glft_schema.testing.strategies.lengths import fits
from glft_schema.testing.strategies.structs import drawing_context, struct_values

ITEMS = 4  # of a list whose length nothing says, at most
MANY = 256  # elements or bytes; of more, a few are there again and again
BYTES = 12  # of bytes and texts whose length nothing says


def from_construct(
    declared: construct.Construct, /, *, rules: str | Iterable[str] = (), **context: Context
) -> st.SearchStrategy[Any]:
    """Returns a strategy of values that ``declared.build`` takes.

    The fields of a Struct are drawn in order, each in the context of those before it, and within the rules that guard it.
    Counts and whatever else follows from other fields are left out: building computes them.

    Args:
        declared: a construct made of the classes that `values_of` knows.
        rules: the rule sets that are kept to, such as ``spec``; what no reader can do without is kept to in any case.
        context: as for ``declared.build``; ``_root`` is what ``this._root`` finds where the construct is only a part.

    Raises:
        NotImplementedError: when a value is drawn, for a class of construct that nobody has taught `values_of`.
        OptionError: for another rule set.
    """
    return _values(declared, rule_sets(rules), context)


@st.composite
def _values(draw: st.DrawFn, declared: construct.Construct, rules: Sequence[str], context: Mapping[str, Any]) -> Any:
    return draw(values_of(declared, drawing_context(rules=rules, **context)))


@singledispatch
def values_of(declared: Any, context: Context) -> st.SearchStrategy[Any]:
    """Returns a strategy of what `declared` builds from, in `context`: the fields before it, as construct's contexts have them.

    ``@values_of.register`` teaches it a class.

    Raises:
        NotImplementedError: for a class that it does not know.
    """
    name = type(declared).__name__
    raise NotImplementedError(
        f"{name} has no strategy: teach it with @glft_schema.testing.strategies.values_of.register({name})"
    )


@values_of.register(construct.Renamed)
@values_of.register(construct.Rebuffered)
@values_of.register(construct.Aligned)
@values_of.register(construct.Prefixed)
@values_of.register(construct.Padded)
def _(declared: construct.Subconstruct, context: Context) -> st.SearchStrategy[Any]:
    return values_of(declared.subcon, context)


@values_of.register
def _(declared: construct.Adapter, context: Context) -> st.SearchStrategy[Any]:
    return values_of(declared.subcon, context).map(lambda value: declared._decode(value, context, "(drawing)"))


@values_of.register
def _(declared: construct.Validator, context: Context) -> st.SearchStrategy[Any]:
    """What the validator lets through; of construct's OneOf its values, which would otherwise have to be waited for."""
    values = values_of(declared.subcon, context)
    tells = inspect.getclosurevars(declared._validate).nonlocals.get("validator")
    if callable(tells) and getattr(tells, "__qualname__", "").startswith("OneOf.<locals>"):  # it is a function of construct's
        values = st.sampled_from(list(inspect.getclosurevars(tells).nonlocals["valids"]))
    return values.filter(lambda value: declared._validate(value, context, "(drawing)"))


@values_of.register
def _(declared: construct.LazyBound, context: Context) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: values_of(declared.subconfunc(), context))


@values_of.register
def _(declared: tables.Nested, context: Context) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: values_of(declared.subcon, context))


@values_of.register(construct.Struct)
def _(declared: construct.Struct, context: Context) -> st.SearchStrategy[Any]:
    return struct_values(declared, context, values_of)


# What one value is


@values_of.register
def _(declared: construct.Default, context: Context) -> st.SearchStrategy[Any]:
    return st.just(evaluate(declared.value, context)) | values_of(declared.subcon, context)


@values_of.register
def _(declared: construct.Const, context: Context) -> st.SearchStrategy[Any]:
    return st.just(declared.value)


@values_of.register(type(construct.Pass))
@values_of.register(type(construct.Terminated))
@values_of.register(construct.Seek)
@values_of.register(construct.Probe)
def _(declared: Any, context: Context) -> st.SearchStrategy[Any]:
    return st.none()


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    """Returns integers of a width: small ones, extremes, and any."""
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.sampled_from([0, 1, greatest, least]) | st.integers(least, greatest)


@values_of.register
def _(declared: construct.FormatField, context: Context) -> st.SearchStrategy[Any]:
    kind, bits = LETTERS[declared.fmtstr[-1]], 8 * declared.length
    if kind.startswith("f"):
        return st.floats(width=bits)
    return integers(bits, kind.startswith("i"))


@values_of.register
def _(declared: construct.BytesInteger, context: Context) -> st.SearchStrategy[int]:
    return integers(8 * evaluate(declared.length, context), declared.signed)


@values_of.register(type(construct.VarInt))
def _(declared: Any, context: Context) -> st.SearchStrategy[int]:
    return st.integers(0, 1 << 64)


@values_of.register(type(construct.Flag))
def _(declared: Any, context: Context) -> st.SearchStrategy[bool]:
    return st.booleans()


@values_of.register(construct.Enum)
@values_of.register(construct.Mapping)
def _(declared: Any, context: Context) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(declared.encmapping))


@values_of.register
def _(declared: numbers.Number, context: Context) -> st.SearchStrategy[Any]:
    if declared.is_float:
        return floats(declared.numpy_dtype())
    return integers(8 * declared.itemsize, declared.is_signed)


@values_of.register
def _(declared: numbers.Picked, context: Context) -> st.SearchStrategy[int]:
    return values_of(declared.pick(context), context)


@values_of.register
def _(declared: numbers.ByteOrderOf, context: Context) -> st.SearchStrategy[Any]:
    def note(order: ByteOrder) -> ByteOrder:
        context._params.byte_order = order
        return order

    return st.sampled_from([LITTLE, BIG]).map(note)


@values_of.register
def _(declared: type_codes.TypeCode, context: Context) -> st.SearchStrategy[Any]:
    """Types of the table, those of values that hold others more often; where others are let through, these too."""
    allowed = context._params._drawing.types
    types = [type_ for type_ in declared.table if allowed is None or not isinstance(type_, TensorType) or type_ in allowed]
    holders = [type_ for type_ in types if isinstance(type_, ValueType) and isinstance(type_.field, tables.Nested)]
    known = st.sampled_from(types + holders * 3)
    if declared.table.unknown is None or allowed is not None:
        return known
    codes = st.integers(0, (1 << 8) - 1) | st.integers(0, (1 << 8 * int(declared.sizeof())) - 1)
    return st.integers(0, 15).flatmap(lambda n: known if n else codes.map(declared.table.__getitem__))


@values_of.register
def _(declared: construct.Switch, context: Context) -> st.SearchStrategy[Any]:
    return values_of(declared.cases.get(evaluate(declared.keyfunc, context), declared.default), context)


@values_of.register
def _(declared: construct.IfThenElse, context: Context) -> st.SearchStrategy[Any]:
    return values_of(declared.thensubcon if evaluate(declared.condfunc, context) else declared.elsesubcon, context)


@values_of.register(type(construct.Error))
def _(declared: Any, context: Context) -> st.SearchStrategy[Any]:
    return st.nothing()


# Bytes and text


@values_of.register
def _(declared: construct.Bytes, context: Context) -> st.SearchStrategy[bytes]:
    size = evaluated(declared.length, context)
    if size is NOT_YET:
        return st.binary(max_size=BYTES)
    if not 0 <= size <= LONG:
        return st.nothing()
    return st.binary(min_size=size, max_size=size) if size <= MANY else payloads(size)


@values_of.register(type(construct.GreedyBytes))
def _(declared: Any, context: Context) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=BYTES)


@values_of.register
def _(declared: construct.StringEncoded, context: Context) -> st.SearchStrategy[str]:
    """Texts after their length, up to the end or up to a zero, and filled up with zeros."""
    inner = declared.subcon
    if isinstance(inner, (construct.Prefixed, type(construct.GreedyBytes))):
        return st.text(st.characters(codec=declared.encoding), max_size=BYTES)
    if not isinstance(inner, (construct.NullTerminated, construct.FixedSized)):
        raise NotImplementedError(f"texts in {type(inner).__name__} have no strategy")
    size = evaluated(inner.length, context) if isinstance(inner, construct.FixedSized) else BYTES
    if size is not NOT_YET and not 0 <= size <= LONG:
        return st.nothing()
    most = BYTES if size is NOT_YET else min(size, BYTES)
    texts = st.text(st.characters(codec=declared.encoding, exclude_characters="\0"), max_size=most)
    return texts.filter(lambda text: fits(declared, text, context))


@values_of.register
def _(declared: codec_text.Text, context: Context) -> st.SearchStrategy[str]:
    stored = st.binary(max_size=BYTES).map(lambda text: text.decode("utf-8", "surrogateescape"))
    return st.text(max_size=BYTES) if declared.strict else st.text(max_size=BYTES) | stored


# Lists


def lists_of(elements: st.SearchStrategy[Any], count: Any, context: Context) -> st.SearchStrategy[Any]:
    """Returns lists of so many elements, or of a few where their count is one that follows from them."""
    size = evaluated(count, context)
    if size is NOT_YET:
        return st.lists(elements, max_size=context._params._drawing.most.get(context.get("_field"), ITEMS))
    if not 0 <= size <= LONG:
        return st.nothing()
    if size <= MANY:
        return st.lists(elements, min_size=size, max_size=size)
    return st.lists(elements, min_size=1, max_size=ITEMS).map(lambda few: repeated(few, size))


@values_of.register
def _(declared: construct.Array, context: Context) -> st.SearchStrategy[list[Any]]:
    if isinstance(declared.subcon, tables.Nested) and declared.subcon.level > Limits().nesting:  # lists may still be empty
        return st.just([])
    return lists_of(values_of(declared.subcon, context), declared.count, context)


@values_of.register
def _(declared: construct.GreedyRange, context: Context) -> st.SearchStrategy[list[Any]]:
    return st.lists(values_of(declared.subcon, context), max_size=ITEMS)


@values_of.register
def _(declared: construct.FocusedSeq, context: Context) -> st.SearchStrategy[list[Any]]:
    if [part.name for part in declared.subcons] != ["count", "items"]:
        raise NotImplementedError("of construct's FocusedSeq only PrefixedArray has a strategy")
    inner = Context(_=context, _params=context._params, _parsing=False, _building=True, _sizing=False)
    inner._root = context.get("_root", inner)  # its items stand one level deeper
    return st.lists(values_of(declared.subcons[1].subcon.subcon, inner), max_size=ITEMS)


@values_of.register
def _(declared: numbers.Sizes, context: Context) -> st.SearchStrategy[list[int]]:
    return st.lists(values_of(declared.size, context), max_size=min(getattr(Limits(), declared.limit), ITEMS))


@values_of.register
def _(declared: arrays.Numbers, context: Context) -> st.SearchStrategy[list[Any]]:
    return lists_of(values_of(declared.number, context), declared.count, context)


@values_of.register
def _(declared: arrays.Strings, context: Context) -> st.SearchStrategy[list[str]]:
    return lists_of(values_of(codec_text.Text(declared.length), context), declared.count, context)


@values_of.register
def _(declared: KeyValues, context: Context) -> st.SearchStrategy[TypedMetadata]:
    rows = values_of(declared.subcon, context)
    return rows.map(declared.of_rows)


@values_of.register
def _(declared: KeyValueLines, context: Context) -> st.SearchStrategy[TextMetadata]:
    keys = st.text(st.characters(codec="utf-8", exclude_characters="=\n"), min_size=1, max_size=BYTES)
    entries = st.dictionaries(
        keys, st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=BYTES), max_size=ITEMS
    )
    return st.builds(TextMetadata, entries, st.booleans())


# Payloads


@values_of.register
def _(declared: numbers.TensorField, context: Context) -> st.SearchStrategy[Any]:
    """Tensors of any bits, blocks among them."""
    shape = declared.shape(context)
    nbytes = math.prod(shape) * declared.number.itemsize
    return payloads(nbytes).map(lambda bits: tensor_over(memoryview(bytearray(bits)), declared.number.dtype, shape))


@values_of.register
def _(declared: TensorData, context: Context) -> st.SearchStrategy[dict[str, bytes]]:
    return payloads_of(context[declared.table])


@st.composite
def payloads_of(draw: st.DrawFn, rows: Sequence[Any]) -> dict[str, bytes]:
    """Draws a payload for each row; rows of one place share it."""
    made: dict[tuple[Any, ...], bytes] = {}
    for row in rows:
        if (place := place_of(row)) not in made:
            is_opaque = not row.dtype.is_known
            made[place] = draw(payloads(draw(st.integers(1, OPAQUE)) if is_opaque else row.dtype.nbytes(row.shape)))
    return {row.name: made[place_of(row)] for row in rows}
