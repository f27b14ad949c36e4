"""Clients in Python, each in its own process."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.foreign.readings import Reading, Values, exact, of_torch
from tests.tools.processes import Process, serve

# tinygrad's device that needs no compiler; no network; no warnings
ENVIRONMENT = {"DEV": "PYTHON", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


class Client(Process):
    """A client in its own process."""

    def __init__(self, name: str) -> None:
        super().__init__("-m", __name__, name, **ENVIRONMENT)

    def __call__(self, path: Path) -> Reading:
        """Reads a file."""
        try:
            found = super().__call__(str(path))
        except EOFError as error:
            return Reading(str(error))
        assert isinstance(found, Reading)
        return found


def values(array: np.ndarray, dtype: Any) -> Values:
    return Values(array.shape, str(dtype), np.ascontiguousarray(array))


def tinygrad() -> Callable[[str], Reading]:
    """Reads with ``tinygrad.llm.gguf``."""
    from tinygrad import dtypes
    from tinygrad.llm.gguf import gguf_load

    def read(path: str) -> Reading:
        metadata, tensors = gguf_load(path)
        found = {}
        for name, tensor in tensors.items():
            array = tensor.cast(dtypes.float) if tensor.dtype == dtypes.bfloat16 else tensor
            found[name] = values(array.numpy(), tensor.dtype.name)
        return Reading(metadata={key: exact(value) for key, value in metadata.items()}, tensors=found)

    return read


def mlx() -> Callable[[str], Reading]:
    """Reads with ``mlx.core.load``; some types become codes, scales and biases."""
    import mlx.core as mx

    def type_of(value: Any) -> str:
        if isinstance(value, mx.array):
            name = str(value.dtype).removeprefix("mlx.core.")
            return f"array[{name}]" if value.ndim else name
        return "array[string]" if isinstance(value, list) else "string"

    def read(path: str) -> Reading:
        tensors, metadata = mx.load(path, return_metadata=True)
        plain = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}
        return Reading(
            metadata={key: exact(value) for key, value in plain.items()},
            types={key: type_of(value) for key, value in metadata.items()},
            tensors={
                name: values(np.array(tensor), str(tensor.dtype).removeprefix("mlx.core.")) for name, tensor in tensors.items()
            },
        )

    return read


def diffusers() -> Callable[[str], Reading]:
    """Reads with ``load_gguf_checkpoint``; quantized tensors by its functions, in float32."""
    import torch
    from diffusers.models.model_loading_utils import load_gguf_checkpoint
    from diffusers.quantizers.gguf.utils import GGML_QUANT_SIZES, GGUFParameter, dequantize_functions

    def weights(tensor: Any) -> Any:
        if not isinstance(tensor, GGUFParameter):
            return tensor
        columns, size = GGML_QUANT_SIZES[tensor.quant_type]
        blocks = tensor.as_tensor().view(torch.uint8).reshape(-1, size)
        return dequantize_functions[tensor.quant_type](blocks, columns, size, torch.float32).reshape(tensor.quant_shape)

    def read(path: str) -> Reading:
        return Reading(tensors={name: of_torch(weights(tensor)) for name, tensor in load_gguf_checkpoint(path).items()})

    return read


def diffusers_default() -> Callable[[str], Reading]:
    """Reads as `diffusers`; quantized tensors in the dtype that its layers use."""
    from diffusers.models.model_loading_utils import load_gguf_checkpoint
    from diffusers.quantizers.gguf.utils import dequantize_gguf_tensor

    def read(path: str) -> Reading:
        found = load_gguf_checkpoint(path)
        return Reading(tensors={name: of_torch(dequantize_gguf_tensor(tensor)) for name, tensor in found.items()})

    return read


def transformers() -> Callable[[str], Reading]:
    """Reads with the reader and the formulas of ``transformers.integrations.gguf``."""
    from transformers.integrations.gguf.dequant import GGML_BLOCK, dequantize
    from transformers.integrations.gguf.reader import GgufHeader, load_gguf_state_dict, read_gguf_metadata

    class Everything:
        """A container of all keys: string arrays are read on demand only."""

        def __contains__(self, key: object) -> bool:
            return True

    def weights(tensor: Any, shape: tuple[int, ...]) -> Any:
        stored = tensor[...]
        return dequantize(stored, tensor.ggml_type).reshape(shape) if tensor.ggml_type in GGML_BLOCK else stored

    def read(path: str) -> Reading:
        metadata, _ = read_gguf_metadata(path, Everything())
        header = GgufHeader.from_file(path)
        shapes = {info.name: info.shape for info in header.tensors}
        tensors = {name: of_torch(weights(tensor, shapes[name])) for name, tensor in load_gguf_state_dict(header).items()}
        return Reading(metadata={key: exact(value) for key, value in metadata.items()}, tensors=tensors)

    return read


def transformers_model() -> Callable[[str], Reading]:
    """Loads a model with ``from_pretrained``; `metadata` are the numbers in its configuration."""
    import torch
    from transformers import AutoModelForCausalLM

    def read(path: str) -> Reading:
        folder, name = os.path.split(path)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        config = {key: exact(value) for key, value in model.config.to_dict().items() if isinstance(value, (int, float))}
        return Reading(metadata=config, tensors={key: of_torch(tensor) for key, tensor in model.state_dict().items()})

    return read


READERS = {start.__name__: start for start in (tinygrad, mlx, diffusers, diffusers_default, transformers, transformers_model)}


@cache
def reader(name: str) -> Callable[[str], Reading]:
    return READERS[name]()


def answer(path: str) -> Reading:
    """Reads a file; an exception becomes the reading's error."""
    try:
        return reader(sys.argv[1])(path)
    except Exception as error:
        return Reading(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(answer)
