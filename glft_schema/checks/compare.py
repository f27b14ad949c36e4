"""Comparison of a file with the weights it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glft_schema.errors import TensorError
from glft_schema.files.file import File
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.engine.differences import max_error
from glft_schema.weights.stored_tensors import StoredTensor


@dataclass(frozen=True)
class Comparison:
    """A tensor of a file compared with its source.

    Attributes:
        name: name of the tensor.
        type: type in the file, or None if the file lacks the tensor.
        error: max |stored - expected|, with NaN equal to NaN; infinite if not comparable.
        problem: why the tensor is not comparable, or an empty string.
    """

    name: str
    type: TensorType | None
    error: float
    problem: str = ""


def compare(file: File, source: Mapping[str, StoredTensor]) -> Iterator[Comparison]:
    """Compares each tensor of `file` with its quantized source, then lists missing tensors."""
    for name, tensor in file.tensors.items():
        if name not in source:
            yield Comparison(name, tensor.dtype, float("inf"), "not in the source")
        elif source[name].shape != tensor.shape:
            shapes = f"{list(source[name].shape)} in the source, {list(tensor.shape)} in the file"
            yield Comparison(name, tensor.dtype, float("inf"), shapes)
        else:
            try:
                expected = source[name].load()
                file_tensor = source[name].file_tensor
                if file_tensor is None or file_tensor.dtype != tensor.dtype:
                    expected = tensor.dtype.round_trip(expected, name)
            except TensorError as error:
                yield Comparison(name, tensor.dtype, float("inf"), error.problem)
                continue
            yield Comparison(name, tensor.dtype, max_error(tensor.dequantize(), expected))
    for name in source:
        if name not in file.tensors:
            yield Comparison(name, None, float("inf"), "not in the file")
