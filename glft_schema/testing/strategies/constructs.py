"""Values that a construct can build, drawn by its node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

import construct
from construct.core import evaluate
from hypothesis import strategies as st

from glft_schema.codec.context import BIG, LITTLE, ByteOrder, Context
from glft_schema.codec.expressions import Expression
from glft_schema.codec.metadata_lines import TextMetadata
from glft_schema.codec.rules import rule_sets
from glft_schema.codec.typed_values import ARRAY
from glft_schema.describe import nodes as s
from glft_schema.describe.node_reader import sizes
from glft_schema.describe.schema import node_of, struct_of
from glft_schema.limits import Limits
from glft_schema.storage.tensor_bytes import tensor_over
from glft_schema.tensor_types import TensorType
from glft_schema.testing.strategies.bits import floats, payloads
from glft_schema.testing.strategies.fitting import LONG, NOT_YET, repeated, value_in, value_so_far
from glft_schema.testing.strategies.layouts import OPAQUE, place_of
from glft_schema.testing.strategies.structs import drawing_context, inner_context, struct_values

ITEMS = 4  # of a list without a declared length, at most
MANY = 256  # elements or bytes; longer values repeat a few
BYTES = 12  # of bytes and texts without a declared length, at most
REFUSED = object()  # in place of a value that an adapter cannot decode


def from_construct(
    declared: construct.Construct, /, *, rules: str | Iterable[str] = (), **context: Context
) -> st.SearchStrategy[Any]:
    """Returns a strategy of values that ``declared.build`` takes.

    The fields of a Struct are drawn in order, each in the context of those before it, and within the rules that guard it.
    Counts and other fields that building computes are left out.

    Args:
        declared: a construct made of the classes that `glft_schema.describe.node_of` knows.
        rules: the rule sets that are kept to, such as ``spec``, beside the rules of every reader.
        context: as for ``declared.build``; ``_root`` is the value of ``this._root`` if the construct is a part of a file.

    Raises:
        NotImplementedError: when a value is drawn, for a class of construct that `node_of` has not been taught.
        OptionError: for an unknown rule set.
    """
    return _values(declared, rule_sets(rules), context)


@st.composite
def _values(draw: st.DrawFn, declared: construct.Construct, rules: Sequence[str], context: Mapping[str, Any]) -> Any:
    return draw(values_of(declared, drawing_context(rules=rules, **context)))


@singledispatch
def values_of(node: Any, context: Context) -> st.SearchStrategy[Any]:
    """Returns a strategy of the values of a node, or of a construct.

    ``@values_of.register`` teaches it another class of node.

    Args:
        node: the node, without the wrappers around it, or a construct.
        context: the fields before it, as construct's contexts have them.

    Raises:
        NotImplementedError: for a class that it does not know.
    """
    name = type(node).__name__
    raise NotImplementedError(
        f"{name} has no strategy: teach it with @glft_schema.testing.strategies.values_of.register({name})"
    )


@values_of.register
def _(node: construct.Construct, context: Context) -> st.SearchStrategy[Any]:
    return wrapped_values(node_of(node, s.Schema(""), "value"), context)


def wrapped_values(node: s.Node, context: Context) -> st.SearchStrategy[Any]:
    """Returns a strategy of the values of a node with its wrappers."""
    values = values_of(node, context)
    for wrapper in node.wrappers:
        if wrapper.decode:
            values = _decoded(wrapper, values, context)
        if wrapper.options:
            options = st.sampled_from([evaluate(option, context) for option in wrapper.options])
            values = options if wrapper.is_closed else options | values
    return values


def _decoded(wrapper: s.Wrapper, values: st.SearchStrategy[Any], context: Context) -> st.SearchStrategy[Any]:
    decode = wrapper.decode
    assert decode

    def decoded(value: Any) -> Any:
        try:
            return decode(value, context, "(drawing)")
        except construct.ConstructError:
            return REFUSED

    return values.map(decoded).filter(lambda value: value is not REFUSED)


@values_of.register
def _(node: s.Ref, context: Context) -> st.SearchStrategy[Any]:
    return struct_values(struct_of(node.declared), context, wrapped_values)


# Numbers


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    """Returns integers of a width: small ones, extremes, and any."""
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.sampled_from([0, 1, greatest, least]) | st.integers(least, greatest)


@values_of.register
def _(node: s.Number, context: Context) -> st.SearchStrategy[Any]:
    number = s.KINDS[node.kind]
    return floats(number.numpy_dtype()) if number.is_float else integers(8 * node.size, number.is_signed)


@values_of.register
def _(node: s.ByteOrder, context: Context) -> st.SearchStrategy[Any]:
    def note(order: ByteOrder) -> ByteOrder:
        context._params.byte_order = order
        return order

    return st.sampled_from([LITTLE, BIG]).map(note)


@values_of.register
def _(node: s.Code, context: Context) -> st.SearchStrategy[Any]:
    """Types of the table, those of arrays more often; unknown types, too, if the table has them."""
    allowed = context._params._drawing.types
    types = [type_ for type_ in node.table if allowed is None or not isinstance(type_, TensorType) or type_ in allowed]
    known = st.sampled_from(types + [type_ for type_ in types if type_.name == ARRAY] * 3)
    if node.table.unknown is None or allowed is not None:
        return known
    codes = st.integers(0, (1 << 8) - 1) | wrapped_values(node.number, context)
    return st.integers(0, 15).flatmap(lambda n: known if n else codes.map(node.table.__getitem__))


@values_of.register(s.Either)
@values_of.register(s.Switch)
def _(node: s.Either | s.Switch, context: Context) -> st.SearchStrategy[Any]:
    return wrapped_values(s.choose(node, lambda expression: value_in(context, expression)), context)


@values_of.register(s.Derived)
@values_of.register(s.Padding)
def _(node: s.Node, context: Context) -> st.SearchStrategy[Any]:
    return st.none()


# Bytes and text


@values_of.register
def _(node: s.Bytes, context: Context) -> st.SearchStrategy[bytes]:
    size = value_so_far(context, node.size) if node.size else NOT_YET
    if size is NOT_YET:
        return st.binary(max_size=BYTES)
    if not 0 <= size <= LONG:
        return st.nothing()
    return st.binary(min_size=size, max_size=size) if size <= MANY else payloads(size)


@values_of.register
def _(node: s.Text, context: Context) -> st.SearchStrategy[str]:
    texts = st.text(st.characters(codec=node.encoding), max_size=BYTES)
    if node.is_strict:
        return texts
    return texts | st.binary(max_size=BYTES).map(lambda stored: stored.decode(node.encoding, "surrogateescape"))


@values_of.register
def _(node: s.Lines, context: Context) -> st.SearchStrategy[TextMetadata]:
    keys = st.text(st.characters(codec="utf-8", exclude_characters="=\n"), min_size=1, max_size=BYTES)
    values = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=BYTES)
    return st.builds(TextMetadata, st.dictionaries(keys, values, max_size=ITEMS), st.booleans())


# Lists


@values_of.register
def _(node: s.List, context: Context) -> st.SearchStrategy[Any]:
    """Lists of the declared length; short ones if that follows from them."""
    if isinstance(node.item, s.Ref) and node.item.level > Limits().nesting:
        return st.just([])
    items, size = wrapped_values(node.item, context), value_so_far(context, node.count)
    if size is NOT_YET:
        return st.lists(items, max_size=context._params._drawing.most.get(context.get("_field"), ITEMS))
    if not 0 <= size <= LONG:
        return st.nothing()
    if size <= MANY:
        return st.lists(items, min_size=size, max_size=size)
    return st.lists(items, min_size=1, max_size=ITEMS).map(lambda few: repeated(few, size))


@values_of.register
def _(node: s.Counted, context: Context) -> st.SearchStrategy[list[Any]]:
    return st.lists(wrapped_values(node.item, inner_context(context) if node.has_scope else context), max_size=ITEMS)


# Payloads


@values_of.register(s.Numbers)
@values_of.register(s.BlockArray)
def _(node: s.Numbers | s.BlockArray, context: Context) -> st.SearchStrategy[Any]:
    """Tensors of any bits, blocks among them."""

    def value(dim: Expression) -> Any:
        return value_in(context, dim)

    shape, kind = sizes(node.dims, value), "u8"
    if isinstance(node, s.Numbers):
        kind = node.number.kind
    else:
        shape.append(node.size)
    number = s.KINDS[kind]
    nbytes = math.prod(shape) * number.itemsize
    return payloads(nbytes).map(lambda bits: tensor_over(memoryview(bytearray(bits)), number.dtype, shape))


@values_of.register
def _(node: s.Payloads, context: Context) -> st.SearchStrategy[dict[str, bytes]]:
    return payloads_of(context[node.table])


@st.composite
def payloads_of(draw: st.DrawFn, rows: Sequence[Any]) -> dict[str, bytes]:
    """Draws a payload for each row; rows of equal offset, type and shape share one."""
    made: dict[tuple[Any, ...], bytes] = {}
    for row in rows:
        if (place := place_of(row)) not in made:
            is_opaque = not row.dtype.is_known
            made[place] = draw(payloads(draw(st.integers(1, OPAQUE)) if is_opaque else row.dtype.nbytes(row.shape)))
    return {row.name: made[place_of(row)] for row in rows}
