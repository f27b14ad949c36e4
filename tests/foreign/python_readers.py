"""Clients in Python, each in a process of its own, which is started again after a crash.

``python -m tests.foreign.python_readers CLIENT`` reads pickled paths and writes a pickled `Reading`
for each.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.foreign.readings import Reading, Values, exact, of_torch

ROOT = Path(__file__).parents[2]


class Client:
    """A client in a process of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, path: Path) -> Reading:
        """Reads a file."""
        if self._process is None:
            program = [sys.executable, "-m", __name__, self.name]
            environment = os.environ | {"DEV": "PYTHON", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
            self._process = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        process = self._process
        assert process.stdin
        assert process.stdout
        pickle.dump(str(path), process.stdin)
        process.stdin.flush()
        try:
            found = pickle.load(process.stdout)
        except EOFError:
            self.close()
            return Reading(signal.Signals(-process.returncode).name)
        assert isinstance(found, Reading)
        return found

    def close(self) -> None:
        """Ends the process."""
        if self._process:
            self._process.communicate()
            self._process = None


def values(array: np.ndarray, dtype: Any) -> Values:
    return Values(array.shape, str(dtype), np.ascontiguousarray(array))


def tinygrad() -> Callable[[str], Reading]:
    """Reads with ``tinygrad.llm.gguf``, on the device that needs no compiler."""
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
        """A container of all keys: string arrays are read only on demand."""

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


READERS = {
    reader.__name__: reader for reader in (tinygrad, mlx, diffusers, diffusers_default, transformers, transformers_model)
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a client prints
    read = READERS[sys.argv[1]]()
    while sys.stdin.buffer.peek(1):
        path = pickle.load(sys.stdin.buffer)
        try:
            reading = read(path)
        except Exception as error:
            reading = Reading(f"{type(error).__name__}: {error}")
        pickle.dump(reading, output)
        output.flush()
