"""The context of a field while a container is parsed, built or sized.

construct passes a context to each field: a mapping from the names of the earlier fields of the
Struct to their values. Expressions refer to it as ``this``. Each Struct has its own context, nested
in that of the enclosing Struct. All contexts share the container's `Parameters`.

Fields of this package also work in construct's own Structs, whose contexts may lack parameters.
`byte_order` and `limits_of` return the defaults there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import construct

from glft_schema.codec.trace import Trace
from glft_schema.errors import Finding
from glft_schema.limits import Limits, current

__all__ = [
    "BIG",
    "LITTLE",
    "Context",
    "Parameters",
    "byte_order",
]

ByteOrder = Literal["little", "big"]
LITTLE: ByteOrder = "little"
BIG: ByteOrder = "big"


class Context(construct.Container):
    """The fields of a Struct so far, by attribute and by key, and construct's own entries.

    Attributes:
        _: the outer Struct's context.
        _root: the outermost Struct's context.
        _params: the container's parameters.
        _io: the stream.
        _subcons: the declarations of the Struct's fields, by name.
        _parsing, _building, _sizing: the current operation.
    """

    if not TYPE_CHECKING:  # attributes are items of the mapping, whose class has only this slot
        __slots__ = construct.Container.__slots__

    _: Context
    _root: Context
    _params: Parameters
    _io: Any
    _subcons: Any
    _parsing: bool
    _building: bool
    _sizing: bool


class Parameters(Context):
    """A container's parameters: the outermost context, which all others have as ``_params``.

    Attributes:
        byte_order: of its numbers; little-endian by default.
        limits: its resource limits; the caller's by default.
        trace: records the positions of fields; None in a plain parse.
        objects: the number of rows and arrays so far, which the limit ``objects`` counts.
        templates: the number of characters of chat templates so far.
        findings: collects broken rules that not every reader enforces; only set if requested.
        spans: collects the spans of payloads, which building then does not write; only set if
            requested.
        alignment: a text before the payloads is padded to a multiple of it; 1 by default.
        positions: the first byte of each field and its declaration, by path, filled by building;
            only set if requested.
        rules: the rule sets that building enforces in addition to required rules.
        forging: whether building may produce invalid files. It then accepts any count, and checks
            rules only for `findings`.
        allow_truncated: whether the payloads may extend past the end of the file.
        dims: in a tensor's payload, its dims in torch's order. ``out`` and ``in`` are the matrix's
            dims.
        _drawing: what the strategies of `glft_schema.testing` draw; only set by them.
    """

    if not TYPE_CHECKING:
        __slots__ = construct.Container.__slots__

    byte_order: ByteOrder
    limits: Limits
    trace: Trace | None
    objects: int
    templates: int
    findings: list[Finding]
    spans: list[Any]
    alignment: int
    positions: dict[str, tuple[int, Any]]
    rules: tuple[str, ...]
    forging: bool
    allow_truncated: bool
    dims: list[int]
    _drawing: Any


def new_context(parsing: bool, **parameters: Any) -> Parameters:
    """Returns the outermost context of a container, see `Parameters`."""
    context = Parameters(_parsing=parsing, _building=not parsing, _sizing=False, **parameters)
    context._params = context
    return context


def byte_order(context: Context) -> ByteOrder:
    """Returns the byte order of the container being parsed or built."""
    order: ByteOrder = context["_params"].get("byte_order", LITTLE)
    return order


def limits_of(context: Context) -> Limits:
    """Returns the resource limits of the container being parsed or built."""
    limits: Limits = context["_params"].get("limits") or current()
    return limits
