"""The context that fields see while a container is parsed, built or sized.

construct gives each field a context: a mapping of the fields before it in the same Struct, by name, that `this` stands for in
expressions. Each Struct has a context of its own, which holds that of the Struct around it. What is known of the container as a
whole are its `Parameters`, the same for all of them.

Fields of this package can also stand in a Struct of construct's, whose context is construct's own. So what may be missing there
is asked for by functions: `byte_order`, `limits_of`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Literal

import construct

from glft_schema.codec.trace import Trace
from glft_schema.errors import Finding
from glft_schema.limits import Limits, current

ByteOrder = Literal["little", "big"]
LITTLE: ByteOrder = "little"
BIG: ByteOrder = "big"


class Context(construct.Container):
    """The fields of a Struct so far, by attribute and by key, and what construct adds.

    Attributes:
        _: the context of the Struct around.
        _root: that of the outermost Struct.
        _params: the container's parameters.
        _io: the stream.
        _subcons: the declarations of the Struct's fields, by name.
        _parsing, _building, _sizing: what is being done.
    """

    if not TYPE_CHECKING:  # attributes are items of the mapping, whose class has this slot alone
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
    """What is known of a container as a whole: the context around its outermost Struct, and ``_params`` in all others.

    Attributes:
        byte_order: of its numbers; little-endian unless it is there.
        limits: those that it is parsed or built with; unless there, those that hold for the caller.
        trace: where the positions of fields are noted; None for a plain parse.
        starts: the first byte of each row, by the path of its table; filled by a plain parse for the one that locates an error.
        objects: how many rows and arrays there are so far, which their limit counts.
        findings: where broken rules are noted that not every reader enforces; there if findings are asked for.
        rules: the rule sets that building enforces beside the rules of every reader.
        forging: rules are not checked while building, to make bad files.
        dims: of a tensor's payload: the tensor's sizes in torch's order. ``out`` and ``in`` are those of the matrix.
    """

    if not TYPE_CHECKING:
        __slots__ = construct.Container.__slots__

    byte_order: ByteOrder
    limits: Limits
    trace: Trace | None
    starts: dict[str, array[int]]
    objects: int
    findings: list[Finding]
    rules: tuple[str, ...]
    forging: bool
    dims: list[int]


def new_context(parsing: bool, **parameters: Any) -> Parameters:
    """Returns the context around a whole container, with its parameters: see `Parameters`."""
    context = Parameters(_parsing=parsing, _building=not parsing, _sizing=False, **parameters)
    context._params = context
    return context


def byte_order(context: Context) -> ByteOrder:
    """Returns the byte order of the container being parsed or built."""
    order: ByteOrder = context["_params"].get("byte_order", LITTLE)
    return order


def limits_of(context: Context) -> Limits:
    """Returns the limits that the container being parsed or built keeps to."""
    limits: Limits = context["_params"].get("limits") or current()
    return limits
