"""Files of `torch.save`, compared with torch's own reader, and hostile files written by hand."""

from __future__ import annotations

import io
import math
import pickle
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
from hypothesis import given
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
from tests.tools.torch_archives import Member, archive, entry, members, saved, tensor, text, with_pickle

FOUR = struct.pack("<4f", 1, 2, 3, 4)
NAMES = sorted({name for name in DTYPES.values() if hasattr(torch, name) and name in (*STORED, "complex128")})
OLD_NAMES = sorted({name for type_, name in DTYPES.items() if type_ != name})  # torch loads no others from legacy files


def opened(stored: bytes, folder: Path, *exclude: str) -> dict[str, Any]:
    path = folder / "m.pt"
    path.write_bytes(stored)
    return open_checkpoint(path, exclude)


def same(ours: np.ndarray, theirs: torch.Tensor) -> bool:
    expected = as_array(theirs)
    return (ours.dtype, ours.shape) == (expected.dtype, expected.shape) and array_bytes(ours) == array_bytes(expected)


def state_dict(random: Random, dtypes: list[str]) -> dict[str, torch.Tensor]:
    """Returns tensors of any dtype: some are views of others, parameters, conjugated or negated."""
    tensors: dict[str, torch.Tensor] = {}
    for i in range(random.randint(1, 6)):
        drawn = random.choice([*tensors.values()]).detach() if tensors and random.random() < 0.5 else new_tensor(random, dtypes)
        way = random.choice(["same", "transposed", "part", "expanded", "conj", "imag", "parameter", "attribute"])
        if drawn.ndim and way == "transposed":
            drawn = drawn.transpose(0, -1)
        elif drawn.ndim and way == "part":
            drawn = drawn[random.randint(0, 2) :: 2]
        elif way == "expanded":
            drawn = drawn.unsqueeze(0).expand(3, *drawn.shape)
        elif drawn.is_complex() and drawn.dtype != torch.complex32:
            drawn = drawn.clone().conj().imag if way == "imag" else drawn.conj()
        elif way == "parameter":
            drawn = torch.nn.Parameter(drawn, requires_grad=False)
        elif way == "attribute":
            drawn = drawn.view(drawn.shape)
            drawn.note = "saved, too"  # type: ignore[attr-defined]
        tensors[random.choice(["layer.", "\u00e9", "\n"]) + str(i)] = drawn
    return tensors


def new_tensor(random: Random, dtypes: list[str]) -> torch.Tensor:
    dtype = getattr(torch, random.choice(dtypes))
    shape = random.choices(range(5), k=random.randint(0, 3))
    numbers = torch.tensor(random.choices(range(256), k=math.prod(shape) * dtype.itemsize), dtype=torch.uint8)
    values = numbers > 127 if dtype == torch.bool else numbers.view(dtype)
    return values.view(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(seed=st.integers(0, 1 << 32), zipped=st.booleans(), ordered=st.booleans())
def test_every_tensor_is_the_one_that_torch_loads(
    seed: int, zipped: bool, ordered: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensors = state_dict(Random(seed), NAMES if zipped else OLD_NAMES)
    content: Any = OrderedDict(tensors) if ordered else tensors
    if ordered:
        content._metadata = OrderedDict({"": {"version": 1}})
    stored = saved({"state_dict": content, "step": 3}, _use_new_zipfile_serialization=zipped)
    ours = opened(stored, tmp_path_factory.mktemp("torch"))
    theirs = torch.load(io.BytesIO(stored), weights_only=True)["state_dict"]
    assert [*ours] == [*theirs]
    for name, loaded in theirs.items():
        assert same(ours[name].load(), loaded), name


@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_of_training_scripts(zipped: bool, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": io.StringIO, "seen": {(1, 2): {3}}}
    ours = opened(saved(checkpoint, _use_new_zipfile_serialization=zipped), tmp_path)
    assert {name: tensor.load().tolist() for name, tensor in ours.items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }


def test_a_big_file_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with torch.serialization.skip_data():
        torch.save({"a": torch.empty(5 << 28), "b": torch.empty(5)}, path)
    ours = open_checkpoint(path)
    assert ours["a"].load()[-1] == 0
    ours["b"].load()[:] = 1
    assert open_checkpoint(path)["b"].load().tolist() == [0] * 5


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_other_objects(tmp_path: Path) -> None:
    sparse = torch.eye(2).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    contents = {
        "a": torch.ones(2), "sparse": sparse, "quantized": quantized, "meta": torch.ones(2, device="meta"), 3: 4,
        "numpy": np.float32(1), "whole": torch.nn.Linear(1, 1), "storage": torch.ones(2).untyped_storage(),
        "list": [torch.ones(2)], "size": torch.Size([1]), "set": {1}, "dtype": torch.float32, "long": 1 << 90,
        "bytes": b"x", "nan": 1.5,
    }  # fmt: skip
    expected = "expected a tensor of torch or an array of numpy"
    for name, found in {
        "sparse": f"{expected}, found an object of torch._utils._rebuild_sparse_tensor",
        "quantized": f"{expected}, found an object of torch._utils._rebuild_qtensor",
        "meta": f"{expected}, found an object of torch._utils._rebuild_meta_tensor",
        3: "tensor '3': expected a string as the name of a tensor",
        "numpy": f"tensor 'numpy': {expected}, found an object of numpy._core.multiarray.scalar",
        "whole": f"tensor 'whole': {expected}, found an object of torch.nn.modules.linear.Linear",
        "storage": f"{expected}, found a storage",
        "list": f"{expected}, found [a tensor]",
        "size": f"{expected}, found an object of torch.Size",
        "dtype": f"{expected}, found torch.float32",
        "long": f"{expected}, found 1237940039285380274899124224",
    }.items():
        stored = saved({"a": contents["a"], name: contents[name]})
        if isinstance(name, str):
            assert [*opened(stored, tmp_path, name)] == ["a"]
        with pytest.raises(TensorError) as caught:
            opened(stored, tmp_path)
        assert found.replace("numpy._core", np.float32(1).__reduce__()[0].__module__.rpartition(".")[0]) in str(caught.value)
    assert [*opened(saved(contents), tmp_path, *(name for name in contents if isinstance(name, str) and name != "a"), "3")] == [
        "a"
    ]


def test_old_pickles(tmp_path: Path) -> None:
    """Instructions of Python 2, and functions of torch before 0.4."""
    pid = b"(U\7storagectorch\nFloatStorage\nU\0010U\3cpuK\4NtQ"
    rebuilt = b"ctorch._utils\n_rebuild_tensor\n(" + pid + b"M\1\0K\3\x85\x8a\1\1\x85tR"
    stored = with_pickle(b"\x80\2ccollections\nOrderedDict\n](]r\0\1\0\0(U\1a" + rebuilt + b"ee\x85R.", FOUR)
    assert opened(stored, tmp_path)["a"].load().tolist() == [2, 3, 4]
    module = b"(" + text("module") + b"cmine\nModel\nNNtQ"
    with pytest.raises(FormatError, match=r"found: other Python objects \(an object of mine.Model\); save model.state_dict"):
        opened(with_pickle(b"\x80\2" + module + b")\x81Na(NNuNb."), tmp_path)


def test_files_of_other_writers(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as other:
        other.writestr("archive/", b"")
        for member in members({"a": torch.ones(3)}):
            other.writestr(str(member.name), member.stored)
    assert open_checkpoint(tmp_path / "other.pt")["a"].load().tolist() == [1, 1, 1]


GOOD = members({"a": torch.arange(4.0), "b": torch.ones(2)})
PLACES = {member.name.partition("/")[2]: i for i, member in enumerate(GOOD)}  # type: ignore[arg-type]


def changed(record: str = "data/0", /, **faults: Any) -> bytes:
    """Returns an archive with a fault in one record."""
    return archive([member._replace(**faults) if i == PLACES[record] else member for i, member in enumerate(GOOD)])


def of_zip64(extra: bytes) -> bytes:
    return changed(nbytes=0xFFFFFFFF, extra=extra)


WHOLE = archive(GOOD)
ALL = len(WHOLE)
ENDS = "end: expected end records of the directory before them, found others"
NAMED = r"directory: expected \d+ unique names in one folder, found another number, a duplicate name or a second folder"
STORED = "expected a record that is neither compressed nor encrypted, found another"
HEADER = "expected a header as in the directory, found another"
ZIP_FAULTS = {
    "bytes in front": (b"x" * 16 + WHOLE, "expected .*, found"),
    "a byte behind": (WHOLE + b"x", "a torch file, a zip archive up to its end, found another end: it may be incomplete"),
    "a comment": (archive(GOOD, {"comment": 4}) + b"abcd", "a zip archive up to its end, found another end"),
    "cut off": (WHOLE[:-30], "a zip archive up to its end, found another end"),
    "a lying comment": (archive(GOOD, {"comment": 4}), ENDS),
    "another end record in a comment": (archive(GOOD, {"comment": 22}) + WHOLE[-22:], ENDS),
    "disks": (archive(GOOD, {"disks": 1}), ENDS),
    "entries elsewhere": (archive(GOOD, {"here": 1}), ENDS),
    "other numbers": (archive(GOOD, {"count": 2}), ENDS),
    **{f"zip64 {name}": (archive(GOOD, None, {name: number}), ENDS) for name, number in (
        ("start", 2), ("end64", 2), ("nbytes", 45), ("disks", 1), ("disk", 1), ("n_disks", 2), ("here", 1))},
    "zip64 magic": (WHOLE[: ALL - 98] + b"x" + WHOLE[ALL - 97 :], ENDS),
    "a gap behind the directory": (archive(GOOD, {"size": 100}, {"size": 100}), ENDS),
    "bytes before the directory": (archive(GOOD, {"start": 1}, {"start": 1}), ENDS),
    "numbers beyond 64 bits": (archive(GOOD, {"start": 0xFFFFFFFF}, {"start": (1 << 64) - 1}), ENDS),
    "fewer entries": (archive(GOOD, {"count": 2}, {"count": 2}), NAMED),
    "more entries": (archive(GOOD, {"count": 99}, {"count": 99}), NAMED),
    "a name again": (archive([*GOOD, GOOD[0]]), NAMED),
    "a name again, counted once": (archive([*GOOD, GOOD[0]], {"count": len(GOOD)}, {"count": len(GOOD)}), NAMED),
    "a name in upper case": (archive([*GOOD, GOOD[0]._replace(name="archive/DATA.PKL")]), NAMED),
    "no folder": (changed(name="data"), NAMED),
    "another folder": (changed(name="other/data/0"), NAMED),
    "a magic": (WHOLE.replace(b"PK\1\2", b"PK\1\3", 1), "directory: expected the directory of an archive, found another: Bad"),
    "a local magic": (WHOLE[:3] + b"\5" + WHOLE[4:], "expected .*, found"),
    "a name with NUL": (changed(name="archive/data/0\0x"), HEADER),
    "a name that is not UTF-8": (changed(name=b"archive/\xff", flags=0x800), "found another: 'utf-8' codec can't decode"),
    "another local name": (changed(local="archive/data/x"), HEADER),
    "deflated by its header": (changed(local_method=8), HEADER),
    "a header behind the end": (changed(start=1 << 30), HEADER),
    "a deflated record": (changed(method=8), STORED),
    "a folder with bytes": (changed(external=16), STORED),
    "another disk": (changed(disk=1), STORED),
    "an encrypted record": (changed(flags=1), STORED),
    "compressed bytes": (changed(packed=4), STORED),
    "two records at a place": (changed(start=0), "expected at most 0 bytes before the next record or the directory, found"),
    "a record into the next": (changed(nbytes=200), "expected at most 16 bytes before the next record or .*, found 200"),
    "zip64 without a part": (of_zip64(b""), "expected at most 16 bytes before the next record or .*, found 4294967295"),
    "zip64 with a short part": (of_zip64(struct.pack("<2HQ", 1, 8, 16)), "found another: Corrupt zip64 extra field"),
    "zip64 with a part that is cut off": (of_zip64(struct.pack("<2HQ", 1, 16, 16)), "found another: Corrupt extra field"),
    "a newer zip": (WHOLE.replace(b"PK\1\2\0\0\0\0", b"PK\1\2\0\0\xff\0"), "found another: zip file version 25.5"),
    "an old version": (changed("version", stored=b"0\n"), r"expected version 1 to 10 and .*, found version b'0\\n' and"),
    "no version": (archive([m for m in GOOD if "version" not in m.name]), "found version b'' and"),  # type: ignore[operator]
    "big-endian": (changed("byteorder", stored=b"big"), "little-endian numbers, found version .* and byteorder b'big'"),
    "TorchScript": (archive([*GOOD, Member("archive/constants.pkl", b"")]), "only tensors, found: TorchScript; save model"),
    "no pickle": (changed("data.pkl", name="archive/data.txt"), "data.pkl: expected a whole pickle, found 0 bytes"),
    "a short storage": (changed(stored=b"1234"), "expected the storage '0' of 16 bytes, found 4 bytes"),
    "a missing storage": (changed(name="archive/data/9"), "expected the storage '0' of 16 bytes, found none"),
}  # fmt: skip


def test_the_archives_of_the_table_are_good_without_a_fault(tmp_path: Path) -> None:
    assert opened(WHOLE, tmp_path)["a"].load().tolist() == torch.load(io.BytesIO(WHOLE), weights_only=True)["a"].tolist()
    large = struct.pack("<2HQ2HQQ", 7, 8, 0, 1, 16, 16, 16)
    assert opened(of_zip64(large), tmp_path)["a"].load().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("fault", ZIP_FAULTS)
def test_archives_that_readers_disagree_on(fault: str, tmp_path: Path) -> None:
    stored, message = ZIP_FAULTS[fault]
    with pytest.raises(FormatError, match=message) as caught:
        opened(stored, tmp_path)
    assert caught.value.file == str(tmp_path / "m.pt") or fault == "bytes in front"


BROKEN = "expected a pickle as torch.save writes it, with its pickle_protocol 2, found another"
GLOBAL = b"cos\nsystem\n"
PICKLES = {
    "a frame of protocol 4": (b"\x80\4\x95" + bytes(8) + b".", BROKEN),
    "an empty stack": (b"\x80\2.", BROKEN),
    "no mark": (b"\x80\2}t.", BROKEN),
    "too few objects": (b"\x80\2N\x86.", BROKEN),
    "no memo": (b"\x80\2h\7.", BROKEN),
    "bytes that are not UTF-8": (b"\x80\2X\1\0\0\0\xff.", BROKEN),
    "an odd number of items": (b"\x80\2}(Nu.", BROKEN),
    "items of a number": (b"\x80\2K\1NNs.", BROKEN),
    "a list in a number": (b"\x80\2K\1Na.", BROKEN),
    "a call of a number": (b"\x80\2K\1)R.", BROKEN),
    "a call of an object": (b"\x80\2" + GLOBAL + b")R)R.", BROKEN),
    "a call without a tuple": (b"\x80\2" + GLOBAL + b"NR.", BROKEN),
    "an object of a number": (b"\x80\2K\1)\x81.", BROKEN),
    "a long name": (b"\x80\2c" + b"x" * 1000 + b"\nx\n.", r"other Python objects \('x*'... \(1002 in all\)\); save"),
    "a persistent number": (b"\x80\2K\1Q.", BROKEN),
    "a negative storage": (entry(tensor(numel=b"J\xff\xff\xff\xff")), BROKEN),
    "a storage of two types": (
        b"\x80\2}" + text("a") + tensor() + b"s" + text("b") + tensor("torch\nIntStorage") + b"s.",
        BROKEN,
    ),
    "a view of a storage": (entry(tensor(numel=b"K\4" + text("1") + b"K\0K\2\x87")), BROKEN),
    "fewer strides": (entry(tensor(view=b"K\0K\4\x85)")), BROKEN),
    "a negative stride": (entry(tensor(view=b"K\3K\4\x85J\xff\xff\xff\xff\x85")), BROKEN),
    "a size that is a float": (entry(tensor(view=b"K\0G" + bytes(8) + b"\x85K\1\x85")), BROKEN),
    "an argument cut off": (b"\x80\2X\xff\0\0\0abc", "data.pkl: expected a whole pickle, found 10 bytes"),
    "a number cut off": (b"\x80\2J\0", "expected a whole pickle, found 4 bytes"),
    "a byte cut off": (b"\x80\2K", BROKEN),
    "a name cut off": (b"\x80\2cos", "expected a whole pickle, found 5 bytes"),
    "no end": (b"\x80\2}", "expected a whole pickle, found 3 bytes"),
    "65 dims": (entry(tensor(view=b"K\0(" + b"K\1" * 65 + b"t(" + b"K\1" * 65 + b"t")), "limit dims"),
    "a call": (b"\x80\2" + GLOBAL + text("false") + b"\x85R.", r"other Python objects \(an object of os.system\); save model"),
    "a hostile name": (b"\x80\2cos\n\x1b[31m\xe2\x80\xae\n.", r"other Python objects \('os.\\x1b\[31m\\u202e'\); save model"),
    "a number": (b"\x80\2K\7.", "expected a dict of tensors, found 7"),
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
    with pytest.raises(FormatError) as caught:
        opened(with_pickle(stored, FOUR), tmp_path)
    assert str(caught.value).isprintable()
    with pytest.raises(FormatError, match=message if "\\" in message else message.replace("(", r"\(")):
        opened(with_pickle(stored, FOUR), tmp_path)


def test_dtypes_that_torch_does_not_have(tmp_path: Path) -> None:
    for storage in ("torch\nNewStorage", "os\nFloatStorage"):
        expected = r"tensor 'a': expected a dtype of numbers that can be read, found '(torch.New|os.Float)Storage'"
        with pytest.raises(TensorError, match=expected):
            opened(with_pickle(entry(tensor(storage)), FOUR), tmp_path)


@pytest.mark.parametrize("storage", ["ComplexFloatStorage", "FloatStorage"])
@pytest.mark.parametrize("flag", ["conj", "neg"])
@pytest.mark.parametrize("value", [b"\x88", b"\x89"], ids=["True", "False"])
def test_flags_count_whatever_their_value(storage: str, flag: str, value: bytes, tmp_path: Path) -> None:
    """As in torch, which refuses to conjugate real numbers."""
    payload = 2 * FOUR if storage[0] == "C" else FOUR
    stored = with_pickle(entry(tensor(f"torch\n{storage}", more=b"}" + text(flag) + value + b"s")), payload)
    (tmp_path / "torch.pt").write_bytes(stored)
    found = as_tensor(opened(stored, tmp_path)["a"].load())
    if flag == "conj" and not found.is_complex():
        stored = with_pickle(entry(tensor(f"torch\n{storage}")), payload)
        (tmp_path / "torch.pt").write_bytes(stored)
    assert torch.equal(found, torch.load(tmp_path / "torch.pt", weights_only=True)["a"])


@pytest.mark.parametrize(
    ("storage", "found"), [("BoolStorage", "bool"), ("IntStorage", "int32"), ("BFloat16Storage", "bfloat16")]
)
def test_only_floats_are_negated(storage: str, found: str, tmp_path: Path) -> None:
    payload = bytes({"bool": 4, "int32": 16, "bfloat16": 8}[found])
    stored = with_pickle(entry(tensor(f"torch\n{storage}", more=b"}" + text("neg") + b"\x88s")), payload)
    with pytest.raises(TensorError, match=f"tensor 'a': expected numbers that can be negated, found {found}"):
        opened(stored, tmp_path)


def legacy(*values: object, behind: bytes = b"") -> bytes:
    return b"".join(value if isinstance(value, bytes) else pickle.dumps(value, 2) for value in values) + behind


HEAD = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
BEHIND = struct.pack("<Q", 4) + FOUR


def test_legacy_files(tmp_path: Path) -> None:
    good = legacy(*HEAD, entry(tensor()), ["0"], behind=BEHIND)
    assert opened(good, tmp_path)["a"].load().tolist() == [1, 2, 3, 4]
    long = entry(text("x" * 100_000), "b")[:-1].replace(b"\x80\2}", b"", 1)
    stored = legacy(*HEAD, entry(tensor())[:-1] + long + b".", ["0"], behind=BEHIND)
    assert opened(stored, tmp_path, "b")["a"].load().tolist() == [1, 2, 3, 4]
    for bad, message in (
        (legacy(1, *HEAD[1:], entry(tensor()), ["0"]), "expected .*, found"),
        (
            legacy(HEAD[0], 7, HEAD[2], entry(tensor()), ["0"]),
            "expected protocol 1001 and little-endian numbers, found protocol 7",
        ),
        (legacy(*HEAD[:2], {"little_endian": False}, entry(tensor()), ["0"]), "protocol 1001, little-endian False"),
        (legacy(*HEAD[:2], [], entry(tensor()), ["0"]), "protocol 1001, little-endian None"),
        (
            legacy(*HEAD, entry(tensor()), ["1"], behind=BEHIND),
            "expected each storage once, with the number of its elements, found '1'",
        ),
        (legacy(*HEAD, entry(tensor()), [(1,)], behind=BEHIND), r"found \(1,\) \(at byte"),
        (legacy(*HEAD, entry(tensor()), ["0", "0"], behind=2 * BEHIND), "expected each storage once"),
        (legacy(*HEAD, entry(tensor()), ["0"], behind=struct.pack("<Q", 5) + FOUR), "expected each storage once"),
        (legacy(*HEAD, entry(tensor()), 3), "expected the storage '0' of 16 bytes, found none"),
        (legacy(*HEAD, entry(tensor()), ["0"], behind=BEHIND[:-1]), r"expected \d+ bytes, found \d+ \(at"),
        (legacy(*HEAD, entry(tensor())), r"expected a whole pickle, found \d+ bytes"),
    ):
        with pytest.raises(FormatError, match=message):
            opened(bad, tmp_path)
    with Limits(objects=100), pytest.raises(LimitError, match=r"expected at most 100 tensors with 80 bytes .*, found 12\d\d"):
        opened(stored, tmp_path)


def test_limits(tmp_path: Path) -> None:
    with Limits(objects=3), pytest.raises(LimitError, match=r"directory: expected at most 3 records .*, found"):
        opened(WHOLE, tmp_path)
    with Limits(metadata=300), pytest.raises(LimitError, match=r"directory: expected at most 300 bytes .*, found"):
        opened(WHOLE, tmp_path)
    with (
        Limits(objects=10),
        pytest.raises(
            LimitError,
            match=r"data.pkl: expected at most 10 tensors with 80 bytes of a pickle each .*, found 12 \(limit objects\)",
        ),
    ):
        opened(with_pickle(entry(text("x" * 1000)), FOUR), tmp_path)


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
    with Limits(repeats=100):
        assert len(opened(saved({str(i): rows for i in range(99)}), tmp_path)) == 99
    with pytest.raises(LimitError, match=r"tensors up to 'a': .* found 63 "):
        opened(saved({"a": torch.ones(1).expand(1 << 12, 1 << 12)}), tmp_path)
    assert opened(saved({"a": torch.ones(1).expand(8, 8)}), tmp_path)["a"].shape == (8, 8)


def test_tensors_beside_nested_ones_are_not_lost(tmp_path: Path) -> None:
    ours = opened(
        saved({"model": {"a": torch.ones(2)}, "b": torch.ones(3), "step": 3, "optimizer": {"c": torch.ones(1)}}), tmp_path
    )
    assert {name: tensor.shape for name, tensor in ours.items()} == {"a": (2,), "b": (3,)}
    with pytest.raises(FormatError, match=r"expected unique names, found a tensor in and beside 'model' \(tensor 'a'\)"):
        opened(saved({"model": {"a": torch.ones(2)}, "a": torch.ones(3)}), tmp_path)


def with_decoy(nbytes: int) -> bytes:
    """Returns an archive of a compressed storage, with another directory that zipfile finds."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bomb:
        for member in members({"a": torch.ones(4)}):
            bomb.writestr(
                str(member.name), member.stored.ljust(nbytes, b"\0") if "data/0" in str(member.name) else member.stored
            )
    stored = stream.getvalue()
    start = struct.unpack("<I", stored[-6:-2])[0]
    return stored[:-22] + stored[start:-22].replace(b"PK\1\2\x14\3\x14\0\0\0\x08", b"PK\1\2\x14\3\x14\0\0\0\0") + stored[-22:]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_small_files_of_much(tmp_path: Path) -> None:
    """Shared tuples, deep lists, a list in itself, and a decoy directory, in 64 MiB."""
    shared = b")" + b"q\0h\0\x86" * 250
    pickles = {
        "shared": shared,
        "deep": b"]" * 100_000 + b"a" * 99_999,
        "circular": b"]q\0h\0a",
        "keys": b"}" + text("a") + b"}" + shared + b"Nss",
        "calls": b"(](" + b"(NNt" * 9000 + b"e\x85q\0" + b"ccollections\nOrderedDict\nh\0R" * 9000 + b"t",
    }
    files = {name: with_pickle(b"\x80\2" + stored + b".") for name, stored in pickles.items()} | {"decoy": with_decoy(1 << 27)}
    for name, stored in files.items():
        (tmp_path / name).write_bytes(stored)
    done = forked.run("tests.tools.opened_in_little", *(tmp_path / name for name in files))
    found = dict(zip(files, done.stdout.splitlines(), strict=True))
    assert found["shared"] == f"expected a dict of tensors, found {'(' * 77}..."
    assert found["deep"] == found["circular"] == f"expected a dict of tensors, found {'[' * 77}..."
    assert found["keys"] == f"tensor 'a': expected a tensor of torch or an array of numpy, found {{{'(' * 76}..."
    assert found["calls"].startswith("expected a dict of tensors, found (([],), {None: None")
    assert found["decoy"].startswith(ENDS)


def test_every_seed_of_the_search_keeps_its_promises() -> None:
    random = Random(0)
    for stored in torch_files.seeds():
        torch_files.check_promises(stored)
        for _ in range(5):
            bad = bytearray(stored)
            bad[random.randrange(len(bad))] ^= 1 << random.randrange(8)
            torch_files.check_promises(bytes(bad))
