"""`Container` inside construct's own constructs, which parse, build and use its regions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from construct import (
    Array,
    Byte,
    Bytes,
    Check,
    CheckError,
    Checksum,
    ChecksumError,
    Computed,
    Construct,
    FixedSized,
    FocusedSeq,
    GreedyRange,
    If,
    Int16ul,
    Int32ul,
    Int64ul,
    Lazy,
    Optional,
    Pointer,
    Prefixed,
    RawCopy,
    Rebuild,
    RepeatUntil,
    Select,
    Struct,
    Switch,
    len_,
    obj_,
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
    "Computed, count": Case(Struct(W, "n" / Computed(this.w.header.n_tensors)), INSIDE, expected=N_TENSORS),
    "Computed, rows":  Case(Struct(W, "n" / Computed(len_(this.w.tensor_infos))), INSIDE, expected=N_TENSORS),
    "Computed, names": Case(Struct(W, "n" / Computed(len_(this.w.tensors))), INSIDE, expected=N_TENSORS),
    "Computed, size":  Case(Struct(W, "n" / Computed(this.w.nbytes)), INSIDE, expected=len(STORED)),
    "If":              Case(Struct(W, "n" / If(this.w.header.version == VERSION, Byte)), INSIDE + b"\7", expected=7),
    "Check":           Case(Struct(W, Check(this.w.header.version == VERSION), "n" / Byte), INSIDE + b"\7", expected=7),
    "Switch, by it":   Case(Struct(W, "n" / Switch(this.w.header.version, {VERSION: Int16ul})), INSIDE + b"\1\2", expected=513),
    "Switch, to it":   Case(Struct("n" / Byte, "w" / Switch(this.n, {1: W, 2: Bytes(3)})), b"\1" + INSIDE, expected=1),
    "Rebuild, size":   Case(Struct("n" / Rebuild(Int64ul, this.w.nbytes), "w" / FixedSized(this.n, Container)), INSIDE,
                            expected=len(STORED)),
    "Rebuild":         Case(Struct("n" / Rebuild(Int32ul, this.w.header.version), W), STORED[4:8] + INSIDE),
    "FixedSized":      Case(FixedSized(len(STORED), Container), STORED, lambda parsed: parsed, lambda parsed: None, None),
    "Array":           Case(Array(2, W), INSIDE * 2, lambda parsed: parsed[1], len, 2),
    "GreedyRange":     Case(GreedyRange(W), INSIDE * 3, lambda parsed: parsed[2], len, 3),
    "RepeatUntil":     Case(RepeatUntil(obj_.header.version == VERSION, W), INSIDE, lambda parsed: parsed[0], len, 1),
    "Pointer":         Case(Struct("n" / Int32ul, "w" / Pointer(this.n, Container)), b"\6\0\0\0\0\0" + STORED, expected=6),
    "RawCopy":         Case(RawCopy(W), INSIDE, lambda parsed: parsed.value, lambda parsed: parsed.data, INSIDE),
    "Checksum":        Case(Struct("w" / RawCopy(W), "n" / Checksum(Bytes(32), sha256, this.w.data)), INSIDE + sha256(INSIDE),
                            lambda parsed: parsed.w.value, expected=sha256(INSIDE)),
    "Select":          Case(Select(W, Bytes(3)), INSIDE, lambda parsed: parsed, lambda parsed: None, None),
    "Select, other":   Case(Select(W, Bytes(3)), b"abc", lambda parsed: None, lambda parsed: parsed, b"abc"),
    "Optional":        Case(Optional(W), INSIDE, lambda parsed: parsed, lambda parsed: None, None),
    "Optional, none":  Case(Optional(W), b"", lambda parsed: None, lambda parsed: parsed, None),
    "Lazy":            Case(Struct("w" / Lazy(FixedSized(len(STORED), Container)), "n" / Byte), STORED + b"\7",
                            lambda parsed: parsed.w(), expected=7),
    "FocusedSeq":      Case(FocusedSeq("w", "n" / Rebuild(Int64ul, this.w.nbytes), "w" / FixedSized(this.n, Container)), INSIDE,
                            lambda parsed: parsed, lambda parsed: None, None),
}
# fmt: on
CASES["compile"] = CASES["Computed"]._replace(declared=CASES["Computed"].declared.compile())
CASES["compile, Switch"] = CASES["Switch, by it"]._replace(declared=CASES["Switch, by it"].declared.compile())


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


def test_files_are_neither_iterable_nor_containers_of_names() -> None:
    file = Container.parse(STORED)
    assert file["header"] is file.header
    with pytest.raises(TypeError, match="not iterable"):
        iter(file)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not a container"):
        _ = "header" in file  # type: ignore[misc]
    with pytest.raises(KeyError, match="0; keys are names, such as 'header'"):
        _ = file[0]  # type: ignore[index]
