"""Reads files written by `torch.save` without torch's reader, so none of their code runs.

A file of torch 1.6 or later is a zip archive of a pickle and a record per storage. A legacy file
has five pickles, then the storages, each preceded by its number of elements.
"""

from __future__ import annotations

import math
import os
from contextlib import closing
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glft_schema.codec.construct_errors import inside
from glft_schema.errors import FormatError, TensorError, TruncatedError, quote
from glft_schema.files.parsing import gc_paused
from glft_schema.files.shards import check_listed, read_index
from glft_schema.formats.registry import ZIP, format_of
from glft_schema.formats.torch_zip import Span, read_directory
from glft_schema.limits import check_repeats, current
from glft_schema.storage.dtypes import NAMES, Array, Dtype, dtype_of, name_of
from glft_schema.storage.locations import beside
from glft_schema.storage.opening import open_mapped, open_source
from glft_schema.storage.source import Source, StrPath
from glft_schema.storage.streams import stream_of
from glft_schema.storage.system import MAPS
from glft_schema.storage.tensor_bytes import array_over
from glft_schema.weights.torch_pickle import Opaque, Storage, TensorView, read_pickle

# A zip archive, or a pickle with the magic number of torch before 1.6. A shorter prefix could also
# be the header length at the start of a safetensors file.
TORCH_MAGICS = (ZIP, b"\x80\x02\x8a\x0a")
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of a legacy file
VERSIONS = [b"%d" % version for version in range(1, 11)]  # of archives that torch reads

ALIGNMENT = 16  # bytes; torch may crash on unaligned complex128 tensors
PER_TENSOR = 80  # bytes of a pickle, at least

NESTED_KEYS = ("state_dict", "model_state_dict", "model")  # weights in checkpoints of training scripts
ONLY_TENSORS = "expected a torch file that holds only tensors, found"
MODULES = ("torch", "torch.cuda", "torch.storage")
# fmt: off
DTYPES = {  # by the class of a storage; quantized tensors are not read
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8", "QInt8Storage": "int8", "QUInt8Storage": "uint8", "QInt32Storage": "int32",
}
DTYPES |= {dtype: dtype for dtype in (  # of tensors in untyped storages
    "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
)}
# fmt: on


def is_torch(path: StrPath) -> bool:
    """Returns whether a regular file begins like a torch file. Raises OSError from the system."""
    with closing(open_source(path, mmap=False)) as source:
        return bytes(source.read(0, min(source.size, 4))).startswith(TORCH_MAGICS)


def load_torch(path: StrPath) -> dict[str, Any]:
    """Returns the entries of a torch file. Tensors are views of the mapped file; on Windows, they
    are read-only.

    Raises:
        OSError: from the system.
        LimitError: if the file exceeds a limit.
        FormatError: if it is not a torch file, or does not hold a dict with entries.
        TensorError: if a tensor's dtype cannot be read.
    """
    source = open_mapped(path)
    try:
        start = bytes(source.read(0, min(source.size, 4)))
        if not start.startswith(TORCH_MAGICS):
            raise FormatError(f"expected a torch file, found {format_of(source).name}")
        with stream_of(source) as stream, gc_paused():
            value, records = (_read_archive if start == ZIP else _read_legacy)(stream)
            entries, make = _weights(value), _Tensors(source, records).of
            return {name: make(entry, str(name)) if isinstance(entry, TensorView) else entry for name, entry in entries.items()}
    except FormatError as error:
        raise error.at(error.path, error.offset, error.tensor, source.name) from None
    finally:
        source.close()  # tensors keep the file mapped


def load_torch_set(index: StrPath) -> dict[str, Any]:
    """Returns the entries of all torch files that an index lists. Raises as `read_index`, and as
    `load_torch`."""
    weight_map, names = read_index(index)
    shards = {name: load_torch(beside(index, name)) for name in names}
    check_listed(index, weight_map, shards)
    return {name: entry for shard in shards.values() for name, entry in shard.items()}


def _weights(value: Any) -> dict[Any, Any]:
    """Returns the entries of `NESTED_KEYS`, with the tensors beside them, or all entries."""
    for key in NESTED_KEYS:
        if isinstance(value, dict) and isinstance(nested := value.get(key), dict):
            beside = {name: entry for name, entry in value.items() if isinstance(entry, TensorView)}
            if both := nested.keys() & beside.keys():
                raise FormatError(f"expected unique names, found a tensor in and beside {quote(key)}", tensor=min(both))
            value = nested | beside
    if isinstance(value, Opaque):
        raise FormatError(f"{ONLY_TENSORS}: other Python objects ({value}); save model.state_dict() instead")
    if not isinstance(value, dict) or not value:
        raise FormatError(f"expected a dict of tensors, found {quote(value)}")
    return value


def _read_archive(stream: IO[bytes]) -> tuple[Any, dict[str, Span]]:
    """Returns the object of an archive, and the bytes of its storages by key."""
    records = read_directory(stream)

    def read(name: str) -> bytes:
        start, nbytes = records.get(name, (0, 0))
        _check_size(nbytes, name)
        stream.seek(start)
        return stream.read(nbytes)

    if "constants.pkl" in records:
        raise FormatError(f"{ONLY_TENSORS}: TorchScript; save model.state_dict() instead")
    version, order = read("version"), read("byteorder")
    if version.strip() not in VERSIONS or order not in (b"", b"little"):
        found = f"version {quote(version)} and byteorder {quote(order)}"
        raise FormatError(f"expected version 1 to 10 and little-endian numbers, found {found}")
    with inside("data.pkl"):
        value, _ = read_pickle(BytesIO(read("data.pkl")))
    return value, {name.removeprefix("data/"): span for name, span in records.items() if name.startswith("data/")}


def _read_legacy(stream: IO[bytes]) -> tuple[Any, dict[str, Span]]:
    """Returns the object of a legacy file, and the bytes of its storages by key."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    start = BytesIO(stream.read(current().objects * PER_TENSOR))
    try:
        (magic, _), (protocol, _), (system, _), (value, storages), (keys, _) = (read_pickle(start) for _ in range(5))
    except TruncatedError:
        _check_size(size, "")
        raise
    little = system.get("little_endian") if isinstance(system, dict) else None
    if (magic, protocol, little) != (MAGIC, PROTOCOL, True):
        found = f"protocol {quote(protocol)}, little-endian {quote(little)}"
        raise FormatError(f"expected protocol {PROTOCOL} and little-endian numbers, found {found}")
    records, at = dict[str, Span](), start.tell()
    for key in keys if isinstance(keys, list) else ():
        stream.seek(at)
        storage, numel = storages.get(key if isinstance(key, str) else ""), int.from_bytes(stream.read(8), "little")
        if storage is None or storage.numel != numel or key in records:
            raise FormatError(f"expected each storage once, with the number of its elements, found {quote(key)}", offset=at)
        records[key] = at + 8, numel * _dtype(storage.type, key).itemsize
        at = sum(records[key])
    if at > size:
        raise TruncatedError(f"expected {at} bytes, found {size}", offset=size)
    return value, records


def _check_size(nbytes: int, path: str) -> None:
    """Raises LimitError if pickles or texts are too large. In memory they take up to 80 times their
    size."""
    current().check("objects", nbytes // PER_TENSOR, path, f" tensors with {PER_TENSOR} bytes of a pickle each")


def _dtype(name: str, tensor: str) -> Dtype:
    """Returns the dtype for the global of a storage class or of a torch dtype.

    Raises TensorError if numbers of that dtype cannot be read.
    """
    module, _, last = name.rpartition(".")
    dtype = DTYPES.get(last) if module in MODULES else None
    if dtype not in (*NAMES, "complex128"):
        raise TensorError(f"expected a dtype of numbers that can be read, found {quote(name)}", tensor)
    return dtype_of(dtype)


class _Tensors:
    """Creates the tensors of a file as views of the mapped file."""

    def __init__(self, source: Source, records: dict[str, Span]) -> None:
        self._source = source
        self._whole = (source.private if MAPS else source.view)(0, source.size)  # memory would be committed for the former
        self._records = records
        self._storages: dict[str, Array] = {}  # uint8, by key
        self._stored, self._nbytes = sum(nbytes for _, nbytes in records.values()), 0  # bytes of storages, and of tensors

    def of(self, view: TensorView, name: str) -> Array:
        """Returns a tensor. Raises FormatError or TensorError as `load_torch`."""
        stored = _dtype(view.storage.type, name)
        dtype = stored if view.dtype is None else _dtype(view.dtype, name)
        storage = self._storage(view.storage, stored, name)
        numel, most = math.prod(view.shape), view.storage.numel * stored.itemsize // dtype.itemsize
        last = view.offset + sum((size - 1) * step for size, step in zip(view.shape, view.stride, strict=True))
        if (numel and last >= most) or math.prod(size or 1 for size in view.shape) >= (1 << 63) // dtype.itemsize:
            problem = f"expected elements of its storage of {most}, found dims {list(view.shape)} up to element {last}"
            raise FormatError(problem, tensor=name)
        self._nbytes += numel * dtype.itemsize
        check_repeats(self._nbytes, self._stored, f"tensors up to {quote(name)}")
        if not numel:
            return np.empty(view.shape, dtype)
        numbers = storage[: most * dtype.itemsize].view(dtype)[view.offset :]
        found = as_strided(numbers, view.shape, [step * dtype.itemsize for step in view.stride])
        if "conj" in view.flags and found.dtype.kind == "c":  # torch ignores the value
            found = np.asarray(found.conj())
        if "neg" not in view.flags:
            return found
        if found.dtype.kind not in "cf":  # torch has such views only of imaginary parts
            raise TensorError(f"expected numbers that can be negated, found {name_of(found.dtype)}", name)
        return np.asarray(-found)

    def _storage(self, storage: Storage, dtype: Dtype, name: str) -> Array:
        if storage.key not in self._storages:
            start, nbytes = self._records.get(storage.key, (0, -1))
            if nbytes != storage.numel * dtype.itemsize:
                found = f"{nbytes} bytes" if nbytes >= 0 else "none"
                problem = f"expected the storage {quote(storage.key)} of {storage.numel * dtype.itemsize} bytes, found {found}"
                raise FormatError(problem, offset=start or None, tensor=name)
            stored = self._source.read(start, nbytes) if start % ALIGNMENT else self._whole[start : start + nbytes]
            self._storages[storage.key] = array_over(stored, dtype_of("uint8"), (nbytes,))
        return self._storages[storage.key]
