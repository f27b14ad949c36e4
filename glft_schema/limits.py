"""Resource limits for untrusted files, with the reason for each default.

A limit is no rule of a format. What goes past one raises `LimitError`, which says so and names it, and the caller may raise it:

    with Limits(objects=1_000_000):
        file = Container.parse_file(path)

Counts and lengths that a file has no room for are no matter of limits: these files are cut off or wrong, and are refused first.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple

from glft_schema.errors import LimitError, OptionError, shown


class Maximum(NamedTuple):
    """How much of something there may be unless told otherwise, and why not more."""

    most: int
    of: str
    why: str


# fmt: off
LIMITS = {
    "objects":   Maximum(200_000, "tensors, entries of the metadata and arrays in it, all together",
                       "each takes 4 to 8 us and up to 600 bytes. The largest models known have 70,000 tensors, twice as "
                       "many where scales are tensors, too; a vocabulary is one entry"),
    "nesting":   Maximum(16,      "levels of arrays in arrays", "each takes room on Python's stack"),
    "dims":      Maximum(64,      "dims of a tensor", "numpy's own limit"),
    "alignment": Maximum(1 << 20, "bytes, of which the places of payloads are multiples",
                       "no page of memory is larger, and each payload is padded by up to as much"),
    "text":      Maximum(1 << 28, "bytes of a string of GGUF: a key, a value, a name", "it is held in memory as a whole"),
    "strings":   Maximum(1 << 24, "strings of an array",
                       "to know where one begins, those before are looked at; the largest vocabularies have a million"),
    "metadata":  Maximum(1 << 28, "bytes of GLFT's metadata", "it is held in memory and taken apart as a whole"),
    "stream":    Maximum(1 << 32, "bytes of a stream that is no regular file",
                       "it is held in memory, and may never end; a larger file belongs on a disk, where it can be opened"),
    "manifest":  Maximum(1 << 26, "bytes of a manifest to check against", "it is held in memory; it can have 400,000 tensors"),
}
# fmt: on
A_LIMIT = "a limit of this reader"


class Limits:
    """What files may have at most. Used with ``with``: holds for whatever the block reads or builds, in its thread.

    What is not given is as it is where it is made: in another block, as that says. A file keeps the limits it was opened with.

    Attributes:
        objects, nesting, dims, alignment, text, strings, metadata, stream, manifest: see `LIMITS`.

    Raises:
        OptionError: for a name that is no limit's, or a number that is no integer from 0 on.
    """

    def __init__(self, **given: int) -> None:
        for name, most in given.items():
            if name not in LIMITS:
                raise OptionError(f"expected one of the limits {', '.join(LIMITS)}, found {shown(name)}")
            if not isinstance(most, int) or isinstance(most, bool) or most < 0:
                raise OptionError(f"expected an integer from 0 on for the limit {name}, found {shown(most)}")
        around = _blocks.get()
        self._most: dict[str, int] = {**(around[-1]._most if around else DEFAULTS), **given}

    def __getattr__(self, name: str) -> int:
        if name not in LIMITS:
            raise AttributeError(f"no limit {name!r}; the limits are {', '.join(LIMITS)}")
        return self._most[name]

    def __eq__(self, other: object) -> bool:
        return self._most == other._most if isinstance(other, Limits) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Limits({', '.join(f'{name}={most}' for name, most in self._most.items() if most != DEFAULTS[name])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._most,)

    def check(self, name: str, amount: int, path: str, of: str = "") -> None:
        """Raises LimitError where `amount`, of what is at `path`, is more than the limit `name` allows."""
        if amount > (most := self._most[name]):
            raise exceeded(name, f"{most}{of}", str(amount), path)

    def __enter__(self) -> Limits:
        _blocks.set((*_blocks.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        blocks = list(_blocks.get())
        mine = max((i for i, block in enumerate(blocks) if block is self), default=None)
        if mine is not None:  # a generator may leave its block inside of another one
            del blocks[mine]
        _blocks.set(tuple(blocks))


DEFAULTS = {name: limit.most for name, limit in LIMITS.items()}
_blocks: ContextVar[tuple[Limits, ...]] = ContextVar("limits", default=())


def _restored(most: dict[str, int]) -> Limits:
    return Limits(**most)


def current() -> Limits:
    """Returns the limits of the innermost block around the caller, or those that hold unless told otherwise."""
    blocks = _blocks.get()
    return blocks[-1] if blocks else Limits()


def exceeded(name: str, most: str, found: str, path: str) -> LimitError:
    """Returns the error that says that a limit does not allow what was found."""
    error = LimitError(f"expected at most {most}, {A_LIMIT}, found {found}", path)
    error.limit = name
    return error
