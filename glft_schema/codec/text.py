"""Length-prefixed UTF-8 strings. Bytes that are not UTF-8 become lone surrogates."""

from __future__ import annotations

from typing import Any

import construct

from glft_schema.codec.context import ByteOrder, Context, byte_order, limits_of
from glft_schema.codec.numbers import Number, Picked, checked_number
from glft_schema.codec.rules import ALL_BITS, Fault
from glft_schema.errors import FormatError, TruncatedError, quote
from glft_schema.storage.cursor import bytes_left, read_exactly
from glft_schema.storage.tensor_bytes import write_all


def decode_text(stored: bytes | memoryview) -> str:
    """Decodes UTF-8; invalid bytes become lone surrogates."""
    return str(stored, "utf-8", "surrogateescape")


def encode_text(text: Any, path: str, errors: str = "surrogateescape") -> bytes:
    """Encodes text as UTF-8. Raises FormatError if that is impossible or `text` is not a str."""
    if not isinstance(text, str):
        raise FormatError(f"expected text, found {quote(text)}", path)
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise FormatError(f"expected text that can be encoded as UTF-8, found {quote(text)}", path) from None


def is_utf8(text: str) -> bool:
    """Tells whether a text has no lone surrogates, which represent bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_length(stored: bytes, length: Number, order: ByteOrder, path: str) -> bytes:
    """Prefixes a string with its length. Raises FormatError if the string is too long for it."""
    try:
        return length.encode(len(stored), order, path) + stored
    except FormatError:
        most = (1 << 8 * length.itemsize - length.is_signed) - 1
        raise FormatError(f"expected at most {most} bytes, found {len(stored)}", path) from None


class Text(construct.Construct):
    """A string after its length in bytes. Parses into text, builds from text.

    Args:
        length: the number before the string.
        strict: refuse bytes that are not UTF-8. By default, lone surrogates represent them.

    Attributes:
        errors: the name of Python's error handler for such bytes.
    """

    def __init__(self, length: Number | Picked, strict: bool = False) -> None:
        super().__init__()
        self.length = checked_number(length)
        self.strict = strict
        too_long = Fault("a length beyond the file", ALL_BITS, TruncatedError)
        self.refuses = (too_long, Fault("text that is not UTF-8", (b"\xff",))) if strict else (too_long,)
        self.errors = "strict" if strict else "surrogateescape"

    def _parse(self, stream: Any, context: Context, path: str) -> str:
        nbytes = self.length._parse(stream, context, path)
        if nbytes > (left := bytes_left(stream)):
            offset = stream.tell() if self.strict else None  # at the text, as construct's PascalString reports it
            raise TruncatedError(f"expected {nbytes} bytes, found {left}", path, offset)
        limits_of(context).check("text", nbytes, path, " bytes")
        try:
            return str(read_exactly(stream, nbytes, path), "utf-8", self.errors)
        except UnicodeDecodeError:
            raise FormatError("expected UTF-8 text, found bytes or characters that are not UTF-8", path) from None

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> Any:
        stored = encode_text(obj, path, self.errors)
        limits_of(context).check("text", len(stored), path, " bytes")
        write_all(stream, with_length(stored, self.length.pick(context), byte_order(context), path))
        return obj
