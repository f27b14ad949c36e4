"""Derived strategies cover what hand-written ones do, and other readers agree with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import construct
import pytest
from construct import Array, Bytes, Const, Int8ub, Int8ul, Int16ul, Int32ul, PascalString, PrefixedArray, Rebuild, len_, this
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from glft_schema import Container, SchemeError
from glft_schema.codec.expressions import matches
from glft_schema.codec.numbers import Picked, u16, u32
from glft_schema.codec.predicates import meets, multiple_of, one_of, pattern
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Padding, Struct
from glft_schema.codec.tables import Table
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.formats.gguf import GGUF, KeyValue, TensorInfo
from glft_schema.formats.glft import GLFT, Descriptor
from glft_schema.formats.registry import format_named
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensors.region import TensorData
from glft_schema.testing import containers, from_construct, values_of
from tests.corpus.features import features, required
from tests.corpus.other_readers import rewritten
from tests.oracles import gguf_reference, glft_reference, llama_cpp
from tests.tools import glft_strategies as glft_strategies
from tests.tools.depth import FULL

T = TypeVar("T")
SOME = settings(max_examples=60 if FULL else 15)
SEEN = settings(SOME, max_examples=10_000, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def for_all(strategy: st.SearchStrategy[T], check: Callable[[T], object], settings: settings = SOME) -> None:
    """Calls `check` with examples of a strategy."""
    settings(given(strategy)(check))()


# Files of `containers`, and their features


COMMON = {
    "glft": {"a gap", "trailing bytes", "metadata", "a tensor without numbers", "tied tensors", "payloads in another order"},
    "gguf": {"a gap", "trailing bytes", "metadata", "a tensor without numbers", "version 2 little", "version 3 big"},
}


@pytest.mark.parametrize("format", COMMON)
def test_features_are_drawn(format: str) -> None:
    """The corpus has all features, but from strategies as they were when it was drawn."""
    left = COMMON[format] | (required(format_named(format)) if FULL else set())

    def all_seen(stored: bytes) -> bool:
        left.difference_update(features(stored))
        return not left

    with suppress(NoSuchExample):
        find(containers(format), all_seen, settings=SEEN, random=Random(0))
    assert left == set()


@pytest.mark.parametrize("rules", [(), ("spec",), ("ggml",), ("spec", "ggml")])
@pytest.mark.parametrize("format", ["glft", "gguf"])
def test_files_are_valid_and_keep_to_their_rule_sets(format: str, rules: tuple[str, ...]) -> None:
    def check(stored: bytes) -> None:
        file = Container.parse(stored)
        assert Container.build(file) == stored
        assert check_rules(file, rules) == [] if rules else True

    for_all(containers(format, rules=rules), check)


def test_knobs() -> None:
    def check(file: Any) -> None:
        assert {tensor.type.name for tensor in file.tensors.values()} <= {"Q4_0", "F32"}
        assert sum(tensor.nbytes for tensor in file.tensors.values()) <= 200  # tied ones are counted twice
        counts.add(len(file.tensors))

    counts = set[int]()
    for_all(containers("gguf", types=["q4_0", "F32"], max_tensors=2, max_bytes=100).map(Container.parse), check)
    assert counts == {0, 1, 2}


def test_bad_requests() -> None:
    with pytest.raises(OptionError, match="expected GLFT, GGUF or safetensors, found 'ggml'"):
        containers("ggml")
    with pytest.raises(SchemeError, match="expected one of f32, f16, q8_per_channel, q4_per_group_64, found 'q4_0'"):
        containers("glft", types=["q4_0"])
    with pytest.raises(OptionError, match="found 'strict'"):
        from_construct(Descriptor, rules=["strict"])


# Other readers


@pytest.mark.parametrize("format", COMMON)
def test_files_are_what_the_references_write(format: str) -> None:
    def check(stored: bytes) -> None:
        file = Container.parse(stored)
        assert rewritten(file, stored) == stored
        for row in file.regions[file.format.table]:
            if row.dtype.is_known:
                nbytes = (glft_reference if format == "glft" else gguf_reference).nbytes(row.dtype.code, list(row.dims))
                assert file.tensors[row.name].nbytes == nbytes

    for_all(containers(format), check)


@given(containers("gguf", rules="ggml"))
@SOME
def test_llama_cpp_reads_what_keeps_to_its_rules(stored: bytes) -> None:
    assert llama_cpp.reads_gguf(stored)


# Constructs

Item = Struct(
    "kind" / Int8ul,
    Rule("kind", this.kind, one_of(1, 2, 3)),
    "name" / PascalString(Int8ul, "utf8"),
    Rule("name", this.name, pattern(r"[a-z]{2,9}", "two to nine letters")),
)
Own = construct.Struct(
    "magic" / Const(b"OWN1"),
    "n" / Rebuild(Int16ul, len_(this.things)),
    "things" / Array(this.n, Item),
    "sizes" / PrefixedArray(Int8ub, Int32ul),
    "count" / Int8ul,
    "raw" / Bytes(this.count),
)


DECLARED = [
    construct.Default(Int8ul, 3),
    construct.GreedyBytes,
    construct.Flag,
    construct.Enum(Int8ul, one=1, two=2),
    construct.BytesInteger(3),
    construct.Float64b,
    construct.Struct("a" / Int8ul, "b" / construct.IfThenElse(this.a > 1, Int8ul, construct.Pass)),
    construct.Struct("a" / Int8ul, "b" / construct.Computed(this.a + 1)),
    construct.Struct("a" / construct.Switch(this._.n, {1: Int8ul}, default=Int32ul)),
    Struct("rows" / Table(this._.n, Struct("x" / Picked(this._._.n == 1, u16, u32)))),
    *(type_.payload for type_ in (GGML_TYPES["q4_0"], GGML_TYPES["f32"], GLFT.types["q4_per_group_64"])),
]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: type(declared).__name__)
def test_values_build(declared: construct.Construct) -> None:
    context = {"n": 1, "dims": [2, 64], "out": 2, "in": 64}

    def check(value: Any) -> None:
        built = declared.build(value, **context)
        assert declared.build(declared.parse(built, **context), **context) == built

    for_all(from_construct(declared, **context), check, settings(max_examples=20))


Point = construct.Struct("x" / Int8ul, "y" / Int16ul)
Header = Struct("n" / Int32ul)
Points = PrefixedArray(Int8ul, Point)
Texts = PrefixedArray(Int8ul, PascalString(Int8ul, "utf8"))


def own(*parts: Any) -> Struct:
    """Returns a Struct whose rules, ``(field, expression)``, have ids and sentences."""
    return Struct(
        *(Rule(part[0], this[part[0]], meets(part[1], "kept")) if isinstance(part, tuple) else part for part in parts)
    )


BUILT = {
    "a format": Own,
    "a boundary": own("n" / u32, ("n", (this.n > 1000) & (this.n % 64 == 0))),
    "below a number": own("a" / Int8ul, ("a", this.a != 0)),
    "beyond a number": own("a" / Int16ul, ("a", this.a != 65535)),
    "after the field": own("a" / Int8ul, "b" / Int8ul, ("a", this.a + this.b != 0)),
    "a flag": own("a" / construct.Flag, ("a", this.a != 1)),
    "bytes of another length": own("a" / Bytes(2), ("a", this.a != b"XYZ")),
    "a list of Structs": own("rows" / Points, ("rows", len_(this.rows) <= 16)),
    "a longer list of Structs": own("rows" / Points, ("rows", len_(this.rows) >= 9)),
    "a list of texts": own("rows" / Texts, ("rows", len_(this.rows) >= 1)),
    "a counted list": own("n" / Int8ul, "l" / Array(this.n, Int8ul), ("l", len_(this.l) >= 6)),
    "counted rows": own("n" / Int8ul, "l" / Table(this.n, Point), ("l", len_(this.l) <= 16)),
    "counted bytes": own("n" / Int8ul, "l" / Bytes(this.n), ("l", len_(this.l) % 2 == 0)),
    "a counter with rules": own("n" / Int32ul, ("n", (this.n >= 64) & (this.n % 16 == 0)), "l" / Bytes(this.n)),
    "a large counter": own("n" / Int32ul, ("n", this.n >= 10_000), "l" / Array(this.n, Int8ul)),
    "a counter with a rule after it": own("n" / Int8ul, "l" / Bytes(this.n), "m" / Int8ul, ("n", this.n + this.m >= 1)),
    "a pattern in ASCII": own("s" / PascalString(Int8ul, "ascii"), ("s", matches(r"\w+")(this.s))),
    "a length in another Struct": own("h" / Header, "b" / Bytes(this.h.n)),
    "a length from the root": construct.Struct("h" / Header, "b" / Bytes(this._root.h.n)),
    "a length above": own("n" / Int32ul, "i" / Struct("b" / Bytes(this._.n))),
    "a length of a length": own("n" / Int32ul, "l" / PrefixedArray(Int8ul, Array(this._.n, Int8ul))),
    "a product": own("w" / Int8ul, "h" / Int8ul, "p" / Bytes(this.w * this.h)),
    "a difference": own("n" / Int32ul, "b" / Bytes(this.n - 1)),
    "a length with a sign": own("n" / construct.Int32sl, "b" / Bytes(this.n)),
    "one length": own("b" / Bytes(100_000), "l" / Array(2000, Int8ul)),
    "not some values": own("a" / construct.NoneOf(Int8ul, [0, 1, 255])),
    "validated": own("a" / construct.ExprValidator(Int8ul, lambda value, at: value > 5)),
    "nothing to draw": construct.Struct("a" / Int8ul, construct.Padding(3), Const(b"AB"), construct.Terminated),
}
SMALL = {  # numbers that count others
    "a format": this.count,
    "a length in another Struct": this.h.n,
    "a length from the root": this.h.n,
    **dict.fromkeys(("a length above", "a length of a length", "a difference", "a length with a sign"), this.n),
}


@pytest.mark.parametrize("case", BUILT)
def test_values_keep_to_rules_and_are_parsed_back(case: str) -> None:
    """Parsing raises an error if a rule is broken."""
    declared = BUILT[case]

    def check(value: Any) -> None:
        parsed = declared.parse(declared.build(value))
        assert case not in SMALL or SMALL[case](parsed) < 5
        assert {name: plain(parsed[name]) for name in value} == {name: plain(value[name]) for name in value}

    slow = [HealthCheck.filter_too_much, HealthCheck.too_slow]
    few = settings(max_examples=40 if FULL else 12, deadline=None, suppress_health_check=slow)
    for_all(from_construct(declared), check, few)


def plain(value: Any) -> Any:
    """Returns a value as plain Python, for comparisons."""
    if hasattr(value, "items"):
        return {name: plain(part) for name, part in value.items() if not name.startswith("_")}
    return [plain(part) for part in value] if isinstance(value, list) else value


def test_both_boundaries_of_a_length_are_drawn() -> None:
    for count in (0, 16):
        values = from_construct(BUILT["counted rows"])
        assert len(find(values, lambda value, count=count: value.n == count, settings=SEEN, random=Random(0)).l) == count


def test_parameters_do_not_collide_with_knobs() -> None:
    names = ("most", "types", "max_bytes", "knobs", "declared", "update")
    sizes, context = construct.Struct(*(name / Bytes(this._[name]) for name in names)), dict.fromkeys(names, 3)

    def check(value: Any) -> None:
        assert len(sizes.build(value, **context)) == 3 * len(names)

    for_all(from_construct(sizes, **context), check)


def renamed(field: Any) -> Any:
    """Returns GGUF's regions with the alignment under another name."""
    if field.name == "alignment":
        return "step" / field.subcon
    if field.name == "padding":
        return "padding" / Padding(this.step, may_lack=this.header.n_tensors == 0)
    if field.name == "data":
        return "data" / TensorData("tensor_infos", padded_to=this.step)
    if field.name == "tensor_infos":
        offset = Rule("gguf-offset", this.offset, multiple_of(this._root.step, "the step"))
        rows = [offset if getattr(part, "id", None) == "gguf-offset" else part for part in TensorInfo.subcons]
        return "tensor_infos" / Table(this.header.n_tensors, Struct(*rows))
    return field


CHECKS = ("gguf-contiguous", "gguf-data-padded")  # of the alignment by its name
PARTS = [renamed(part) for part in GGUF.struct.subcons if getattr(part, "id", "") not in CHECKS]
OTHER_NAME = replace(GGUF, struct=Struct(*PARTS))


def test_a_format_whose_alignment_has_another_name() -> None:
    def has_another_step(stored: bytes) -> bool:
        regions = OTHER_NAME.struct.parse(stored)
        assert all(row.offset % regions.step == 0 for row in regions.tensor_infos)
        return regions.step > 1 and regions.step != 32 and any(row.offset for row in regions.tensor_infos)

    find(containers(OTHER_NAME), has_another_step, settings=SEEN, random=Random(0))


@pytest.mark.parametrize("declared", [KeyValue, TensorInfo])
def test_parts_of_a_format_in_the_context_of_the_whole(declared: Struct) -> None:
    root = construct.Container(header=construct.Container(version=2), alignment=32)

    def check(value: Record) -> None:
        assert set(value) == {part.name for part in declared.subcons if part.name} - {"shape"}
        assert value.get("offset", 0) % 32 == 0

    for_all(from_construct(declared, rules="spec", _root=root), check)


def test_teaching_a_construct() -> None:
    class Celsius(construct.Construct):
        def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
            return construct.Int8sb._build(int(obj * 2), stream, context, path)

    weather = Struct("outside" / Celsius())
    problem = r"Celsius has no node: register a function with @.*\.node_of.register\(Celsius\)"
    with pytest.raises(NotImplementedError, match=problem):
        find(from_construct(weather), lambda value: True)


def test_an_unknown_node() -> None:
    with pytest.raises(NotImplementedError, match=r"object has no strategy: add one with @.*values_of.register\(object\)"):
        values_of(object(), {})


def test_without_hypothesis(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text("raise ModuleNotFoundError('no hypothesis')\n", "utf-8")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run([sys.executable, "-c", "import glft_schema.testing"], env=env, capture_output=True, text=True)
    assert "ImportError: glft_schema.testing needs hypothesis: pip install 'glft_schema[fuzz]'" in done.stderr
    program = "import sys, glft_schema, glft_schema.cli.fuzz; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=env).returncode == 0
