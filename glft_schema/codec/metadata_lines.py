"""Metadata as text: one ``key=value`` per line."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

import construct
from construct.expr import FuncPath

from glft_schema.codec.context import Context, limits_of
from glft_schema.codec.expressions import as_expression
from glft_schema.codec.metadata import Metadata
from glft_schema.codec.rules import Fault
from glft_schema.codec.tables import count_objects
from glft_schema.errors import FormatError, quote
from glft_schema.storage.cursor import bytes_left, read_exactly
from glft_schema.storage.tensor_bytes import write_all

__all__ = ["TextMetadata", "nbytes_of_lines"]


class TextMetadata(Metadata):
    """Texts by key, in file order. Read-only: to change a file, build it from another mapping.

    Attributes:
        trailing_newline: whether the last line ends with a newline, which `build` writes again.
    """

    def __init__(self, entries: Mapping[str, str] | None = None, trailing_newline: bool = False) -> None:
        super().__init__(entries or {})
        self.trailing_newline = trailing_newline

    def replace(self, entries: Mapping[str, str]) -> TextMetadata:
        """Returns other entries with the same `trailing_newline`."""
        return TextMetadata(entries, self.trailing_newline)


class KeyValueLines(construct.Construct):
    """UTF-8 lines ``key=value``, separated by newlines; `size` bytes in total.

    Only newlines separate lines. Lines are split at their first ``=``, so a value may contain
    ``=``. Keys are unique and not empty. Parses into `TextMetadata`, builds from any mapping of str
    to str.
    """

    refuses = (  # lines after the others
        Fault("a line without `=` or with an empty key", (b"\0x", b"\0=x", b"\0=")),
        Fault("a duplicate key", (b"\t=\n\0\t=",)),
        Fault("text that is not UTF-8", (b"x=\0\xff",)),
    )

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.size = as_expression(size)
        self.flagbuildnone = True

    def _parse(self, stream: Any, context: Context, path: str) -> TextMetadata:
        start, size = stream.tell(), self.size(context)
        limits = limits_of(context)
        if size <= bytes_left(stream):
            limits.check("metadata", size, path, " bytes")
        stored = read_exactly(stream, size, path)
        count_objects(context, stored.removesuffix(b"\n").count(b"\n") + bool(stored), path)
        lines = stored.split(b"\n")
        ended = len(lines) > 1 and not lines[-1]
        entries: dict[str, str] = {}
        for number, line in enumerate(lines[: -1 if ended else None] if stored else []):
            where = f"{path} -> line {number + 1}"
            if line.find(b"=") < 1:
                raise FormatError(f"expected key=value, found {quote(line)}", where, start)
            try:
                key, _, value = line.decode("utf-8").partition("=")
            except UnicodeDecodeError as error:
                bad, before = error.start, line[: line.find(b"=")]
                named = before.decode("utf-8") if bad > len(before) else None
                raise FormatError(f"expected UTF-8, found {quote(line[bad:])}", where, start + bad, key=named) from None
            if key in entries:
                raise FormatError(f"expected unique keys, found {quote(key)} again", where, start, key=key)
            entries[key] = value
            start += len(line) + 1
        return TextMetadata(entries, ended)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        stored, limits = self.encode(obj, path), limits_of(context)
        limits.check("metadata", len(stored), path, " bytes")
        count_objects(context, len(obj or ()), path)
        write_all(stream, stored)
        return obj

    @staticmethod
    def encode(entries: Mapping[str, str] | None, path: str = "metadata") -> bytes:
        """Returns the lines. Raises FormatError for entries that would not be parsed back equal."""
        lines = []
        if not isinstance(entries, (Mapping, NoneType)):
            raise FormatError(f"expected a mapping of text to text, found {quote(entries)}", path)
        for key, value in (entries or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise FormatError(f"expected text for key and value, found {quote(key)}: {quote(value)}", path)
            if not key or "=" in key or "\n" in key:
                raise FormatError(f"expected a non-empty key without '=' or newline, found {quote(key)}", path)
            if "\n" in value:
                raise FormatError(f"expected a value without newlines for {quote(key)}, found {quote(value)}", path)
            try:
                lines.append(f"{key}={value}".encode())
            except UnicodeEncodeError:
                problem = f"expected text that can be encoded as UTF-8, found {quote(key)}: {quote(value)}"
                raise FormatError(problem, path) from None
        return b"\n".join(lines) + (b"\n" if lines and getattr(entries, "trailing_newline", False) else b"")

    @staticmethod
    def with_number(entries: Mapping[str, str], key: str, number: int) -> Mapping[str, str]:
        """Returns entries with a number under a key, as text."""
        return {**entries, key: str(number)}


nbytes_of_lines = FuncPath(lambda entries: len(KeyValueLines.encode(entries)))  # in expressions
