"""Limits: each is enforced, named in its error, and adjustable."""

from __future__ import annotations

import pickle
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glft_schema import Container, FormatError, LimitError, Limits, TruncatedError, byte_map
from glft_schema.errors import OptionError
from glft_schema.files.parsing import check_rules
from glft_schema.limits import DEFAULTS, current
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import ARRAY, File, Info
from tests.oracles.glft_reference import Row
from tests.tools.command_line import in_this_process as glft

U8, U32 = 0, 4


def gguf(tensors: int, entries: int, table: bytes) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries) + table
    return head + bytes(-len(head) % 32)


def rows(count: int) -> bytes:
    """Returns a GGUF file of empty tensors."""
    return gguf(count, 0, b"".join(struct.pack("<Q7sIQIQ", 7, b"t%06d" % i, 1, 0, 0, 0) for i in range(count)))


def entries(count: int) -> bytes:
    return gguf(0, count, b"".join(struct.pack("<Q7sIB", 7, b"k%06d" % i, 0, 1) for i in range(count)))


def nested(depth: int) -> bytes:
    value = struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQB", U8, 1, 1)
    return gguf(0, 1, struct.pack("<Q1sI", 1, b"k", ARRAY) + value)


def glft_rows(count: int) -> bytes:
    rows = (struct.pack("<H7sBIBQ", 7, b"t%06d" % i, 1, 0, 0, 0) for i in range(count))
    return struct.pack("<IIII", 0x474C4654, 1, count, 0) + b"".join(rows)


OBJECTS = " tensors, entries and arrays"
# case: limit, file with the given number of items, field at fault, its byte, unit in the message
# fmt: off
MADE: dict[str, tuple[str, Callable[[int], bytes], str, int, str]] = {
    "tensors": ("objects", rows, "tensor_infos", 24, OBJECTS),
    "keys": ("objects", entries, "metadata", 24, OBJECTS),
    "arrays": ("objects", lambda n: File([(b"k", ARRAY, (ARRAY, [(U8, [])] * (n - 1)))]).bytes(),
               "metadata -> 0 -> value -> elements", 49, OBJECTS),
    "nesting": ("nesting", nested, "metadata -> 0 -> value" + " -> elements -> 0" * 5, 97, " levels of arrays"),
    "dims": ("dims", lambda n: File([], [Info(b"w", [1] * n, 0, bytes(4))]).bytes(), "tensor_infos -> 0 -> dims", 33, ""),
    "alignment": ("alignment", lambda n: File([(b"general.alignment", U32, n)]).bytes(),
                  "metadata -> 0 -> value", 53, " for general.alignment"),
    "strings": ("strings", lambda n: File([(b"k", ARRAY, (8, [b""] * n))]).bytes(),
                "metadata -> 0 -> value -> elements", 49, ""),
    "text": ("text", lambda n: File([(b"k" * n, U8, 1)]).bytes(), "metadata -> 0 -> key", 24, " bytes"),
    "tensors of GLFT": ("objects", glft_rows, "descriptors", 16, OBJECTS),
    "dims of GLFT": ("dims", lambda n: reference.write(b"", [Row("w", [1] * n, 0, b"")], bytes(4)),
                     "descriptors -> 0 -> dims", 19, ""),
    "keys of GLFT": ("objects", lambda n: reference.write(b"\n".join(b"k%d=v" % i for i in range(n)), [], b""),
                     "metadata", 16, OBJECTS),
    "metadata of GLFT": ("metadata", lambda n: reference.write(b"k=" + b"v" * (n - 2), [], b""), "metadata", 16, " bytes"),
}
# fmt: on


@pytest.mark.parametrize("case", MADE)
def test_a_limit_holds_and_can_be_lowered_and_raised(case: str) -> None:
    name, made, path, offset, of = MADE[case]
    with Limits(**{name: 5}):
        assert Container.build(Container.parse(made(5))) == made(5)
        with pytest.raises(LimitError) as caught:
            Container.parse(made(6))
    error = caught.value
    assert (error.limit, error.path, error.offset) == (name, path, offset)
    assert f"{path}: expected at most 5{of} (a limit of glft_schema), found 6 (" in str(error)
    assert f"limit {name}, at byte {offset})" in str(error)
    file = Container.parse(made(6))
    with Limits(**{name: 5}), pytest.raises(LimitError, match=rf"expected at most 5{of} \(a limit of glft_schema\), found 6"):
        Container.build({"format": file.format.name, **file.regions})
    assert Container.build(file) == made(6)  # with the limits it was opened with


@pytest.mark.parametrize("case", [case for case in MADE if DEFAULTS[MADE[case][0]] <= 1 << 20 and case != "arrays"])
def test_what_holds_unless_told_otherwise(case: str) -> None:
    name, made, *_ = MADE[case]
    most, more = DEFAULTS[name], DEFAULTS[name] + 1
    if most < 100 or name == "alignment":  # longer tables are read by the memory tests
        assert Container.parse(made(most)).nbytes == len(made(most))
    with pytest.raises(LimitError, match=rf"expected at most {most}.* \(a limit of glft_schema\), found {more} "):
        Container.parse(made(more))


def test_a_count_that_the_file_has_no_room_for_is_no_matter_of_limits() -> None:
    for stored in (File(n_tensors=2**64 - 1).bytes(), File(n_kv=2**40).bytes(), rows(9)[:-200]):
        with Limits(objects=5, dims=5), pytest.raises(TruncatedError, match=r"expected at most \d \(bytes left: \d+"):
            Container.parse(stored)
    declared = struct.pack("<IIII", 0x474C4654, 1, 0, 2**32 - 1)
    with pytest.raises(TruncatedError, match="metadata: expected 4294967295 bytes, found 0"):
        Container.parse(declared)


def test_a_file_keeps_the_limits_that_it_was_opened_with() -> None:
    stored = nested(20)
    with Limits(nesting=20) as limits:
        file = Container.parse(stored)
    assert file.limits is limits
    assert byte_map(file)[-1].end == len(stored)
    assert [finding.rule for finding in check_rules(file, "ggml")] == ["gguf-nested-array"]
    assert pickle.loads(pickle.dumps(file)) == file
    with pytest.raises(LimitError, match="limit nesting"):
        Container.parse(stored)


def test_blocks_are_left_as_they_were_found_and_are_those_of_a_thread() -> None:
    found = []
    with Limits(dims=3):
        with Limits(strings=7):
            assert (current().dims, current().strings) == (3, 7)
        thread = threading.Thread(target=lambda: found.append(current()))
        thread.start()
        thread.join()
        assert current() == Limits(dims=3)
    assert found == [current()] == [Limits()]
    with pytest.raises(KeyError), Limits(dims=3):
        raise KeyError
    assert current() == Limits()


@pytest.mark.parametrize("number", [-1, 1.5, True, "9", None])
def test_a_limit_is_an_integer(number: Any) -> None:
    with pytest.raises(OptionError, match="expected a non-negative integer for the limit text, found"):
        Limits(text=number)


def test_deeper_than_pythons_stack_is_a_limit_too() -> None:
    stored = nested(3000)
    for room in (3000, 10**6):
        with Limits(nesting=room), pytest.raises(LimitError, match="nested too deeply for Python's stack"):
            Container.parse(stored)


def test_an_error_that_is_being_handled_is_no_cause_of_another() -> None:
    stored = reference.back_to_back(b"", [Row("w", [1], 0, bytes(4))]).replace(b"w", b"\xff")
    try:
        Container.parse(b"GGML")
    except FormatError:
        with pytest.raises(FormatError, match="expected UTF-8 text"):
            Container.parse(stored)


def test_what_is_no_limit() -> None:
    with pytest.raises(OptionError, match=r"expected one of the limits objects, nesting, .*, parser_seconds, found 'keys'"):
        Limits(keys=3)
    with pytest.raises(AttributeError, match="no limit 'keys'; the limits are objects, nesting,"):
        _ = Limits().keys
    assert repr(Limits(dims=3, text=4)) == "Limits(dims=3, text=4)"
    assert pickle.loads(pickle.dumps(Limits(dims=3))) == Limits(dims=3) != Limits()


NAMES = f"glft: expected NAME=NUMBER, NAME being one of {', '.join(DEFAULTS)}, found"


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ([], "expected at most 16 levels of arrays (a limit of glft_schema), found 17 (key 'k', limit nesting,"),
        (["nesting=17"], ""),
        (["nesting"], f"{NAMES} 'nesting'\n"),
        (["nesting=-1"], f"{NAMES} 'nesting=-1'\n"),
        (["depth=3"], f"{NAMES} 'depth=3'\n"),
        (["nesting=17", "nesting=16"], "glft: --limit: expected each name once, found 'nesting' twice: '17' and '16'\n"),
    ],
)
def test_the_command_line_raises_limits(limits: list[str], error: str, path: Path) -> None:
    path.write_bytes(nested(17))
    done = glft(*(part for limit in limits for part in ("--limit", limit)), "inspect", path)
    assert (done.returncode, error in done.stderr, bool(done.stderr)) == (2 if error else 0, True, bool(error))


def test_real_sizes_are_within_the_limits() -> None:
    """Three times the largest known vocabulary with its merges, and experts of 60 layers."""
    assert DEFAULTS["strings"] > 786_432 + 1_545_000
    assert DEFAULTS["objects"] > 60 * 384 * 3 * 2  # three matrices of each expert, each with a scale
