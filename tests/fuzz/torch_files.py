"""Promises for any bytes that are opened as a torch file, and torch files to begin with."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from glft_schema import FormatError, TensorError
from glft_schema.storage.torch_tensors import as_array
from glft_schema.weights.checkpoints import in_memory
from glft_schema.weights.torch_files import NESTED_KEYS, load_torch
from tests.tools.torch_archives import archive, entry, members, saved, tensor, with_pickle

MOST = 1 << 26  # bytes of values; torch's reader runs only on files of fewer


def seeds() -> Iterator[bytes]:
    """Yields small torch files, zip and legacy."""
    base = torch.arange(6, dtype=torch.float32)
    module = torch.nn.Linear(2, 1)
    conjugated, negated = torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64).conj().imag
    contents = (
        {"a": base},
        {"model": OrderedDict(a=base.view(2, 3).T, b=base[2:4]), "step": 3, "args": [1.5, None, (True, "x")]},
        {"a": torch.nn.Parameter(base), "b": base.bool(), "c": base.to(torch.float8_e4m3fn), "d": conjugated, "e": negated},
        {"state_dict": module.state_dict(), "optimizer": torch.optim.SGD(module.parameters()).state_dict()},
        {"a": torch.eye(2).to_sparse(), "b": torch.ones(2, device="meta"), "c": {1, 2}},
    )
    for content in contents:
        yield archive(members(content))
        yield saved(content)
        yield saved(content, _use_new_zipfile_serialization=False)
    yield with_pickle(entry(tensor()), bytes(16))


def check_promises(stored: bytes) -> None:
    """Opens bytes as a torch file, and compares its tensors with those that torch loads.

    Raises any exception but a documented one.
    """
    fd, path = tempfile.mkstemp(suffix=".pt")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(stored)
        try:
            entries = load_torch(path)
        except (FormatError, TensorError):
            return
        tensors = {}
        for name, value in entries.items():
            try:
                tensors |= in_memory({name: value})
            except TensorError:
                continue
        total = sum(tensor.numel * tensor.dtype.itemsize for tensor in tensors.values())
        assert total <= 100 * len(stored) + MOST, f"{total} bytes of tensors in {len(stored)} bytes"
        loaded = {name: _described(tensor.values()) for name, tensor in tensors.items()}
        for name, theirs in _by_torch(path).items():
            assert name not in loaded or loaded[name] == _described(as_array(theirs)), name
    finally:
        if os.name == "posix":  # Windows removes no mapped file
            os.unlink(path)


def _described(array: np.ndarray[Any, Any]) -> tuple[object, ...]:
    return array.dtype, array.shape, array.tobytes()


def _by_torch(path: str) -> dict[str, torch.Tensor]:
    """Returns the dense tensors that torch loads from a file; none if it refuses the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, weights_only=True)
    except Exception:  # torch documents none
        return {}
    for key in NESTED_KEYS:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)} | loaded[key]
    tensors = loaded.items() if isinstance(loaded, dict) else ()
    dense = {name: value for name, value in tensors if isinstance(value, torch.Tensor) and value.layout == torch.strided}
    return {name: value for name, value in dense.items() if not (value.is_meta or value.is_quantized)}
