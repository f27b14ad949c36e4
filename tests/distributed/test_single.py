"""One process, without a group: errors, and ranks that are threads."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, PrefixStore, TCPStore, checkpoint

import glft_schema as glft
from glft_schema.codec.context import BIG
from glft_schema.distributed import StorageReader, StorageWriter, together
from glft_schema.distributed.exchange import Chunk, Cut, Holdings, Request
from glft_schema.distributed.ranks import Ranks, RanksError, check_equal
from tests.quantizer import models
from tests.tools.launch import left_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    glft.save_file({"w": torch.randn(8, 512), "v": torch.randn(5)}, path, schemes={"w": "q4_k"})
    return path


def refusal(work: Callable[[], object]) -> str:
    """Returns what a load or a save without a group raises."""
    with pytest.warns(UserWarning, match="torch.distributed"), pytest.raises(checkpoint.api.CheckpointException) as raised:
        work()
    return str(raised.value)


@pytest.mark.parametrize(
    ("state", "packed", "problem"),
    [
        ({"w": torch.zeros(8, 512, dtype=torch.uint8)}, (),
         "'w': expected a target of a float dtype or torch.float32, found torch.uint8"),
        ({"w": torch.zeros(8, 288)}, ("w",), "expected a target of torch.uint8 for the tensor's bytes, found torch.float32"),
        ({"v": torch.zeros(1, 5)}, ("v",), "expected a quantized tensor for packed, found another type"),
        ({"none": torch.zeros(1)}, (), "Missing key in checkpoint state_dict: none"),
        ({"v": torch.zeros(6)}, (), "Size mismatch"),
    ],
)  # fmt: skip
def test_targets_that_are_refused(path: Path, state: dict[str, torch.Tensor], packed: tuple[str, ...], problem: str) -> None:
    assert problem in refusal(lambda: checkpoint.load(state, storage_reader=StorageReader(path, packed=packed)))


def test_files_that_are_refused(tmp_path: Path) -> None:
    reader = StorageReader(tmp_path / "none")
    assert "No such file" in refusal(lambda: checkpoint.load({"w": torch.zeros(1)}, storage_reader=reader))


def test_parts_inside_a_block(path: Path) -> None:
    with glft.open(path) as file:
        tensor = file.tensors["w"]
        assert np.array_equal(tensor.packed_rows((slice(2, 8, 3), slice(144, 288))), tensor.packed_rows()[2:8:3, 144:])
        with pytest.raises(glft.TensorError, match="bytes 1 to 288 of a row to begin and end at multiples of 144"):
            tensor.packed_rows((slice(0, 1), slice(1, 288)))
        with pytest.raises(glft.TensorError, match="expected the byte order of the file"):
            [*tensor.pieces(BIG, 0, 1)]


@pytest.mark.parametrize(
    ("w", "options", "problem"),
    [
        (3, {}, "tensor 'w': expected a tensor, found another object"),
        (glft.nn.Linear(64, 2, "Q8_0").state_dict()["weight"], {},
         "tensor 'w': expected dense weights, found packed ones, which glft_schema.save_file saves"),
        (torch.full((2, 64), torch.nan), {"schemes": {"w": "q8_0"}}, "tensor 'w' at [0, 0]: "),
        (torch.zeros(2, 33), {"schemes": {"w": "q4_k"}}, "tensor 'w': cannot be stored as q4_k"),
        (torch.zeros(2, 3), {"like": "none.gguf"}, "No such file or directory"),
        (torch.zeros(2, 3), {"format": "glft", "like": "x"}, "expected GGUF as the output for like, found GLFT"),
    ],
)  # fmt: skip
def test_states_that_are_refused(tmp_path: Path, w: Any, options: dict[str, Any], problem: str) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    assert problem in refusal(lambda: checkpoint.save({"w": w}, storage_writer=StorageWriter(out, **options)))
    assert out.read_bytes() == b"old"
    assert left_in(tmp_path) == set()


def test_no_rules_at_all(tmp_path: Path) -> None:
    state, alone, out = {"w" * 80: torch.zeros(3)}, tmp_path / "alone.gguf", tmp_path / "out.gguf"
    assert "expected at most 64 bytes" in refusal(lambda: checkpoint.save(state, storage_writer=StorageWriter(out)))
    with pytest.warns(UserWarning, match="torch.distributed"):
        checkpoint.save(state, storage_writer=StorageWriter(out, rules=[]))
    glft.save_file(state, alone, rules=[])
    assert out.read_bytes() == alone.read_bytes()


def test_a_source_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.gguf"
    glft.save_file({f"w{i}": torch.randn(512, 1024) for i in range(6)}, path)

    def cut(name: str, share: float) -> None:
        os.truncate(path, 3 << 20)

    with pytest.raises(glft.TruncatedError, match=r"tensor 'w[0-9]'"), together() as ranks:  # whose inputs are not known
        glft.convert(path, out, progress=cut, ranks=ranks)
    assert not out.exists()


def test_tensors_that_no_rank_has_all_of() -> None:
    holdings = Holdings({"w": Cut([Chunk((0, 0), (2, 4), 0), Chunk((3, 0), (2, 4), 1)])})
    assert len(holdings.pieces(Request("w", (range(2), range(4))))) == 1
    with pytest.raises(glft.TensorError, match="tensor 'w': expected 16 numbers in the shards of all ranks, found 12"):
        holdings.pieces(Request("w", (range(4), range(4))))


def in_threads(count: int, work: Callable[[Ranks], object], timeout: float = 30.0) -> list[object]:
    """Returns what ranks return or raise that share a store."""
    store = HashStore()

    def run(rank: int) -> object:
        try:
            return work(Ranks(PrefixStore("x", store), rank, count, timeout))
        except (RanksError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def quantized(source: object, out: Path, **options: Any) -> list[object]:
    """Returns the number of tensors that each of 3 ranks reports, or what it raises."""

    def work(ranks: Ranks) -> object:
        with together(ranks=ranks) as writers:
            return len(glft.quantize(source, out, "Q8_0", ranks=writers, **options))

    return in_threads(3, work)


def test_ranks_write_a_set(tmp_path: Path) -> None:
    weights = models.tensors(width=64)
    models.write(tmp_path / "in.gguf", models.keys(), weights)
    first, *_ = glft.split(tmp_path / "in.gguf", tmp_path / "part", max_tensors=8)
    glft.quantize(first, tmp_path / "alone", "Q8_0", keep_split=True)
    assert quantized(first, tmp_path / "out", keep_split=True) == [len(weights)] * 3
    alone, written = sorted(tmp_path.glob("alone-*")), sorted(tmp_path.glob("out-*"))
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in alone]
    assert len(written) > 2


def test_ranks_that_fail_keep_the_old_file(tmp_path: Path) -> None:
    weights = models.tensors(width=64)
    weights["blk.1.ffn_up.weight"][0, 0] = torch.nan
    models.write(tmp_path / "in.gguf", models.keys(), weights)
    (tmp_path / "out.gguf").write_bytes(b"old")
    found = quantized(tmp_path / "in.gguf", tmp_path / "out.gguf")
    assert all("NaN and infinities cannot be quantized" in str(each) for each in found)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"


def test_ranks_tell_each_other() -> None:
    def work(ranks: Ranks) -> object:
        first = ranks.of_first(ranks.rank + 10)
        moved = ranks.move(ranks.rank)
        ranks.gather(None)
        found = ranks.gather((ranks.rank, first))
        ranks.leave()
        return found, moved <= 3, ranks.move(0)

    assert in_threads(3, work) == [([[0, 10], [1, 10], [2, 10]], True, 3)] * 3


def test_messages_run_no_code() -> None:
    """A pickle in the store, which anybody who reaches it can write, is refused."""
    store = HashStore()
    store.set("step 1 0", "null")
    store.set("step 1 1", pickle.dumps([1]))
    with pytest.raises(RanksError, match="rank 0: expected JSON of rank 1 in the store, found other bytes"):
        Ranks(store, 0, 2, 5).gather(None)


def test_a_failure_reaches_all_ranks() -> None:
    def work(ranks: Ranks) -> object:
        with ranks.failing_together():
            if ranks.rank == 1:
                raise glft.OptionError("tensor 'w': a problem")
            return ranks.gather(None)

    told = "RanksError: rank 1: tensor 'w': a problem"
    assert in_threads(3, work) == [told, "OptionError: tensor 'w': a problem", told]


def test_a_rank_that_does_not_answer() -> None:
    gone = threading.Event()

    def work(ranks: Ranks) -> object:
        if ranks.rank == 1:
            gone.wait(5)
            return "late"
        try:
            return ranks.gather(None)
        finally:
            gone.set()

    found = in_threads(3, work, timeout=0.2)
    told = "rank {} does not answer: no progress for 0.2 seconds"
    assert found[1] == "late"
    assert all(any(told.format(rank) in str(found[each]) for rank in (0, 1)) for each in (0, 2))


def test_a_store_that_goes_away() -> None:
    server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, 2, is_master=False, wait_for_workers=False)
    ranks = Ranks(client, 1, 2, 5)
    ranks.move(1)
    del server
    with pytest.raises(RanksError, match="rank 1: the store of the ranks is gone: "):
        ranks.gather(None)
    ranks.fail("nobody hears it")
    ranks.leave()


def test_names_of_the_package() -> None:
    assert {name for name in glft.distributed.__all__ if getattr(glft.distributed, name)} == set(glft.distributed.__all__)
    with pytest.raises(
        AttributeError, match=r"^module 'glft_schema\.distributed' has no attribute 'other'; did you mean 'together'\?$"
    ):
        glft.distributed.other  # noqa: B018


def test_what_differs() -> None:
    check_equal([1, 1, 1], "plans")
    with pytest.raises(glft.OptionError, match="ranks 1 or 3: expected the plans of rank 0, 1, found 2"):
        check_equal([1, 2, 1, 2], "plans")
