"""Parts of mapped tensors: values and bytes, and how little of the file is read for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glft_schema as glft
from glft_schema.families.export import hf_model
from glft_schema.families.folders import open_folder
from glft_schema.tensors.stored_tensor import StoredTensor, of_file
from glft_schema.weights.checkpoints import open_checkpoint
from tests.families.tiny_folders import CONFIGS, make_folder
from tests.tools.guarded_here import know_tokenizers

Mapped = dict[str, dict[str, StoredTensor]]  # by family and direction, by name


def slices(data: st.DataObject, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Draws a part that is not empty."""
    parts = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        parts.append(slice(start, data.draw(st.integers(start + 1, size))))
    return tuple(parts)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Mapped:
    """Tensors of all families, to GGUF and from GGUF, packed and not."""
    found: Mapped = {}
    parent = tmp_path_factory.mktemp("parts")
    for name in CONFIGS:
        folder = make_folder(parent, name)
        with pytest.MonkeyPatch.context() as patch:
            know_tokenizers(patch)
            found[f"{name} to GGUF"] = dict(
                open_folder(folder, lambda family, folder=folder: open_checkpoint(folder, as_stored=True)).tensors
            )
            glft.quantize(folder, parent / f"{name}.gguf", "Q8_0", allow_requantize=True)
        file = glft.open(parent / f"{name}.gguf")
        tensors = {name: of_file(tensor) for name, tensor in file.tensors.items()}
        found[f"{name} from GGUF"] = hf_model(tensors, file, fused=True)[0]
    return found


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_part_has_the_values_and_the_bytes_of_the_whole(mapped: Mapped, data: st.DataObject) -> None:
    tensors = mapped[data.draw(st.sampled_from(sorted(mapped)))]
    tensor = tensors[data.draw(st.sampled_from(sorted(tensors)))]
    index = slices(data, tensor.shape)
    part, whole = tensor.part(index), tensor.values()
    assert (part.dtype, whole.shape) == (tensor.dtype, tensor.shape)
    assert np.array_equal(part, whole[index])
    if tensor.packed is not None:
        whole = tensor.packed.packed_rows()
        rows, columns = slices(data, (len(whole), whole.shape[1] // 34))
        across = slice(columns.start * 34, columns.stop * 34)
        assert np.array_equal(tensor.packed.packed_rows((rows, across)), whole[rows, across])


def test_rows_of_a_head_are_read_and_no_others(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = mapped["tiny-llama from GGUF"]["model.layers.0.self_attn.q_proj.weight"]
    read: list[int] = []
    part = glft.Tensor.array

    def counted(self: glft.Tensor, *index: object, **more: object) -> np.ndarray:
        read.append((found := part(self, *index, **more)).shape[0])  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(glft.Tensor, "array", counted)
    columns = slice(0, tensor.shape[1])
    for rows, calls in ((slice(0, 16), 1), (slice(16, 48), 1), (slice(4, 12), 4), (slice(3, 5), 1)):
        read.clear()
        tensor.part((rows, columns))
        assert sum(read) == rows.stop - rows.start
        assert len(read) <= calls
