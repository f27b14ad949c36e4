"""How much this reader puts up with: its limits, each with its reason, in one place.

A limit is no rule of a format. What goes past one raises `LimitError`, which says so and names it, and the caller may raise it:

    with Limits(tensors=1_000_000):
        file = Container.parse_file(path)

Counts and lengths that a file has no room for are no matter of limits: these files are cut off or wrong, and are refused first.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any

from construct.expr import ExprMixin

from glft_schema.errors import LimitError, SchemeError, shown


def _limit(default: int, of: str, why: str) -> int:
    made: int = field(default=default, metadata={"of": of, "why": why})
    return made


@dataclass(frozen=True)
class Limits:
    """What files may have at most. Used with ``with``: holds for whatever the block reads or builds, in its thread.

    What is not given is as it is without a block. A file remembers the limits that it was opened with.

    Raises:
        SchemeError: for a limit that is no integer from 0 on.
    """

    # fmt: off
    tensors: int = _limit(1 << 17, "rows of a file's table of tensors",
        "each takes some 20 us and 600 bytes; models with a tensor for each expert have tens of thousands")
    keys: int = _limit(1 << 17, "entries of a file's metadata",
        "each takes some 10 us; models have dozens. A vocabulary is one entry, however many tokens it has")
    arrays: int = _limit(1 << 17, "arrays in a file's metadata, those in arrays included",
        "each takes some 10 us and is an object; no model is known that has nested ones")
    nesting: int = _limit(16, "levels of arrays in arrays",
        "each takes room on Python's stack")
    dims: int = _limit(64, "dims of a tensor",
        "numpy's own limit")
    alignment: int = _limit(1 << 20, "bytes, of which the places of payloads are multiples",
        "no page of memory is larger, and each payload is padded by up to as much")
    text: int = _limit(1 << 28, "bytes of a string of GGUF: a key, a value, a name",
        "it is held in memory as a whole")
    strings: int = _limit(1 << 24, "strings of an array",
        "there is no knowing where one ends without looking at those before; the largest vocabularies have a million")
    metadata: int = _limit(1 << 28, "bytes of GLFT's metadata",
        "it is held in memory and taken apart as a whole")
    stream: int = _limit(1 << 32, "bytes of a stream that is no regular file",
        "it is held in memory, and may never end; a larger file belongs on a disk, where it can be opened")
    manifest: int = _limit(1 << 28, "bytes of a manifest to check against",
        "it is held in memory; that is room for millions of tensors")
    # fmt: on

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SchemeError(f"expected an integer from 0 on for the limit {limit.name}, found {shown(value)}")

    def check(self, name: str, amount: int, path: str, of: str = "") -> None:
        """Raises LimitError where `amount`, of what is at `path`, is more than the limit `name` allows."""
        if amount > (most := getattr(self, name)):
            raise exceeded(name, f"{most}{of}", str(amount), path)

    def __enter__(self) -> Limits:
        _blocks.set((*_blocks.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _blocks.set(_blocks.get()[:-1])


DEFAULTS: dict[str, int] = vars(Limits())
_blocks: ContextVar[tuple[Limits, ...]] = ContextVar("limits", default=(Limits(),))


def current() -> Limits:
    """Returns the limits of the innermost block around the caller, or those that hold unless told otherwise."""
    return _blocks.get()[-1]


def limits_of(context: Any) -> Limits:
    """Returns the limits that the container being parsed or built keeps to."""
    limits: Limits = context["_params"].get("limits") or current()
    return limits


def exceeded(name: str, most: str, found: str, path: str) -> LimitError:
    """Returns the error that says that a limit does not allow what was found."""
    error = LimitError(f"expected at most {most}, a limit of this reader, found {found}", path)
    error.limit = name
    return error


class Allowed(ExprMixin):
    """The number that a limit allows, in expressions of declarations: ``len_(this.dims) <= Allowed("dims")``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, context: Any, *args: Any) -> int:
        number: int = getattr(limits_of(context), self.name)
        return number
