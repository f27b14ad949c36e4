"""Tensors of every type in each client, compared by their bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glft_schema import Container
from glft_schema.tensor_types.tensor_type import TensorType
from tests.foreign import clients
from tests.foreign.clients import DIFFUSERS, SAME, TENSORS, TRANSFORMERS, expected
from tests.foreign.files import TYPES, weights_in, write
from tests.foreign.our_reading import ours
from tests.foreign.readings import Reading, Values, same_bits

Read = Callable[[str, Path], Reading]
by_type = pytest.mark.parametrize("type_", TYPES, ids=str)


def from_parts(name: str, found: dict[str, Values], bits: int) -> np.ndarray:
    """Returns f32[out, in]: code * scale + bias.

    MLX has codes as u32[out, in * bits / 32], scales and biases as f16[out, in / 32].
    """
    codes = found[f"{name}.weight"].values.view(np.uint8)
    if bits == 4:
        codes = np.stack((codes & 15, codes >> 4), -1)
    rows = len(codes)
    scales, biases = (found[f"{name}.{part}"].values.astype(np.float32)[..., None] for part in ("scales", "biases"))
    return (codes.reshape(rows, -1, 32).astype(np.float32) * scales + biases).reshape(rows, -1)


def verdict(type_: TensorType, theirs: Reading, mine: Reading) -> str:
    name = f"{type_.name}.weight"
    if theirs.error:
        return clients.REFUSED
    if not theirs.tensors:
        return clients.DROPPED
    found, right = theirs.tensors[name], mine.tensors[name]
    if f"{type_.name}.scales" in theirs.tensors:
        made = from_parts(type_.name, theirs.tensors, 8 if type_.name == "Q8_0" else 4)
        return clients.PARTS if made.shape == right.values.shape and (made == right.values).all() else clients.WRONG
    assert found.shape == right.shape
    if same_bits(found.values, right.values):
        return SAME
    if clients.is_half(found.values, right.values):
        return clients.HALF
    return clients.ZEROS if found.values.dtype == right.values.dtype and (found.values == right.values).all() else clients.WRONG


@by_type
@pytest.mark.parametrize("client", TENSORS)
def test_tensors_of_each_type(read: Read, tmp_path: Path, client: str, type_: TensorType) -> None:
    path = write(tmp_path / "file.gguf", types=[type_], entries={"general.architecture": "toy"})
    theirs = read(client, path)
    assert not theirs.error.startswith("SIG")
    assert verdict(type_, theirs, ours(path)) == expected(client, type_.name)


@pytest.mark.parametrize(
    ("client", "type_"),
    [(of, type_) for of in (DIFFUSERS, TRANSFORMERS) for type_ in TYPES if type_.block and expected(of, type_.name) == SAME],
    ids=str,
)
def test_random_blocks(read: Read, tmp_path: Path, client: str, type_: TensorType) -> None:
    """Any bytes, with infinities, NaN and subnormal scales."""
    rows, columns = 64, 16
    stored = np.random.default_rng(type_.code).integers(0, 256, (rows, columns, type_.block.sizeof()), dtype=np.uint8)
    path = tmp_path / "file.gguf"
    row = {"name": "w", "dims": [columns * weights_in(type_), rows], "dtype": type_.name}
    data = {"w": {"blocks": stored}}
    metadata = {"general.architecture": "toy"}
    Container.build_file({"format": "GGUF", "metadata": metadata, "tensor_infos": [row], "data": data}, path)
    found, right = read(client, path).tensors["w"].values, ours(path).tensors["w"].values
    assert right.shape == (rows, columns * weights_in(type_))
    assert same_bits(found, right)
