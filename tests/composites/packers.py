"""Packs integer codes as the libraries do, bit by bit, and computes their weights.

Codes and zero points are unsigned integers [rows, columns] and [rows, groups]; scales are tensors
[rows, groups]. Tensors are named by the parts of a Linear ``X``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

IN_WORD = (0, 2, 4, 6, 1, 3, 5, 7)  # rows of AWQ's word, from its lowest bits
NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # E2M1

Tensors = dict[str, torch.Tensor]


def stream(codes: np.ndarray, bits: int) -> torch.Tensor:
    """Packs codes [rows, n] into words i32 [rows, words], the lowest bits first."""
    flags = (np.asarray(codes, np.int64)[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1)
    padded = np.pad(flags, ((0, 0), (0, -flags.shape[1] % 32))).astype(np.uint8)
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32).copy())


def nibbles(codes: np.ndarray) -> torch.Tensor:
    """Packs codes [rows, n] of four bits into bytes, the first one low."""
    return torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))


def gptq(codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor, bits: int = 4, version: int = 1) -> Tensors:
    """Packs down the columns, and zero points along the rows."""
    columns = codes.shape[1]
    return {
        "X.qweight": stream(codes, bits).T.contiguous(),
        "X.qzeros": stream((zeros - (version == 1)).T & (1 << bits) - 1, bits),
        "X.scales": scales.T.contiguous(),
        "X.g_idx": (torch.arange(columns) // (columns // scales.shape[1])).int(),
    }


def awq(codes: np.ndarray, zeros: np.ndarray, scales: torch.Tensor) -> Tensors:
    def words(numbers: np.ndarray) -> torch.Tensor:
        eights = numbers.T.reshape(numbers.shape[1], -1, 8)[:, :, list(IN_WORD)]
        return stream(eights.reshape(-1, 8), 4).reshape(eights.shape[:2])

    return {"X.qweight": words(codes), "X.qzeros": words(zeros), "X.scales": scales.T.contiguous()}


def packed(codes: np.ndarray, zeros: np.ndarray | None, scales: torch.Tensor, bits: int = 4) -> Tensors:
    """Packs as compressed-tensors; without zero points, these are half of the range."""
    tensors = {"X.weight_packed": stream(codes, bits), "X.weight_scale": scales, "X.weight_shape": torch.tensor(codes.shape)}
    return tensors if zeros is None else {**tensors, "X.weight_zero_point": stream(zeros.T, bits).T.contiguous()}


def mlx(codes: np.ndarray, scales: torch.Tensor, biases: torch.Tensor, bits: int = 4) -> Tensors:
    return {"X.weight": stream(codes, bits).view(torch.uint32), "X.scales": scales, "X.biases": biases}


def nf4(codes: np.ndarray, absmax: torch.Tensor, **state: Any) -> Tensors:
    """Packs as bitsandbytes, the first code high; `state` replaces keys of its JSON."""
    flat = codes.reshape(-1, 2)
    state = {"quant_type": "nf4", "blocksize": codes.size // len(absmax), "dtype": "float32", "shape": [*codes.shape], **state}
    return {
        "X.weight": torch.from_numpy((flat[:, :1] << 4 | flat[:, 1:]).astype(np.uint8)),
        "X.weight.absmax": absmax,
        "X.weight.quant_map": NF4.clone(),
        "X.weight.quant_state.bitsandbytes__nf4": text(json.dumps(state)),
    }


def text(json_text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(json_text.encode()), dtype=torch.uint8)


def values(codes: np.ndarray, zeros: np.ndarray | int, scales: torch.Tensor) -> np.ndarray:
    """Returns (code - zero point) * scale in float32."""
    repeat = codes.shape[1] // scales.shape[1]
    spread = scales.float().numpy().repeat(repeat, 1)
    offset = np.asarray(zeros).repeat(repeat, 1) if np.ndim(zeros) else np.asarray(zeros)
    with np.errstate(all="ignore"):
        return (codes.astype(np.int64) - offset).astype(np.float32) * spread


def write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None = None) -> Path:
    """Writes a checkpoint, with the parts of a config.json if any, and returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path := folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return path
