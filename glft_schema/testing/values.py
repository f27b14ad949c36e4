"""Values that a construct can build, drawn according to its node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import suppress
from functools import partial, singledispatch
from typing import Any

import construct
import numpy as np
from construct.core import evaluate
from hypothesis import strategies as st

import glft_schema.describe.nodes as s
from glft_schema.codec.context import ByteOrder, Context
from glft_schema.codec.metadata_lines import TextMetadata
from glft_schema.codec.rules import rule_sets
from glft_schema.codec.typed_values import ARRAY
from glft_schema.describe.byte_range import dims_of
from glft_schema.describe.schema import node_of, struct_of
from glft_schema.errors import UnsupportedError
from glft_schema.limits import Limits
from glft_schema.storage.tensor_bytes import array_over
from glft_schema.tensor_types import TensorType
from glft_schema.testing.fitting import LONG, inner_context, length_of, repeat, value_so_far
from glft_schema.testing.structs import OPAQUE, drawing_context, payload_key, struct_values

ITEMS = 4  # limit for lists without a declared length
MANY = 256  # elements or bytes; longer values repeat a shorter one
BYTES = 12  # limit for bytes and texts without a declared length
REFUSED = object()  # in place of a value that an adapter cannot decode
SPECIAL_NUMBERS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
# Repeated, each of these makes the scales of a payload NaN or infinite, wherever they are.
SPECIAL = [b"\xff", *{number.astype(kind).tobytes() for kind in (">f2", "<f2", ">f4", "<f4") for number in SPECIAL_NUMBERS[:2]}]
SPECIAL.sort()


def from_construct(
    declared: construct.Construct, /, *, rules: str | Iterable[str] = (), **context: Context
) -> st.SearchStrategy[Any]:
    """Returns a strategy of values that ``declared.build`` takes.

    The fields of a Struct are drawn in order, within the rules that guard them. Counts and other
    fields that building computes are left out.

    Args:
        declared: a construct whose classes are registered with `glft_schema.describe.node_of`.
        rules: the rule sets to satisfy, such as ``spec``, in addition to the required rules.
        context: as for ``declared.build``; ``_root`` is ``this._root`` for a part of a file.

    Raises:
        UnsupportedError: when a value is drawn, if a class is not registered with `node_of`.
        OptionError: for an unknown rule set.
    """
    contexts = st.builds(partial(drawing_context, rules=rule_sets(rules), **context))
    return contexts.flatmap(partial(values_of, declared))


@singledispatch
def values_of(node: Any, context: Context) -> st.SearchStrategy[Any]:
    """Returns a strategy of the values of a node, or of a construct.

    ``@values_of.register`` adds a class of nodes.

    Args:
        node: the node, without the wrappers around it, or a construct.
        context: the fields before the node, as in construct's contexts.

    Raises:
        UnsupportedError: if the class of the node is not registered.
    """
    name = type(node).__name__
    raise UnsupportedError(f"{name} has no strategy: add one with @glft_schema.testing.values_of.register({name})")


@values_of.register
def _(node: construct.Construct, context: Context) -> st.SearchStrategy[Any]:
    return wrapped_values(node_of(node, s.Schema(""), "value"), context)


def wrapped_values(node: s.Node, context: Context) -> st.SearchStrategy[Any]:
    """Returns a strategy of the values of a node with its wrappers."""
    values = values_of(node, context)
    for wrapper in node.wrappers:
        if wrapper.decode:
            decoded = partial(_decode, wrapper.decode, context)
            values = values.map(decoded).filter(lambda value: value is not REFUSED)
        length = length_of(node)
        size = length and value_so_far(context, length)
        options = [evaluate(option, context) for option in wrapper.options]
        options = [value for value in options if size in (None, len(value) if isinstance(value, Sized) else size)]
        if options and not (isinstance(options[0], list) and not options[0]):  # empty lists are drawn often enough
            values = st.sampled_from(options) if wrapper.is_closed else st.sampled_from(options) | values
    return values


def _decode(decode: Callable[[Any, Any, str], Any], context: Context, value: Any) -> Any:
    with suppress(construct.ConstructError):
        return decode(value, context, "(drawing)")
    return REFUSED


@values_of.register
def _(node: s.NumberNode, context: Context) -> st.SearchStrategy[Any]:
    """Integers, often 0, 1 or extreme; numpy floats of any bits, often special ones."""
    number, bits = node.of, 8 * node.size
    if number.is_float:
        dtype = number.numpy_dtype()
        stored = st.binary(min_size=node.size, max_size=node.size)
        return stored.map(lambda bits: np.frombuffer(bits, dtype)[0]) | st.sampled_from(list(SPECIAL_NUMBERS.astype(dtype)))
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if number.is_signed else (0, (1 << bits) - 1)
    return st.sampled_from([0, 1, greatest, least]) | st.integers(least, greatest)


@values_of.register
def _(node: s.ByteOrderNode, context: Context) -> st.SearchStrategy[Any]:
    def note(order: ByteOrder) -> ByteOrder:
        context._params.byte_order = order
        return order

    return st.sampled_from(node.orders).map(note)


@values_of.register
def _(node: s.CodeNode, context: Context) -> st.SearchStrategy[Any]:
    """Types of the table, arrays more often, and unknown types if the table allows them."""
    allowed = context._params._drawing.types
    types = [type_ for type_ in node.table if allowed is None or not isinstance(type_, TensorType) or type_ in allowed]
    known = st.sampled_from(types + [type_ for type_ in types if type_.name == ARRAY] * 3)
    if node.table.unknown is None or allowed is not None:
        return known
    codes = st.integers(0, (1 << 8) - 1) | wrapped_values(node.number, context)
    return st.integers(0, 15).flatmap(lambda n: known if n else codes.map(node.table.__getitem__))


@values_of.register
def _(node: s.BytesNode, context: Context) -> st.SearchStrategy[bytes]:
    size = value_so_far(context, node.size) if node.size else None
    if size is None:
        return st.binary(max_size=BYTES)
    if not 0 <= size <= LONG:
        return st.nothing()
    return st.binary(min_size=size, max_size=size) if size <= MANY else payloads(size)


@values_of.register
def _(node: s.TextNode, context: Context) -> st.SearchStrategy[str]:
    texts = st.text(st.characters(codec=node.encoding), max_size=BYTES)
    if node.is_strict:
        return texts
    return texts | st.binary(max_size=BYTES).map(lambda stored: stored.decode(node.encoding, "surrogateescape"))


@values_of.register
def _(node: s.LinesNode, context: Context) -> st.SearchStrategy[TextMetadata]:
    keys = st.text(st.characters(codec="utf-8", exclude_characters="=\n"), min_size=1, max_size=BYTES)
    values = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=BYTES)
    return st.builds(TextMetadata, st.dictionaries(keys, values, max_size=ITEMS), st.booleans())


@values_of.register
def _(node: s.JsonTableNode, context: Context) -> st.SearchStrategy[Any]:
    """Lists of rows with different names."""
    name = struct_of(node.item.declared).fields[0].name if isinstance(node.item, s.RefNode) else ""
    most = context._params._drawing.most.get(context.get("_field"), ITEMS)
    rows = wrapped_values(node.item, context).filter(lambda row: row[name] != node.reserved)
    return st.lists(rows, max_size=most, unique_by=lambda row: row[name])


@values_of.register
def _(node: s.JsonTextsNode, context: Context) -> st.SearchStrategy[dict[str, str]]:
    texts = st.text(st.characters(codec="utf-8"), max_size=BYTES)
    return st.dictionaries(texts, texts, max_size=ITEMS)


@values_of.register
def _(node: s.JsonNode, context: Context) -> st.SearchStrategy[Any]:
    integers = st.sampled_from([0, 1, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)
    kinds = {"integer": integers, "integers": st.lists(integers, max_size=ITEMS)}
    return kinds.get(node.kind, st.text(st.characters(codec="utf-8"), max_size=BYTES))


@values_of.register
def _(node: s.ListNode, context: Context) -> st.SearchStrategy[Any]:
    """Lists of the declared length; short lists if the length is computed from them."""
    if isinstance(node.item, s.RefNode) and node.item.level > Limits().nesting:
        return st.just([])
    items, size = wrapped_values(node.item, context), value_so_far(context, node.count)
    if size is None:
        most = context._params._drawing.most.get(context.get("_field"), ITEMS)
        return st.integers(0, 7).flatmap(lambda some: st.lists(items, min_size=min(some, 1, most), max_size=most))
    if not 0 <= size <= LONG:
        return st.nothing()
    if size <= MANY:
        return st.lists(items, min_size=size, max_size=size)
    return st.lists(items, min_size=1, max_size=ITEMS).map(lambda few: repeat(few, size))


@values_of.register
def _(node: s.CountedNode, context: Context) -> st.SearchStrategy[list[Any]]:
    return st.lists(wrapped_values(node.item, inner_context(context) if node.has_scope else context), max_size=ITEMS)


@values_of.register
def _(node: s.ArrayNode, context: Context) -> st.SearchStrategy[Any]:
    """Tensors of any bits, blocks among them."""
    shape = dims_of(node, context) + ([node.size] if node.weights else [])
    number = node.item.of if isinstance(node.item, s.NumberNode) else s.KINDS["u8"]
    nbytes = math.prod(shape) * number.itemsize
    return payloads(nbytes).map(lambda bits: array_over(memoryview(bytearray(bits)), number.dtype, shape))


def payloads(nbytes: int) -> st.SearchStrategy[bytes]:
    """Returns a strategy of a few bytes, repeated: large payloads cost no more than small ones."""
    if not nbytes:
        return st.just(b"")
    seeds = st.binary(min_size=1, max_size=min(nbytes, 64)) | st.sampled_from(SPECIAL)
    return seeds.map(lambda seed: (seed * -(-nbytes // len(seed)))[:nbytes])


@st.composite
def payloads_of(draw: st.DrawFn, rows: Sequence[Any]) -> dict[str, bytes]:
    """Draws a payload for each row; rows of equal offset, type and shape share one."""
    drawn: dict[tuple[Any, ...], bytes] = {}
    for row in rows:
        if (key := payload_key(row)) not in drawn:
            drawn[key] = draw(payloads(row.dtype.nbytes(row.shape) if row.dtype.is_known else draw(st.integers(1, OPAQUE))))
    return {row.name: drawn[payload_key(row)] for row in rows}


# fmt: off
values_of.register(s.RefNode,      lambda node, context: struct_values(struct_of(node.declared), context, wrapped_values))
values_of.register(s.EitherNode,   lambda node, context: wrapped_values(s.choose(node, context), context))
values_of.register(s.SwitchNode,   lambda node, context: wrapped_values(s.choose(node, context), context))
values_of.register(s.PayloadsNode, lambda node, context: payloads_of(context[node.table]))
values_of.register(s.DerivedNode,  lambda node, context: st.none())
values_of.register(s.PaddingNode,  lambda node, context: st.none())
# fmt: on
