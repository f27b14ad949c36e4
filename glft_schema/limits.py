"""Resource limits for untrusted files, with the reason for each default.

A limit is not a rule of a format. A file that exceeds a limit raises `LimitError`, which names the
limit. The caller can increase it:

    with Limits(objects=1_000_000):
        file = Container.parse_file(path)

A count or length that exceeds the rest of the file raises `TruncatedError` instead, before any
limit is checked.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from glft_schema.errors import LimitError, OptionError, quote
from glft_schema.words import suggestion


class Maximum(NamedTuple):
    """A default limit: the maximum, what it counts, and the reason."""

    most: int
    of: str
    why: str


# fmt: off
LIMITS = {
    "objects":   Maximum(200_000, "tensors, metadata entries and arrays inside them, in total",
                       "each takes 4 to 8 us and up to 600 bytes. The largest known models have 70,000 tensors, twice as "
                       "many if scales are tensors; a vocabulary is one entry"),
    "nesting":   Maximum(16,      "levels of nested arrays", "parsing is recursive"),
    "dims":      Maximum(64,      "dims of a tensor", "numpy's limit"),
    "alignment": Maximum(1 << 20, "bytes of alignment of payloads",
                       "no memory page is larger, and each payload may need as much padding"),
    "text":      Maximum(1 << 28, "bytes of a string: a key, value or name", "it is held in memory"),
    "strings":   Maximum(1 << 24, "strings of an array",
                       "finding one requires scanning those before it; the largest vocabularies have a million"),
    "metadata":  Maximum(1 << 28, "bytes of GLFT metadata or of a JSON header", "it is held in memory and parsed as a whole"),
    "stream":    Maximum(1 << 32, "bytes of a stream other than a regular file",
                       "it is held in memory and may never end; save a larger file to disk and open it there"),
    "repeats":   Maximum(16, "times the stored bytes of the tensors of a torch file, or of those that a new file cannot share",
                       "a small file may have one tensor under thousands of names; models have an embedding under up to four"),
    "manifest":  Maximum(1 << 26, "bytes of a manifest", "it is held in memory; 400,000 tensors fit"),
    "whole_file": Maximum(1 << 26, "bytes of any other file that is read as a whole: an index, config, tokenizer, card or text",
                       "it is held in memory, and JSON takes up to 20 times its size; the largest tokenizers have 34 MB"),
    "download":  Maximum(0,       "bytes of a file that its server sends only as a whole",
                       "a header is 2 MB of a file of 70 GB; glft --download removes the limit"),
    "server_seconds": Maximum(10, "seconds that a server may be silent", "it is asked again, then given up"),
    "attempts":  Maximum(5,       "times that a server is asked for the same bytes",
                       "connections drop, and servers may be busy; the waits between the attempts grow to 2 s"),
    "parser_memory": Maximum(1 << 32, "bytes of data of the process in which other libraries parse a folder's files",
                       "a tokenizer of 262,000 tokens, among the largest, takes 0.7 GB"),
    "parser_seconds": Maximum(120, "processor seconds of that process, and a tenth of the wall seconds for one file",
                       "the same tokenizer takes 4 s"),
}
# fmt: on
MIB = 1 << 20
A_LIMIT = "a limit of glft_schema"


class Limits:
    """Limits on the files that a ``with`` block reads or builds, in its thread.

    Limits that are not given are inherited from the enclosing block. A file keeps the limits it was
    opened with.

    Attributes:
        objects, nesting, dims, alignment, text, strings, metadata, stream, repeats, manifest,
            whole_file, download, server_seconds, attempts, parser_memory, parser_seconds: see
            `LIMITS`.

    Raises:
        OptionError: if a name is unknown or a value is not a non-negative integer.
    """

    def __init__(self, **limits: int) -> None:
        for name, most in limits.items():
            if name not in LIMITS:
                raise OptionError(
                    f"expected one of the limits {', '.join(LIMITS)}, found {quote(name)}{suggestion(name, LIMITS)}"
                )
            if not isinstance(most, int) or isinstance(most, bool) or most < 0:
                raise OptionError(f"expected a non-negative integer for the limit {name}, found {quote(most)}")
        enclosing = _blocks.get()
        self._most: dict[str, int] = {**(enclosing[-1]._most if enclosing else DEFAULTS), **limits}

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
        return partial(Limits, **self._most), ()

    def check(self, name: str, amount: int, path: str, of: str = "", file: str | None = None) -> None:
        """Raises LimitError if `amount` at `path`, of `file`, exceeds the limit `name`."""
        if amount > (most := self._most[name]):
            raise limit_error(name, f"{most}{of}", str(amount), path, file)

    def __enter__(self) -> Limits:
        _blocks.set((*_blocks.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        blocks = list(_blocks.get())
        own = max((i for i, block in enumerate(blocks) if block is self), default=None)
        if own is not None:  # generators may leave blocks out of order
            del blocks[own]
        _blocks.set(tuple(blocks))


DEFAULTS = {name: limit.most for name, limit in LIMITS.items()}
_blocks: ContextVar[tuple[Limits, ...]] = ContextVar("limits", default=())


def current() -> Limits:
    """Returns the limits of the innermost enclosing block, or the defaults."""
    blocks = _blocks.get()
    return blocks[-1] if blocks else Limits()


def check_repeats(nbytes: int, stored: int, path: str = "tensors") -> None:
    """Raises LimitError if tensors of `nbytes` in total, at `path`, repeat the `stored` bytes, and
    a MiB, too often."""
    current().check("repeats", nbytes // (stored + MIB), path, " times their stored bytes")


def limit_error(name: str, most: str, found: str, path: str, file: str | None = None) -> LimitError:
    """Returns the error for a limit that is exceeded."""
    error = LimitError(f"expected at most {most} ({A_LIMIT}), found {found}", path, file=file)
    error.limit = name
    return error
