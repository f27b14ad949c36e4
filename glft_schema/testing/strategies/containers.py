"""Whole files, valid by construction, as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from glft_schema.codec.rules import rule_sets
from glft_schema.describe.nodes import JsonTableNode, PaddingNode
from glft_schema.describe.schema import struct_of
from glft_schema.errors import SchemeError, quote
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_named
from glft_schema.tensor_types import TensorType
from glft_schema.testing.strategies.constructs import values_of
from glft_schema.testing.strategies.drafts import Draft
from glft_schema.testing.strategies.fitting import is_wanted
from glft_schema.testing.strategies.json_texts import respell, with_text
from glft_schema.testing.strategies.layouts import alignment_of
from glft_schema.testing.strategies.structs import MAX_BYTES, Knobs, drawing_context

MAX_TENSORS = 6
TRAILING = 3  # limit for the bytes after the last payload


def containers(
    format: str | Format,
    *,
    rules: str | Iterable[str] = (),
    types: Iterable[str] | None = None,
    max_tensors: int = MAX_TENSORS,
    max_bytes: int = MAX_BYTES,
) -> st.SearchStrategy[bytes]:
    """Returns a strategy of valid files as bytes; map it with ``Container.parse`` to open them.

    The files vary in everything that the rules allow: versions, byte orders, types, nested arrays,
    alignments, order of payloads, gaps, tied tensors and trailing bytes. Payloads are arbitrary
    bits, including NaN and infinite scales.

    Args:
        format: a `Format` or its name, such as ``gguf``.
        rules: the rule sets to satisfy, such as ``spec``, in addition to the required rules.
        types: the names of tensor types; by default all types of the format, and unknown ones.
        max_tensors: the maximum number of tensors in a file.
        max_bytes: the maximum total size of the payloads in bytes.

    Raises:
        OptionError: for an unknown format or rule set.
        SchemeError: for an unknown type.
    """
    declared = format if isinstance(format, Format) else format_named(format)
    allowed = None if types is None else tuple(_type(declared, name) for name in types)
    knobs = Knobs(rule_sets(rules), allowed, max_bytes, {declared.table: max_tensors})
    return _files(declared, knobs)


def _type(format: Format, name: str) -> TensorType:
    if isinstance(name, str) and name.lower() in format.types:
        return format.types[name.lower()]
    raise SchemeError(f"expected one of {', '.join(type_.scheme for type_ in format.types)}, found {quote(name)}")


@st.composite
def _files(draw: st.DrawFn, format: Format, knobs: Knobs) -> bytes:
    """Draws regions and payloads. Bytes without a field are arbitrary, unless rules guard them."""
    regions = draw(values_of(format.struct, drawing_context(knobs)))
    draft = Draft(format, {name: value for name, value in regions.items() if name != "data"}, b"")
    built = draft.head.regions
    whole = struct_of(format.struct)
    if isinstance(whole.field(format.table).node, JsonTableNode):
        rows = built[format.table]
        text = draw(respell(rows, is_plain=bool(knobs.rules)))
        draft = draft.with_json(format.table, with_text(rows, text))
    guarded = {check.field for check in whole.rules if is_wanted(check, knobs.rules)}
    payloads = _region(draw, built[format.table], regions.data, "data" not in guarded)
    if "data" in guarded or draw(st.booleans()):
        payloads += bytes(-len(payloads) % alignment_of(whole.field("data").node, built))
    else:
        payloads += draw(st.binary(max_size=TRAILING))
    for part in whole.fields:
        if isinstance(padding := part.node, PaddingNode) and part.name not in guarded and draw(st.booleans()):
            nbytes = len(built[part.name])
            may_lack = not payloads and padding.may_lack and padding.may_lack(built)
            stored = draw(st.binary(min_size=0 if may_lack else nbytes, max_size=nbytes))
            draft = draft.replace({part.name: stored})
    return draft.head.stored + payloads


def _region(draw: st.DrawFn, rows: Sequence[Any], payloads: dict[str, bytes], any_bytes: bool) -> bytes:
    """Returns the payloads, each at its row's offset, with gaps of zeros or any bytes."""
    region = bytearray()
    for row in sorted(rows, key=lambda row: (row.offset, len(payloads[row.name]))):
        gap = row.offset - len(region)
        if gap > 0:
            region += draw(st.binary(min_size=gap, max_size=gap)) if any_bytes and draw(st.booleans()) else bytes(gap)
        if gap >= 0:
            region += payloads[row.name]
    return bytes(region)
