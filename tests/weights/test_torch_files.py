"""Files of `torch.save`, compared with torch's own reader, and hostile files written by hand."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from glft_schema import FormatError, Limits, TensorError
from glft_schema.errors import LimitError
from glft_schema.storage.dtypes import NAMES as STORED
from glft_schema.storage.tensor_bytes import array_bytes
from glft_schema.storage.torch_tensors import as_array, as_tensor
from glft_schema.weights.checkpoints import open_checkpoint
from glft_schema.weights.torch_files import DTYPES
from tests.fuzz import torch_files
from tests.tools import forked
from tests.tools.torch_archives import archive, entry, members, saved, tensor, text, with_pickle
from tests.weights.test_what_is_written_is_read import tensors

FOUR = struct.pack("<4f", 1, 2, 3, 4)
NAMES = sorted({name for name in DTYPES.values() if hasattr(torch, name) and name in (*STORED, "complex128")})
OLD_NAMES = sorted({name for type_, name in DTYPES.items() if type_ != name})  # torch loads no others from legacy files


def opened(stored: bytes, folder: Path, *exclude: str) -> dict[str, Any]:
    path = folder / "m.pt"
    path.write_bytes(stored)
    return open_checkpoint(path, exclude)


def assert_as_torch_loads(stored: bytes, folder: Path) -> None:
    ours, theirs = opened(stored, folder), torch.load(io.BytesIO(stored), weights_only=True)["state_dict"]
    assert [*ours] == [*theirs]
    for name, loaded in theirs.items():
        found, expected = ours[name].load(), as_array(loaded.detach())
        assert (found.dtype, found.shape, array_bytes(found)) == (expected.dtype, expected.shape, array_bytes(expected))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_every_dtype(zipped: bool, tmp_path: Path) -> None:
    bits = {name: np.random.default_rng(0).integers(0, 2 if name == "bool" else 256, 64, np.uint8) for name in NAMES}
    tensors = {name: torch.from_numpy(bits[name]).view(getattr(torch, name)) for name in (NAMES if zipped else OLD_NAMES)}
    assert_as_torch_loads(saved({"state_dict": tensors}, _use_new_zipfile_serialization=zipped), tmp_path)


@given(tensors=tensors(), ordered=st.booleans())
def test_every_tensor_is_the_one_that_torch_loads(
    tensors: dict[str, torch.Tensor], ordered: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(tensors and all(tensor.dim() <= 64 for tensor in tensors.values()))
    content: Any = OrderedDict(tensors) if ordered else tensors
    if ordered:
        content._metadata = OrderedDict({"": {"version": 1}})
    for each in tensors.values():
        each.note = "saved, too"  # type: ignore[attr-defined]
    assert_as_torch_loads(saved({"state_dict": content, "step": 3}), tmp_path_factory.mktemp("torch"))


@pytest.mark.parametrize(("zipped", "key"), [(True, "model"), (False, "model_state_dict")])
def test_checkpoints_of_training_scripts(zipped: bool, key: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    checkpoint = {key: model.state_dict(), "optimizer": optimizer.state_dict(), "args": io.StringIO, "seen": {(1, 2): {3}}}
    ours = opened(saved(checkpoint, _use_new_zipfile_serialization=zipped), tmp_path)
    found = {name: tensor.load().tolist() for name, tensor in ours.items()}
    assert found == {name: values.tolist() for name, values in model.state_dict().items()}


def test_a_big_file_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with torch.serialization.skip_data():
        torch.save({"a": torch.empty(5 << 28), "b": torch.empty(5)}, path)
    ours = open_checkpoint(path)
    assert ours["a"].load()[-1] == 0
    if os.name == "posix":  # Windows would commit memory of the file's size
        ours["b"].load()[:] = 1
    assert open_checkpoint(path)["b"].load().tolist() == [0] * 5


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.eye(2).to_sparse(), "an object of torch._utils._rebuild_sparse_tensor"),
        (torch.nn.Linear(1, 1), "an object of torch.nn.modules.linear.Linear"),
        (torch.ones(2).untyped_storage(), "a storage"),
        ([torch.ones(2)], "[a tensor]"),
        (torch.float32, "torch.float32"),
        (1 << 90, "1237940039285380274899124224"),
    ],
)
def test_other_objects_are_named_unless_they_are_excluded(value: object, found: str, tmp_path: Path) -> None:
    stored = saved({"a": torch.ones(2), "x": value})
    assert [*opened(stored, tmp_path, "x")] == ["a"]
    problem = f"tensor 'x': expected a tensor of torch or an array of numpy, found {found}"
    with pytest.raises(TensorError, match=f"^{re.escape(problem)}$"):
        opened(stored, tmp_path)


def test_old_pickles(tmp_path: Path) -> None:
    """Instructions of Python 2, and functions of torch before 0.4."""
    pid = b"(U\7storagectorch\nFloatStorage\nU\0010U\3cpuK\4NtQ"
    rebuilt = b"ctorch._utils\n_rebuild_tensor\n(" + pid + b"M\1\0K\3\x85\x8a\1\1\x85tR"
    stored = with_pickle(b"\x80\2ccollections\nOrderedDict\n](]r\0\1\0\0(U\1a" + rebuilt + b"ee\x85R.", FOUR)
    assert opened(stored, tmp_path)["a"].load().tolist() == [2, 3, 4]
    module = b"(" + text("module") + b"cmine\nModel\nNNtQ"
    with pytest.raises(FormatError, match=r"found: other Python objects \(an object of mine.Model\); save model.state_dict"):
        opened(with_pickle(b"\x80\2" + module + b")\x81Na(NNuNb.", b""), tmp_path)


GOOD = members({"a": torch.arange(4.0), "b": torch.ones(2)})
WHOLE = saved({"a": torch.arange(4.0), "b": torch.ones(2)})
RECORD, ITS_HEADER = WHOLE.rindex(b"archive/data/0") - 46, WHOLE.index(b"archive/data/0") - 30  # in and by the directory
END, END64 = len(WHOLE) - 22, len(WHOLE) - 98


def changed(*patches: tuple[int, bytes]) -> bytes:
    """Returns an archive of torch with other bytes at some positions."""
    stored = bytearray(WHOLE)
    for at, new in patches:
        stored[at : at + len(new)] = new
    return bytes(stored)


ENDS = "end: expected end records of the directory before them, found others"
ANOTHER_END = "a torch file, a zip archive up to its end, found another end: it may be incomplete"
NAMED = r"directory: expected \d unique names in one folder, found another number, a duplicate name or a second folder"
PACKED = "expected a record that is neither compressed nor encrypted, found another"
HEADER = "expected a header as in the directory, found another"
ZIP_FAULTS = {
    "cut off": (WHOLE[:-30], ANOTHER_END),
    "a lying comment": (changed((END + 20, b"\4")), ENDS),
    "another end record in a comment": (changed((END + 20, b"\x16")) + WHOLE[-22:], ENDS),
    "another disk at the end": (changed((END + 4, b"\1")), ENDS),
    "numbers beyond 64 bits": (changed((END + 16, b"\xff" * 4), (END64 + 48, b"\xff" * 8)), ENDS),
    "fewer entries": (changed((END + 8, b"\2\0\2"), (END64 + 24, b"\2"), (END64 + 32, b"\2")), NAMED),
    "a name again": (WHOLE.replace(b"archive/data/1", b"archive/data/0"), NAMED),
    "a name in upper case": (WHOLE.replace(b"archive/data/1", b"archive/DATA/0"), NAMED),
    "another folder": (WHOLE.replace(b"archive/data/0", b"another/data/0"), NAMED),
    "a magic": (changed((RECORD, b"QK")), "directory: expected the directory of an archive, found another: Bad"),
    "a newer zip": (changed((RECORD + 6, b"\xff")), "found another: zip file version 25.5"),
    "a name that is not UTF-8": (WHOLE.replace(b"archive/data/0", b"archive/data/\xff"), "another: 'utf-8' codec can't decode"),
    "a name with NUL": (WHOLE.replace(b"archive/data/0", b"archive/data\0x"), HEADER),
    "another local name": (changed((ITS_HEADER + 30, b"x")), HEADER),
    "deflated by its header": (changed((ITS_HEADER + 8, b"\x08")), HEADER),
    "a header behind the end": (changed((RECORD + 42, b"\0\0\0\x40")), HEADER),
    "encrypted": (changed((RECORD + 8, b"\x09")), PACKED),
    "deflated": (changed((RECORD + 10, b"\x08")), PACKED),
    "compressed bytes": (changed((RECORD + 20, b"\4")), PACKED),
    "on another disk": (changed((RECORD + 34, b"\1")), PACKED),
    "a folder with bytes": (changed((RECORD + 38, b"\x10")), PACKED),
    "two records at a place": (changed((RECORD + 42, bytes(4))), "expected at most 0 bytes before the next record or the dir"),
    "a record into the next": (changed((RECORD + 20, b"\xc8\0\0\0\xc8")), r"at most \d\d bytes before the next .*, found 200"),
    "an old version": (archive({**GOOD, "archive/version": b"0\n"}), r"expected version 1 to 10 .*, found version b'0\\n' and"),
    "big-endian": (archive({**GOOD, "archive/byteorder": b"big"}), "little-endian numbers, found .* and byteorder b'big'"),
    "TorchScript": (archive({**GOOD, "archive/constants.pkl": b""}), "only tensors, found: TorchScript; save model"),
    "no pickle": (archive({"m/version": b"3\n"}), "data.pkl: expected a whole pickle, found 0 bytes"),
    "a short storage": (archive({**GOOD, "archive/data/0": b"1234"}), "expected the storage '0' of 16 bytes, found 4 bytes"),
    "no storage": (WHOLE.replace(b"archive/data/0", b"archive/data/9"), "expected the storage '0' of 16 bytes, found none"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ZIP_FAULTS)
def test_archives_that_readers_disagree_on(fault: str, tmp_path: Path) -> None:
    stored, message = ZIP_FAULTS[fault]
    with pytest.raises(FormatError, match=message) as caught:
        opened(stored, tmp_path)
    assert caught.value.file == str(tmp_path / "m.pt")


def test_files_of_other_writers(tmp_path: Path) -> None:
    assert opened(archive({"archive/": b"", **GOOD}), tmp_path)["a"].load().tolist() == [0, 1, 2, 3]


BROKEN = "expected a pickle as torch.save writes it, with its pickle_protocol 2, found another"
GLOBAL = b"cos\nsystem\n"
PICKLES = {
    "a frame of protocol 4": (b"\x80\4\x95" + bytes(8) + b".", BROKEN),
    "an empty stack": (b"\x80\2.", BROKEN),
    "no memo": (b"\x80\2h\7.", BROKEN),
    "an odd number of items": (b"\x80\2}(Nu.", BROKEN),
    "items of a number": (b"\x80\2K\1NNs.", BROKEN),
    "a list in a number": (b"\x80\2K\1Na.", BROKEN),
    "a call of a number": (b"\x80\2K\1)R.", BROKEN),
    "a call of an object": (b"\x80\2" + GLOBAL + b")R)R.", BROKEN),
    "a call without a tuple": (b"\x80\2" + GLOBAL + b"NR.", BROKEN),
    "a persistent number": (b"\x80\2K\1Q.", BROKEN),
    "a negative storage": (entry(tensor(numel=b"J\xff\xff\xff\xff")), BROKEN),
    "a storage of two types": (entry(tensor())[:-1] + text("b") + tensor("torch\nIntStorage") + b"s.", BROKEN),
    "a view of a storage": (entry(tensor(numel=b"K\4" + text("1") + b"K\0K\2\x87")), BROKEN),
    "fewer strides": (entry(tensor(view=b"K\0K\4\x85)")), BROKEN),
    "a negative stride": (entry(tensor(view=b"K\3K\4\x85J\xff\xff\xff\xff\x85")), BROKEN),
    "a size that is a float": (entry(tensor(view=b"K\0G" + bytes(8) + b"\x85K\1\x85")), BROKEN),
    "a number cut off": (b"\x80\2J\0", "data.pkl: expected a whole pickle, found 4 bytes"),
    "no end": (b"\x80\2}", "expected a whole pickle, found 3 bytes"),
    "65 dims": (entry(tensor(view=b"K\0(" + b"K\1" * 65 + b"t(" + b"K\1" * 65 + b"t")), r"\(limit dims\)"),
    "a call": (b"\x80\2" + GLOBAL + text("false") + b"\x85R.", r"other Python objects \(an object of os.system\); save model"),
    "a hostile name": (b"\x80\2cos\n\x1b[31m\xe2\x80\xae\n.", r"other Python objects \('os.\\x1b\[31m\\u202e'\); save model"),
    "elements behind the storage": (
        entry(tensor(view=b"K\1K\4\x85K\1\x85")),
        r"expected elements of its storage of 4, found dims \[4\] up to element 4 \(tensor 'a'\)",
    ),
    "too many elements": (
        entry(tensor(view=b"K\0(K\0" + 3 * b"\x8a\6\0\0\0\0\0\1" + b"t(K\1K\1K\1K\1t")),
        r"expected elements of its storage of 4, found dims \[0, 1099511627776, ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PICKLES)
def test_pickles_that_torch_does_not_write(fault: str, tmp_path: Path) -> None:
    stored, message = PICKLES[fault]
    with pytest.raises(FormatError, match=message) as caught:
        opened(with_pickle(stored, FOUR), tmp_path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("storage", "found"), [("torch\nNew", "torch.New"), ("os\nFloatStorage", "os.FloatStorage")])
def test_dtypes_that_torch_does_not_have(storage: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=f"tensor 'a': expected a dtype of numbers that can be read, found '{found}'"):
        opened(with_pickle(entry(tensor(storage)), FOUR), tmp_path)


@pytest.mark.parametrize(("storage", "flag"), [("ComplexFloat", "conj"), ("ComplexFloat", "neg"), ("Float", "neg")])
def test_flags_count_even_if_they_are_false(storage: str, flag: str, tmp_path: Path) -> None:
    """As in torch."""
    false = tensor(f"torch\n{storage}Storage", more=b"}" + text(flag) + b"\x89s")
    found = opened(with_pickle(entry(false), FOUR * (1 + (storage != "Float"))), tmp_path)["a"].load()
    assert torch.equal(as_tensor(found), torch.load(tmp_path / "m.pt", weights_only=True)["a"])


@pytest.mark.parametrize(("storage", "payload", "found"), [("Int", FOUR, "int32"), ("BFloat16", FOUR[:8], "bfloat16")])
def test_only_floats_are_negated(storage: str, payload: bytes, found: str, tmp_path: Path) -> None:
    negated = tensor(f"torch\n{storage}Storage", more=b"}" + text("neg") + b"\x88s")
    with pytest.raises(TensorError, match=f"tensor 'a': expected numbers that can be negated, found {found}"):
        opened(with_pickle(entry(negated), payload), tmp_path)


def legacy(
    keys: Any = ("0",), behind: bytes = struct.pack("<Q", 4) + FOUR, content: bytes = entry(tensor()), **head: Any
) -> bytes:
    """Returns a file of torch before 1.6: five pickles, and storages."""
    magic, protocol, system = (
        {"magic": 0x1950A86A20F9469CFC6C, "protocol": 1001, "system": {"little_endian": True}} | head
    ).values()
    before, after = ([pickle.dumps(value, 2) for value in values] for values in ((magic, protocol, system), ([*keys],)))
    return b"".join([*before, content, *after, behind])


ONCE = "expected each storage once, with the number of its elements, found "


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (legacy(protocol=7), "expected protocol 1001 and little-endian numbers, found protocol 7"),
        (legacy(system={"little_endian": False}), "protocol 1001, little-endian False"),
        (legacy(["1"]), f"{ONCE}'1'"),
        (legacy([(1,)]), rf"{ONCE}\(1,\) \(at byte"),
        (legacy(["0", "0"], 2 * (struct.pack("<Q", 4) + FOUR)), ONCE),
        (legacy(behind=struct.pack("<Q", 5) + FOUR), ONCE),
        (legacy([]), "expected the storage '0' of 16 bytes, found none"),
        (legacy(behind=struct.pack("<Q", 4) + FOUR[1:]), r"expected \d+ bytes, found \d+ \(at"),
        (legacy(content=b"", behind=b""), r"expected a whole pickle, found \d+ bytes"),
    ],
)
def test_legacy_files_with_faults(stored: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        opened(stored, tmp_path)


def test_a_legacy_file_is_read_in_parts(tmp_path: Path) -> None:
    stored = legacy(content=entry(tensor())[:-1] + text("b") + text("x" * 100_000) + b"s.")
    assert opened(stored, tmp_path, "b")["a"].load().tolist() == [1, 2, 3, 4]
    with Limits(objects=100), pytest.raises(LimitError, match=r"expected at most 100 tensors with 80 bytes .*, found 12\d\d"):
        opened(stored, tmp_path)


@pytest.mark.parametrize(
    ("limits", "stored", "message"),
    [
        ({"objects": 3}, WHOLE, r"directory: expected at most 3 records .*, found"),
        ({"metadata": 300}, WHOLE, r"directory: expected at most 300 bytes .*, found"),
        ({"objects": 10}, with_pickle(entry(text("x" * 1000)), FOUR),
         r"data.pkl: expected at most 10 tensors with 80 bytes of a pickle each .*, found 12 \(limit objects\)"),
    ],
)  # fmt: skip
def test_limits(limits: dict[str, int], stored: bytes, message: str, tmp_path: Path) -> None:
    with Limits(**limits), pytest.raises(LimitError, match=message):
        opened(stored, tmp_path)


def test_repeated_elements(tmp_path: Path) -> None:
    """Neither one tensor nor many, equal or not, may have much more values than the file."""
    rows = torch.arange(1 << 20, dtype=torch.uint8)
    views = {str(i): rows[i:] for i in range(34)}
    assert len(opened(saved(views), tmp_path)) == 34
    flagged = torch.ones(1 << 20, dtype=torch.complex64).conj().imag  # each name would be computed
    for many in (views | {"34": rows}, {str(i): rows for i in range(99)}, {str(i): flagged for i in range(99)}):
        problem = r"tensors up to '\d+': expected at most 16 times their stored bytes .*, found 17 \(limit repeats\)"
        with pytest.raises(LimitError, match=problem):
            opened(saved(many), tmp_path)
    with pytest.raises(LimitError, match=r"tensors up to 'a': .* found 63 "):
        opened(saved({"a": torch.ones(1).expand(1 << 12, 1 << 12)}), tmp_path)
    assert opened(saved({"a": torch.ones(1).expand(8, 8)}), tmp_path)["a"].shape == (8, 8)


def test_tensors_beside_nested_ones_are_not_lost(tmp_path: Path) -> None:
    nested = {"model": {"a": torch.ones(2)}, "b": torch.ones(3), "step": 3, "optimizer": {"c": torch.ones(1)}}
    assert {name: tensor.shape for name, tensor in opened(saved(nested), tmp_path).items()} == {"a": (2,), "b": (3,)}
    with pytest.raises(FormatError, match=r"expected unique names, found a tensor in and beside 'model' \(tensor 'a'\)"):
        opened(saved(nested | {"a": torch.ones(3)}), tmp_path)


def with_decoy(nbytes: int) -> bytes:
    """Returns an archive of a compressed storage, with another directory that zipfile finds."""
    stored = archive({**GOOD, "archive/data/0": bytes(nbytes)}, zipfile.ZIP_DEFLATED)
    start = struct.unpack("<I", stored[-6:-2])[0]
    return stored[:-22] + stored[start:-22].replace(b"PK\1\2\x14\3\x14\0\0\0\x08", b"PK\1\2\x14\3\x14\0\0\0\0") + stored[-22:]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_small_files_of_much(tmp_path: Path) -> None:
    """Shared tuples, deep lists, a list in itself, and a decoy directory, in 64 MiB."""
    shared, dicts = b")" + b"q\0h\0\x86" * 250, "expected a dict of tensors, found "
    pickles = {
        shared: f"{dicts}{'(' * 77}...",
        b"]" * 100_000 + b"a" * 99_999: f"{dicts}{'[' * 77}...",
        b"]q\0h\0a": f"{dicts}{'[' * 77}...",
        b"}" + text("a") + b"}" + shared + b"Nss":
            f"tensor 'a': expected a tensor of torch or an array of numpy, found {{{'(' * 76}...",
        b"(](" + b"(NNt" * 9000 + b"e\x85q\0" + b"ccollections\nOrderedDict\nh\0R" * 9000 + b"t":
            f"{dicts}(([],), {{None: None",
    }  # fmt: skip
    files = {with_pickle(b"\x80\2" + stored + b".", b""): problem for stored, problem in pickles.items()}
    files[with_decoy(1 << 27)] = ENDS
    for number, stored in enumerate(files):
        (tmp_path / str(number)).write_bytes(stored)
    done = forked.run("tests.tools.opened_in_little", *(tmp_path / str(number) for number in range(len(files))))
    for found, problem in zip(done.stdout.splitlines(), files.values(), strict=True):
        assert found.startswith(problem)


def test_every_seed_of_the_search_keeps_its_promises() -> None:
    random = Random(0)
    for stored in torch_files.seeds():
        torch_files.check_promises(stored)
        for _ in range(5):
            bad = bytearray(stored)
            bad[random.randrange(len(bad))] ^= 1 << random.randrange(8)
            torch_files.check_promises(bytes(bad))
