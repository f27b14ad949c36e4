"""C's reserved words, number types and literals."""

from __future__ import annotations

import re

# fmt: off
KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept bitand bitor bool catch char8_t char16_t char32_t
    class compl concept consteval constexpr constinit const_cast co_await co_return co_yield decltype delete dynamic_cast
    explicit export false friend mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    reflexpr reinterpret_cast requires static_assert static_cast synchronized template this thread_local throw true try typeid
    typename typeof typeof_unqual using virtual wchar_t xor xor_eq
    linux unix i386 errno offsetof NULL near far interface small
"""  # of C and C++, and macros of common compilers and systems
# fmt: on
RESERVED = frozenset(KEYWORDS.split())
C_TYPES = {f"u{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)} | {f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)}
C_TYPES |= {"f16": "uint16_t", "bf16": "uint16_t", "f32": "float", "f64": "double"}
SIGNS = {"//": "/", "&": "&&", "|": "||"}  # Python's operators that C-like languages spell differently
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def c_string(text: str | bytes) -> str:
    """Returns a string literal of bytes, or of a text in UTF-8."""
    stored = text.encode() if isinstance(text, str) else text
    letters = (chr(byte) if re.match(rb"[\w .-]", bytes([byte])) else f"\\{byte:03o}" for byte in stored)
    return f'"{"".join(letters)}"'


def c_constant(value: int | bytes) -> str:
    """Returns a literal of a number or of bytes."""
    if isinstance(value, bytes):
        return c_string(value)
    if value < 0:
        return f"({value})"
    return f"{f'0x{value:X}' if value > 0xFFFF else value}{'u' if value < 1 << 32 else 'ull'}"
