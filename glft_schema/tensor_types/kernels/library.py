"""Loads libraries that AOTInductor has compiled, and calls them without Python's global lock.

The functions are AOTInductor's C interface (interface.h of torch/csrc/inductor/aoti_runtime, and
shim.h of aoti_torch/c), which torch keeps stable. They check nothing: the caller must pass tensors
of exactly the layout that the library was compiled for.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from glft_schema.lazy import torch

POINTER, INT64, INT32, SIZE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_size_t
SHIM = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}


class Shim:
    """The functions of libtorch's C interface. They are short, and keep Python's global lock: a
    thread that gives it up waits for it behind others.
    """

    def __init__(self) -> None:
        library = ctypes.PyDLL(os.path.join(os.path.dirname(torch.__file__ or ""), "lib", SHIM[sys.platform]))
        self.tensor = library.aoti_torch_create_tensor_from_blob
        self.tensor.argtypes = [POINTER, INT64, POINTER, POINTER, INT64, INT32, INT32, INT32, POINTER]
        self.cpu: int = library.aoti_torch_device_type_cpu()
        names = ("float64", "float32", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64", "bool")
        self.dtypes: dict[torch.dtype, int] = {
            getattr(torch, name): getattr(library, f"aoti_torch_dtype_{name}")() for name in names
        }


@lru_cache
def shim() -> Shim | None:
    """Returns the C interface of torch, or None if this torch has another."""
    try:
        return Shim()
    except (OSError, AttributeError, KeyError):
        return None


class Library:
    """A loaded library. Its function can be called in several threads at once.

    Raises OSError if the library cannot be loaded.
    """

    def __init__(self, path: Path, interface: Shim) -> None:
        self._interface = interface
        try:
            library = ctypes.CDLL(os.fspath(path))
            self._run = library.AOTInductorModelContainerRun
            create = library.AOTInductorModelContainerCreateWithDevice
        except AttributeError as error:
            raise OSError(str(error)) from None
        self._run.argtypes = [POINTER, POINTER, SIZE, POINTER, SIZE, POINTER, POINTER]
        self._container = POINTER()  # lives as long as the process
        if create(ctypes.byref(self._container), SIZE(min(os.cpu_count() or 1, 64)), b"cpu", None):
            raise OSError("AOTInductor cannot create the model")

    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        """Runs the library on its arguments. Raises RuntimeError if it fails."""
        handles, interface = (POINTER * len(tensors))(), self._interface
        for number, tensor in enumerate(tensors):
            sizes, strides = (INT64 * tensor.dim())(*tensor.shape), (INT64 * tensor.dim())(*tensor.stride())
            place, dtype = ctypes.addressof(handles) + 8 * number, interface.dtypes[tensor.dtype]
            if interface.tensor(tensor.data_ptr(), tensor.dim(), sizes, strides, 0, dtype, interface.cpu, 0, place):
                raise RuntimeError("torch cannot make a tensor of a kernel's argument")
        if self._run(self._container, handles, len(tensors), None, 0, None, None):  # which frees the handles
            raise RuntimeError("a kernel failed; torch has printed why")
