"""Runs that go on with what earlier ones have left: from the same source only, and only their own
files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

import glft_schema as glft
from glft_schema.distributed import together
from glft_schema.distributed.fingerprints import Fingerprint, Inputs
from glft_schema.distributed.ranks import Ranks
from glft_schema.storage.atomic import atomic_write, partial_path
from tests.fuzz import journals
from tests.tools import forked
from tests.tools.launch import KILLED, left_in

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
Write = Callable[..., object]  # writes a file from a source: path, progress, ranks


class StoppedError(Exception):
    """Ends a run."""


def stop(name: str, share: float) -> None:
    if share > 0.6:
        raise StoppedError


def tensors(changed: bool = False) -> dict[str, torch.Tensor]:
    """Returns tensors of some units; one weight near the beginning of one of them may differ."""
    torch.manual_seed(0)
    found = {"a": torch.randn(600, 2048), "b": torch.randn(5), "c": torch.randn(4, 300, 1024), "d": torch.randn(500, 1024)}
    if changed:
        found["a"][1, 7] += 1
    return found


def convert(source: Path, **options: object) -> Write:
    return lambda out, progress, ranks=None: glft.convert(source, out, progress=progress, ranks=ranks, **options)  # type: ignore[arg-type]


def of_memory(state: dict[str, torch.Tensor]) -> Write:
    return lambda out, progress, ranks=None: glft.save_file(state, out, schemes={"*": "q8_0"}, progress=progress, ranks=ranks)


def writer(carrier: str, folder: Path, changed: bool) -> Write:
    """Returns what writes a file from a source of some kind."""
    folder.mkdir()
    name, stored, options = CARRIERS[carrier]
    state = tensors(changed)
    if name == "memory":
        return of_memory(state)
    if name == "m.pt":
        torch.save(state, folder / name)
    else:
        glft.save_file(state, folder / name, **stored)  # type: ignore[arg-type]
    return convert(folder / name, **options)


CARRIERS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "a file": ("m.safetensors", {}, {"schemes": {"*": "q8_0"}}),
    "payloads that are copied": ("m.gguf", {"schemes": {"*": "q8_0"}}, {}),
    "payloads in another byte order": ("m.gguf", {"schemes": {"*": "q8_0"}, "header": {"byte_order": "big"}}, {}),
    "quantized": ("m.gguf", {"schemes": {"*": "q8_0"}}, {"schemes": {"*": "q8_0", "a": "q5_1"}, "allow_requantize": True}),
    "a torch file": ("m.pt", {}, {"schemes": {"*": "f16"}}),
    "a state dict": ("memory", {}, {}),
    "to a type of several fields": ("m.safetensors", {}, {"schemes": {"*": "q8_per_channel"}, "format": "glft"}),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_unit_is_kept_only_for_the_values_it_was_made_from(carrier: str, tmp_path: Path) -> None:
    """The run does not know its inputs, so only the journal tells one source from the other."""
    out, alone, kept = tmp_path / "out.gguf", tmp_path / "alone.gguf", list[float]()
    for changed in (False, True):
        write, shares = writer(carrier, tmp_path / f"first{changed}", False), list[float]()
        with pytest.raises(StoppedError), together() as ranks:
            write(out, stop, ranks)
        assert len(left_in(tmp_path)) == 2
        write = writer(carrier, tmp_path / f"second{changed}", changed)
        with together() as ranks:
            write(out, lambda name, share, shares=shares: shares.append(share), ranks)  # type: ignore[misc]
        write(alone, None)
        assert out.read_bytes() == alone.read_bytes()
        assert left_in(tmp_path) == set()
        kept.append(shares[0])
        out.unlink()
    assert kept[0] > 0.6
    assert kept[1] < kept[0]


def test_models_of_equal_names_sizes_and_times(tmp_path: Path) -> None:
    """Samples of all payloads are in the key, so a run does not even look at the other's units."""
    paths = []
    for i in range(2):
        path = tmp_path / str(i) / "m.safetensors"
        path.parent.mkdir()
        glft.save_file({name: tensor + i for name, tensor in tensors().items()}, path)
        os.utime(path, ns=(1, 1))
        paths.append(path)
    assert len({Inputs([path]).fingerprint for path in paths}) == 2
    out = tmp_path / "out.gguf"
    with pytest.raises(StoppedError), together(paths[:1]) as ranks:
        glft.convert(paths[0], out, schemes={"*": "q8_0"}, progress=stop, ranks=ranks)
    (partial,) = (name for name in left_in(tmp_path) if name.count(".") == 4)
    shares: list[float] = []
    with together(paths[1:]) as ranks:
        glft.convert(paths[1], out, schemes={"*": "q8_0"}, progress=lambda name, share: shares.append(share), ranks=ranks)
        assert partial not in left_in(tmp_path)
    assert shares[0] < 0.5
    glft.convert(paths[1], tmp_path / "alone.gguf", schemes={"*": "q8_0"})
    assert out.read_bytes() == (tmp_path / "alone.gguf").read_bytes()


def test_what_belongs_to_the_key(tmp_path: Path) -> None:
    """Files of any kind: their names, sizes and contents, but not their folders."""
    names = ("m.safetensors", "m.pt", "imatrix.dat", "recipe.txt", "folder/config.json")
    found: list[list[Fingerprint]] = []
    for number in range(3):  # the first two are equal
        folder = tmp_path / str(number)
        (folder / "folder").mkdir(parents=True)
        state = {"w": torch.zeros(5000)}
        state["w"][2500] = number // 2  # the sample is in the middle
        glft.save_file(state, folder / names[0])
        torch.save(state, folder / names[1])
        for name in names[2:]:
            (folder / name).write_bytes(b"x" * 100 + bytes([number // 2]))
        for name in names:
            os.utime(folder / name, ns=(1, 1))
        found.append([Inputs([folder / name.partition("/")[0]]).fingerprint for name in names])
    assert found[0] == found[1]
    assert all(one != other for one, other in zip(*found[1:], strict=True))
    assert str(found[0][-1]).startswith("config.json of 101 bytes, changed at 1 ns, content ")


def test_large_files_of_unknown_kind_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glft_schema.distributed.fingerprints.WHOLE", 1000)
    found = []
    for changed in (False, True):
        path = tmp_path / str(changed) / "m.pt"
        path.parent.mkdir()
        path.write_bytes(bytes(100_000) + bytes([changed]))
        os.utime(path, ns=(1, 1))
        found.append(Inputs([path]).fingerprint)
    assert found[0] != found[1]


def test_many_inputs(tmp_path: Path) -> None:
    """The text names the first ones, and differs if any file does."""
    texts = []
    for content in (b"1", b"2"):
        for i in range(5):
            (tmp_path / f"{i}.json").write_bytes(content if i == 4 else b"0")
            os.utime(tmp_path / f"{i}.json", ns=(1, 1))
        texts.append(str(Inputs([tmp_path]).fingerprint))
    assert texts[0] != texts[1]
    assert " and 2 more, " in texts[0]


@pytest.mark.parametrize("how", ["written", "replaced", "touched"])
def test_an_input_that_changes(how: str, tmp_path: Path) -> None:
    """Also with the old size and time: inode and time of the status tell it."""
    path, other, out = tmp_path / "m.safetensors", tmp_path / "other", tmp_path / "out.gguf"
    glft.save_file(tensors(), path)
    shutil.copyfile(path, other)
    before = os.stat(path)

    def change(name: str, share: float) -> None:
        if how == "replaced":
            os.replace(other, path) if other.exists() else None
        elif how == "written":
            with path.open("r+b") as file:
                file.seek(5000)
                file.write(b"\1")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with (
        pytest.raises(glft.OptionError, match=r"^input m\.safetensors has changed from .* to .*inode \d+$"),
        together([path]) as ranks,
    ):
        glft.convert(path, out, schemes={"*": "q8_0"}, progress=change, ranks=ranks)
    assert not out.exists()


def test_an_input_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), together([tmp_path / "none.json"]) as ranks:
        glft.save_file(tensors(), tmp_path / "out.gguf", ranks=ranks)


def test_a_line_that_was_not_finished(tmp_path: Path) -> None:
    """The next line of the same rank does not continue it."""
    out = tmp_path / "out.gguf"
    for _ in range(2):
        with pytest.raises(StoppedError), together() as ranks:
            glft.save_file(tensors(), out, schemes={"*": "q8_0"}, progress=stop, ranks=ranks)
        (journal,) = tmp_path.glob(".out.gguf.*.0.part")
        first, *others = journal.read_text().splitlines()
        journal.write_text("\n".join([*others, first[:20]]))
    lines = journal.read_text().splitlines()
    assert lines[-2].startswith("0 ")  # of the unit whose line had been cut
    shares: list[float] = []
    with together() as ranks:
        glft.save_file(tensors(), out, schemes={"*": "q8_0"}, progress=lambda name, share: shares.append(share), ranks=ranks)
    glft.save_file(tensors(), tmp_path / "alone.gguf", schemes={"*": "q8_0"})
    assert out.read_bytes() == (tmp_path / "alone.gguf").read_bytes()


def test_damaged_journals() -> None:
    for stored in journals.seeds():
        journals.check_promises(stored)


@settings(deadline=None)
@given(st.data())
def test_any_journal(data: st.DataObject) -> None:
    """A part of a journal is replaced by other bytes."""
    stored = data.draw(st.sampled_from([*journals.seeds()]))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(stored))] * 2)))
    journals.check_promises(stored[:first] + data.draw(st.binary(max_size=last - first)) + stored[last:])


def link(path: Path) -> None:
    path.symlink_to(path.parent / "victim")


def second_name(path: Path) -> None:
    os.link(path.parent / "victim", path)


def others_may_write(path: Path) -> None:
    path.write_bytes(b"left")
    path.chmod(0o622)


def of_another_user(path: Path) -> None:
    path.write_bytes(b"left")
    os.chown(path, 12345, -1)


PLANTED = [
    (link, "a link or special file"),
    (os.mkfifo, "a link or special file"),
    (second_name, "one with 2 names"),
    (others_may_write, "mode 0622"),
    pytest.param(of_another_user, "one of user 12345", marks=ROOT),
]


@pytest.mark.parametrize("part", ["", "0", "17"])
@pytest.mark.parametrize(("plant", "problem"), PLANTED)
def test_files_that_others_have_put_there(plant: Callable[[Path], None], problem: str, part: str, tmp_path: Path) -> None:
    out, victim = tmp_path / "out.gguf", tmp_path / "victim"
    out.write_bytes(b"old")
    victim.write_bytes(b"of the user")
    state = {"w": torch.zeros(3)}
    with pytest.raises(StoppedError), together() as ranks:
        glft.save_file(state, out, progress=lambda name, share: stop(name, 1), ranks=ranks)
    (partial,) = (name for name in left_in(tmp_path) if name.count(".") == 4)
    planted = Path(partial_path(out, partial.split(".")[3], part))
    planted.unlink(missing_ok=True)
    plant(planted)
    text = f"expected a temporary file that only this user can write to, found {problem}: remove {planted}"
    with pytest.raises(glft.OptionError) as raised, together() as ranks:
        glft.save_file(state, out, ranks=ranks)
    assert str(raised.value) == text
    assert (out.read_bytes(), victim.read_bytes()) == (b"old", b"of the user")
    planted.unlink()
    with together() as ranks:
        glft.save_file(state, out, ranks=ranks)
    assert left_in(tmp_path) == set()


def test_a_journal_in_use_is_not_removed(tmp_path: Path) -> None:
    """A writer with another key removes only what nobody writes any more."""
    out, seen = tmp_path / "out.gguf", []

    def other(name: str, share: float) -> None:
        if share < 0.5:
            with atomic_write(out) as stream:
                stream.write(b"other")
            seen.append(left_in(tmp_path))

    with together() as ranks:
        glft.save_file(tensors(), out, schemes={"*": "q8_0"}, progress=other, ranks=ranks)
    assert seen
    assert all(len(names) == 2 for names in seen)
    assert left_in(tmp_path) == set()


def test_other_ranks_keep_the_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes do not depend on the number of ranks, or on the rows that are read at once. The ranks
    are threads."""
    out, store, found, shares, state = tmp_path / "out.gguf", HashStore(), dict[int, str](), list[float](), tensors()
    monkeypatch.setattr("glft_schema.weights.payloads.PART", 1 << 17)
    with pytest.raises(StoppedError), together() as ranks:
        glft.save_file(state, out, schemes={"*": "q8_0"}, progress=stop, ranks=ranks)
    monkeypatch.undo()

    def run(rank: int) -> None:
        try:
            with together(ranks=Ranks(store, rank, 2, 20)) as ranks:
                glft.save_file(
                    state, out, schemes={"*": "q8_0"}, progress=lambda name, share: shares.append(share), ranks=ranks
                )
        except ValueError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {}
    assert shares[0] > 0.6
    glft.save_file(state, tmp_path / "alone.gguf", schemes={"*": "q8_0"})
    assert out.read_bytes() == (tmp_path / "alone.gguf").read_bytes()
    assert left_in(tmp_path) == set()


@pytest.mark.long
def test_the_end_of_rank_0_is_one_line(tmp_path: Path) -> None:
    """Without a launcher, rank 0 has the store. torch logs its end with a stack in C++, unless told
    not to before its import, so that rank 1 is a new interpreter."""
    source = tmp_path / "m.safetensors"
    glft.save_file({"w": torch.randn(2048, 4096)}, source)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = ["convert", source, tmp_path / "out.gguf", "--scheme", "*=q8_0"]
    first = forked.Forked("-c", KILLED, *command, environment={**variables, "RANK": "0", "KILLED": "0 0"})
    environment = {**os.environ, **variables, "RANK": "1"}
    again = [sys.executable, "-m", "glft_schema.distributed", *command]
    second = subprocess.Popen(again, env=environment, stderr=subprocess.PIPE, text=True)
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    _, text = second.communicate(timeout=60)
    assert second.returncode == 1
    assert text.startswith("glft: rank 1: the store of the ranks is gone: ")
    assert text.count("\n") == 1
