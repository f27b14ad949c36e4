"""Functions on models of transformers, to be run by all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh

import glft_schema as glft
from glft_schema.distributed import StorageReader, StorageWriter

TOKENS = torch.tensor([[1, 45, 120, 77, 200, 12, 99, 33, 250, 7, 8, 9]])
TENSOR_PARALLEL = {
    "q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise",
    "gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise",
}  # fmt: skip


def shard(model: Any, how: str, ranks: int) -> None:
    """Shards a model by FSDP2, by tensor parallelism, or by both."""
    shape = (2, ranks // 2) if how == "both" else (ranks,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "model")[: len(shape)])
    if how != "fsdp":
        _parallelize(model, mesh["model"] if how == "both" else mesh)
    if how != "tensor":
        layers = model.model.layers
        for part in (*layers, model):
            fully_shard(part, mesh=mesh["data"] if how == "both" else mesh)


def _parallelize(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    kinds = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    for layer in model.model.layers:
        plan = {
            name: kinds[TENSOR_PARALLEL[name.rpartition(".")[2]]]()
            for name, _ in layer.named_modules()
            if name.rpartition(".")[2] in TENSOR_PARALLEL
        }
        parallelize_module(layer, mesh, plan)


def load(path: Path, how: str, ranks: int, packed: bool = False) -> tuple[Any, dict[str, Any]]:
    """Returns a sharded model with the weights of a file, and its state dict."""
    model, _ = glft.transformers.load(path, packed=packed, device="meta")
    shard(model, how, ranks)
    state = model.state_dict()
    checkpoint.load(state, storage_reader=StorageReader(path, packed=model if packed else ()))
    model.load_state_dict(state, assign=True)
    return model, state


def load_and_compare(path: Path, ranks: int) -> float:
    """Loads a packed model, sharded by FSDP. Returns the greatest difference of a logit from the
    whole model's.

    Raises AssertionError unless the weights are those of the whole model.
    """
    model, state = load(path, "fsdp", ranks, packed=True)
    whole, _ = glft.transformers.load(path, packed=True)
    expected = whole.state_dict()
    assert state.keys() == expected.keys()
    assert any(isinstance(tensor, DTensor) for tensor in state.values())
    for name, tensor in state.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(full, expected[name]), name
    with torch.no_grad():
        return float((model(TOKENS).logits - whole(TOKENS).logits).abs().max())


def save(path: Path, out: Path, quantized: Path, how: str, ranks: int, recipe: str) -> None:
    """Loads a sharded model, and writes it to two files by its example, one of them quantized."""
    _, state = load(path, how, ranks)
    checkpoint.save(state, storage_writer=StorageWriter(out, like=path))
    checkpoint.save(state, storage_writer=StorageWriter(quantized, like=path, recipe=recipe))
