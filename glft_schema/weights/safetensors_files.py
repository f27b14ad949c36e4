"""safetensors files, read and written one tensor at a time.

Source: the README of safetensors 0.8. A file is a u64 length, a JSON header, and payloads without
gaps. As in the library, the header is padded with spaces to a multiple of 8, and tensors are sorted
by decreasing element size, which aligns them. The library validates files on reading. It is not
used for writing because it holds all tensors in memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from glft_schema.codec.text import is_utf8
from glft_schema.codec.type_codes import TypeTable
from glft_schema.display import Progress
from glft_schema.errors import FormatError, LimitError, TensorError, one_line, shown
from glft_schema.lazy import torch
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.file_source import open_source
from glft_schema.storage.source import Source, StrPath
from glft_schema.storage.tensor_bytes import tensor_over, write_all
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.copied import COPIED_TYPES
from glft_schema.tensor_types.engine.chunks import Rows
from glft_schema.tensor_types.unquantized import BF16, F16, F32, F64, I8, I16, I32, I64
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.payloads import WrittenTensor, payloads_of
from glft_schema.weights.schemes import choose_types
from glft_schema.weights.stored_tensors import StoredTensor, in_memory

SAFETENSORS_METADATA = "__metadata__"  # the header entry that is not a tensor

# Names of torch's dtypes. Source: `Dtype` in safetensors 0.8.
# fmt: off
SAFETENSORS_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64",
}
# fmt: on


TYPES = TypeTable[TensorType]("safetensors files", F32, F16, BF16, F64, I8, I16, I32, I64, *COPIED_TYPES)
MAX_HEADER = 100_000_000  # bytes: the limit of other readers


def save_safetensors(
    tensors: Mapping[str, StoredTensor],
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    schemes: Mapping[str, str] | None = None,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    measure: bool = False,
) -> list[WrittenTensor]:
    """Writes tensors to a safetensors file; quantized ones are dequantized. See `save_file`.

    Tied tensors are stored once per name: the format does not allow shared bytes.
    """
    stored = in_memory(leave_out(tensors, exclude))
    if SAFETENSORS_METADATA in stored:
        raise TensorError("this name is reserved by safetensors", SAFETENSORS_METADATA)
    choices = choose_types(stored, schemes or {}, TYPES)
    payloads = payloads_of(choices, stored, progress, measure)
    codes = {torch_name: code for code, torch_name in SAFETENSORS_DTYPES.items()}
    ordered = sorted(payloads.values(), key=lambda tensor: (-tensor.type.dtype.itemsize, tensor.name))
    header: dict[str, object] = {SAFETENSORS_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.nbytes
        dtype, shape = codes[str(tensor.type.exact)], list(tensor.stored.shape)
        header[tensor.name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    for text in (*payloads, *(metadata or {}), *(metadata or {}).values()):
        if not isinstance(text, str) or not is_utf8(text):
            raise FormatError(f"expected text that can be encoded as UTF-8, found {shown(text)}", "header")
    stored_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    stored_header += b" " * (-len(stored_header) % 8)
    if len(stored_header) > MAX_HEADER:
        raise LimitError(f"expected at most {MAX_HEADER} bytes of header (a limit of safetensors), found {len(stored_header)}")
    with atomic_write(path) as stream:
        write_all(stream, len(stored_header).to_bytes(8, "little") + stored_header)
        for tensor in ordered:
            for piece in tensor.pieces():
                write_all(stream, piece)
    return [tensor.written() for tensor in payloads.values()]


def open_safetensors(path: StrPath) -> tuple[dict[str, Any], dict[str, str]]:
    """Opens a file that the safetensors library accepts, and returns its entries and its metadata.

    Values are read here because the library is slow to read single rows. An entry with a dtype that
    torch lacks is a text that says so. It can be excluded.

    Raises:
        OSError: from the system.
        FormatError: if the library rejects the file.
    """
    from safetensors import SafetensorError, safe_open

    source = open_source(path)  # first: it never blocks on a pipe
    try:
        opened: Any = safe_open(os.fspath(path), framework="pt", backend="pread")
        names = list(opened.keys())
    except SafetensorError as error:
        problem = f"expected a safetensors or torch file, found {one_line(str(error))}"
        raise FormatError(problem, file=os.fspath(path)) from error
    length = int.from_bytes(source.read(0, 8), "little")
    header = json.loads(bytes(source.read(8, length)))
    stored: dict[str, Any] = {}
    for name in names:
        code, shape, start = header[name]["dtype"], tuple(header[name]["shape"]), header[name]["data_offsets"][0]
        dtype = getattr(torch, SAFETENSORS_DTYPES.get(code, ""), None)
        if isinstance(dtype, torch.dtype):
            numbers = _Numbers(source, 8 + length + start, dtype, name)
            stored[name] = StoredTensor(shape, dtype, partial(numbers, 0, shape), rows=Rows(shape, dtype, numbers))
        else:
            stored[name] = f"{code}, a dtype that torch lacks"
    return stored, header.get(SAFETENSORS_METADATA) or {}


@dataclass(frozen=True)
class _Numbers:
    """Consecutive values in a file, from byte `start`."""

    source: Source
    start: int
    dtype: torch.dtype
    name: str

    def __call__(self, first: int, shape: Sequence[int]) -> torch.Tensor:
        """Returns a tensor of `shape` that begins at element `first`."""
        size = self.dtype.itemsize
        try:
            return tensor_over(self.source.private(self.start + first * size, math.prod(shape) * size), self.dtype, shape)
        except FormatError as error:  # the file was truncated after opening
            error.tensor = self.name
            raise
