"""Functions on plain tensors, to be run by all ranks."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

import glft_schema as glft
from glft_schema.distributed import StorageReader, StorageWriter

Placements = tuple[Replicate | Shard | Partial, ...]


def example() -> dict[str, torch.Tensor]:
    """Returns tensors of all numbers of dims."""
    torch.manual_seed(0)
    return {
        "other": torch.randn(3, 64),
        "big": torch.randn(640, 2560),
        "narrow": torch.randn(37, 512),
        "scalar": torch.tensor(3.0),
        "stack": torch.randn(4, 6, 256).half(),
        "vector": torch.randn(50),
    }


def distributed(tensors: dict[str, torch.Tensor], mesh_shape: tuple[int, ...], placements: Placements) -> dict[str, Any]:
    """Returns tensors on a mesh; dims that one does not have are replicated."""
    mesh = init_device_mesh("cpu", mesh_shape)
    state: dict[str, Any] = {}
    for name, tensor in tensors.items():
        own = [Replicate() if isinstance(each, Shard) and each.dim >= tensor.dim() else each for each in placements]
        state[name] = distribute_tensor(tensor, mesh, own) if tensor.dim() else tensor
    return state


def load(
    path: Path, mesh_shape: tuple[int, ...], placements: Placements, targets: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Returns the whole tensors that ranks have loaded; by default all, as float32."""
    if targets is None:
        with glft.open(path) as file:
            targets = {name: torch.zeros(tensor.shape) for name, tensor in file.tensors.items()}
    packed = [name for name, target in targets.items() if target.dtype == torch.uint8]
    state = distributed(targets, mesh_shape, placements)
    checkpoint.load(state, storage_reader=StorageReader(path, packed=packed))
    return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in state.items()}


def load_into(
    path: Path, state: dict[str, torch.Tensor], packed: tuple[str, ...] = (), paths: tuple[Path, ...] = ()
) -> dict[str, torch.Tensor]:
    """Loads into plain tensors; of another file on each rank if there are several."""
    own = paths[torch.distributed.get_rank()] if paths else path
    assert own is not None
    checkpoint.load(state, storage_reader=StorageReader(own, packed=packed))
    return state


def bytes_read(path: Path, name: str, shape: tuple[int, ...], ranks: int, dim: int) -> int:
    """Returns how many bytes this rank reads of a file that is open and not mapped."""
    state = distributed({name: torch.zeros(shape)}, (ranks,), (Shard(dim),))
    read = []
    for _ in range(2):  # the first load also reads modules
        reader = StorageReader(path, mmap=False)
        prepare = reader.prepare_local_plan
        reader.prepare_local_plan = lambda plan, prepare=prepare: (read.append(_read()), prepare(plan))[1]  # type: ignore[method-assign]
        checkpoint.load(state, storage_reader=reader)
        read.append(_read())
    assert state[name].to_local().any()
    return read[3] - read[2]


def _read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def save(path: Path, mesh_shape: tuple[int, ...], placements: Placements, options: dict[str, Any]) -> str:
    """Writes the example. Returns the SHA-256 of the file."""
    state = distributed(example(), mesh_shape, placements)
    checkpoint.save(state, storage_writer=StorageWriter(path, **options))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_async(path: Path, mesh_shape: tuple[int, ...], placements: Placements, schemes: dict[str, str]) -> str:
    """Writes the example while its tensors go on to change. Returns the SHA-256 of the file."""
    state = distributed(example(), mesh_shape, placements)
    writing = checkpoint.async_save(state, storage_writer=StorageWriter(path, schemes=schemes))
    for tensor in state.values():
        tensor.zero_()
    writing.result()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_file_of_shards(path: Path) -> None:
    """Gives `save_file` a tensor on a mesh."""
    glft.save_file(distributed({"w": torch.ones(4, 4)}, (1,), (Shard(0),)), path)


def save_state(
    path: Path, state: dict[str, Any], options: dict[str, Any] | None = None, of_rank: dict[int, dict[str, Any]] | None = None
) -> None:
    """Writes a state dict, with other options on some ranks."""
    own = {**(options or {}), **(of_rank or {}).get(torch.distributed.get_rank(), {})}
    checkpoint.save(state, storage_writer=StorageWriter(path, **own))


def save_and_fail(path: Path, how: str) -> None:
    """Writes the example, while rank 1 fails in some way."""
    if torch.distributed.get_rank() == 1 and how == "killed":
        os.kill(os.getpid(), 9)
    state = distributed(example(), (torch.distributed.get_world_size(),), (Shard(0),))
    if how == "numbers" and torch.distributed.get_rank() == 1:
        state["big"].to_local()[5, 7] = torch.nan
    checkpoint.save(state, storage_writer=StorageWriter(path, schemes={"*": "q8_0"}, timeout=5))


def memory_for(path: Path, name: str, shape: tuple[int, int], ranks: int, packed: bool) -> int:
    """Returns the peak of anonymous memory while a shard is loaded, beyond the shard itself."""
    dtype = torch.uint8 if packed else torch.float32
    local, mesh = torch.empty(shape[0] // ranks, shape[1], dtype=dtype), init_device_mesh("cpu", (ranks,))
    state = {name: DTensor.from_local(local, mesh, [Shard(0)])}
    highest = []
    for _ in range(2):  # the first load also reads modules
        local.fill_(1)  # so that its pages are there
        peak, done = [before := _anonymous()], threading.Event()
        watcher = threading.Thread(target=_watch, args=(peak, done))
        watcher.start()
        checkpoint.load(state, storage_reader=StorageReader(path, packed=[name] if packed else ()))
        done.set()
        watcher.join()
        highest.append(max(peak) - before)
    return highest[1]


def _watch(peak: list[int], done: threading.Event) -> None:
    while not done.wait(0.001):
        peak.append(_anonymous())


def _anonymous() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
