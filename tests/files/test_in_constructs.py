"""`Container` inside construct's own constructs, which parse, build and use its regions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from construct import (
    Byte,
    Bytes,
    Check,
    CheckError,
    Checksum,
    ChecksumError,
    Computed,
    Construct,
    FixedSized,
    GreedyRange,
    Int16ul,
    Int32ul,
    Int64ul,
    Lazy,
    Optional,
    Pointer,
    Prefixed,
    RawCopy,
    Rebuild,
    Select,
    SizeofError,
    Struct,
    Switch,
    this,
)

from glft_schema import Container, File
from tests.golden import golden

STORED = golden("gguf_little")
VERSION, N_TENSORS = STORED[4], STORED[8]  # u32 and u64, see the golden file
SIZE = len(STORED).to_bytes(8, "little")
INSIDE = SIZE + STORED
W = "w" / Prefixed(Int64ul, Container)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Case(NamedTuple):
    """A construct with a container inside.

    Attributes:
        declared: the construct.
        stored: bytes that it parses and builds.
        container: the result -> the `File` in it, or None.
        found: the result -> a value computed from the container.
        expected: that value.
    """

    declared: Construct
    stored: bytes
    container: Callable[[Any], File | None] = lambda parsed: parsed.w
    found: Callable[[Any], Any] = lambda parsed: parsed.n
    expected: Any = VERSION


# fmt: off
CASES = {
    "Computed":        Case(Struct(W, "n" / Computed(this.w.header.version)), INSIDE),
    "Computed, size":  Case(Struct(W, "n" / Computed(this.w.nbytes)), INSIDE, expected=len(STORED)),
    "Switch":          Case(Struct(W, "n" / Switch(this.w.header.version, {VERSION: Int16ul})), INSIDE + b"\1\2", expected=513),
    "Rebuild":         Case(Struct("n" / Rebuild(Int32ul, this.w.header.version), W), STORED[4:8] + INSIDE),
    "GreedyRange":     Case(GreedyRange(W), INSIDE * 3, lambda parsed: parsed[2], len, 3),
    "Pointer":         Case(Struct("n" / Int32ul, "w" / Pointer(this.n, Container)), b"\6\0\0\0\0\0" + STORED, expected=6),
    "Checksum":        Case(Struct("w" / RawCopy(W), "n" / Checksum(Bytes(32), sha256, this.w.data)), INSIDE + sha256(INSIDE),
                            lambda parsed: parsed.w.value, expected=sha256(INSIDE)),
    "Select":          Case(Select(W, Bytes(3)), INSIDE, lambda parsed: parsed, lambda parsed: None, None),
    "Optional, none":  Case(Optional(W), b"", lambda parsed: None, lambda parsed: parsed, None),
    "Lazy":            Case(Struct("w" / Lazy(FixedSized(len(STORED), Container)), "n" / Byte), STORED + b"\7",
                            lambda parsed: parsed.w(), expected=7),
}
# fmt: on
CASES["compile"] = CASES["Switch"]._replace(declared=CASES["Switch"].declared.compile())


@pytest.mark.parametrize("name", CASES)
def test_constructs_parse_and_build_around_a_container(name: str) -> None:
    case = CASES[name]
    parsed = case.declared.parse(case.stored)
    inside = case.container(parsed)
    assert inside is None or Container.build(inside) == STORED
    assert case.found(parsed) == case.expected
    assert case.declared.build(parsed) == case.stored


def test_expressions_see_the_regions_that_a_mapping_builds() -> None:
    package = Struct(W, "n" / Rebuild(Int64ul, this.w.header.n_tensors))
    regions = {"format": "GGUF", **Container.parse(STORED).regions}
    assert package.build({"w": regions}) == INSIDE + N_TENSORS.to_bytes(8, "little")


def test_constructs_refuse_what_does_not_hold() -> None:
    with pytest.raises(ChecksumError):
        CASES["Checksum"].declared.parse(INSIDE + bytes(32))
    with pytest.raises(CheckError):
        Struct(W, Check(this.w.header.version != VERSION)).parse(INSIDE)
    with pytest.raises(KeyError, match="'headr'; did you mean 'header'"):
        Struct(W, "n" / Computed(this.w.headr)).parse(INSIDE)
    with pytest.raises(SizeofError):
        Container.sizeof()
