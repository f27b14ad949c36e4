"""The weights that an export starts from: what each tensor is, known at once, and its numbers, loaded when its turn comes."""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.bulk import is_utf8
from glft_schema.container import FORMATS
from glft_schema.container import open as open_container
from glft_schema.errors import FormatError, TensorError, one_line, safe, shown
from glft_schema.file import File
from glft_schema.lazy import torch
from glft_schema.names import leave_out
from glft_schema.shards import KEYS
from glft_schema.source import Source, StrPath, open_regular, open_source, read_regular
from glft_schema.tensor_bytes import tensor_over
from glft_schema.tensor_types.chunks import Rows
from glft_schema.tensors import Tensor
from glft_schema.typed_values import Metadata

INDEX_SUFFIX = ".safetensors.index.json"
# A zip archive; and a pickle that begins with torch's own number, as before 1.6. With fewer of its bytes one could not tell it
# from a safetensors file, which begins with the length of its header.
TORCH_MAGICS = (b"PK\x03\x04", b"\x80\x02\x8a\x0a")
REPEATED = 1 << 24  # bytes up to which a tensor of a file may repeat what is stored of it
SAFETENSORS_METADATA = "__metadata__"  # the entry of a header that is no tensor
NESTED_KEYS = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights in a larger dict

# What safetensors calls torch's dtypes. Source: `Dtype` in safetensors 0.8.
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


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be exported.

    Attributes:
        shape: its sizes.
        dtype: its torch dtype.
        load: gives its numbers; called when they are written, and not kept.
        identity: equal for tensors that are the same numbers at the same place, None where that cannot be known.
        packed: the tensor in the weights file that it comes from, or None.
        rows: the same numbers as a matrix [out, in] of which some rows are loaded at a time; None where they come all at once.
        importance: how much an error in each column matters, as of `TensorType.encode`, where that is known.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]
    identity: Hashable = None
    packed: Tensor | None = None
    rows: Rows | None = None
    importance: torch.Tensor | None = None

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def in_memory(tensors: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Returns the tensors of a state dict as `StoredTensor`s; those that are stay so.

    Raises:
        TensorError: for a value that is no dense torch tensor with numbers.
    """
    return {name: _in_memory(name, tensor) for name, tensor in tensors.items()}


def _in_memory(name: str, tensor: Any) -> StoredTensor:
    if not isinstance(name, str):
        raise TensorError("expected a name that is text", str(name))
    if isinstance(tensor, StoredTensor):
        return tensor
    check_dense(name, tensor)
    place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_neg())
    return StoredTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor, place if tensor.numel() else None)


def check_dense(name: str, tensor: Any) -> None:
    """Raises TensorError for what is no torch tensor that has its numbers in memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TensorError(f"expected a torch.Tensor, found {shown(tensor)}", name)
    if not is_dense(tensor):
        kind = "meta" if tensor.is_meta else str(tensor.layout)
        raise TensorError(f"expected a dense tensor with numbers in memory, found a {type(tensor).__name__} ({kind})", name)


def is_dense(tensor: torch.Tensor) -> bool:
    """Tells whether the tensor has its numbers in memory, one after another by strides."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return False
    try:
        tensor.data_ptr()
    except (RuntimeError, ValueError):  # of tensors that only stand for others
        return False
    return True


def open_checkpoint(path: StrPath, exclude: Iterable[str] = ()) -> dict[str, StoredTensor]:
    """Opens a checkpoint: a safetensors file, a folder of them with its index, a torch file of tensors, or a weights file.

    A torch file is read with ``weights_only=True``: it can run no code. Where it is a dict that has the weights under
    ``state_dict``, ``model_state_dict`` or ``model``, these are taken. Tensors of a safetensors file are read one by one.

    Args:
        path: the file or folder.
        exclude: names or fnmatch patterns of entries to leave out; they need not be tensors.

    Raises:
        OSError: where a file cannot be opened.
        FormatError: where it is not a checkpoint.
        TensorError: for an entry that is no tensor.
        SchemeError: for a pattern that matches nothing.
    """
    return dict(open_with_metadata(path, exclude).tensors)


class Checkpoint(NamedTuple):
    """An open checkpoint.

    Attributes:
        tensors: by name.
        metadata: typed of GGUF, text of GLFT and of a safetensors file; those of a GGUF set do not say that it was one.
        file: the weights file that it is, or None.
    """

    tensors: Mapping[str, Any]
    metadata: Mapping[str, Any]
    file: File | None = None


def open_with_metadata(path: StrPath, exclude: Iterable[str] = ()) -> Checkpoint:
    """Opens a checkpoint as `open_checkpoint` does, with its metadata."""
    found = _open_any(path)
    return found._replace(tensors=in_memory(leave_out(found.tensors, exclude)))


def _open_any(path: StrPath) -> Checkpoint:
    """Opens a checkpoint of any kind, whose entries are not yet known to be tensors."""
    if os.path.isdir(path):
        return Checkpoint(_open_folder(Path(path)), {})
    if os.fspath(path).endswith(INDEX_SUFFIX):
        return Checkpoint(_open_index(Path(path)), {})
    fd = open_regular(path)
    try:
        magic = os.read(fd, 4)
    finally:
        os.close(fd)
    if magic.startswith(TORCH_MAGICS):
        return Checkpoint(_load_torch(path, mmap=magic.startswith(TORCH_MAGICS[0])), {})
    if any(magic in format.magics for format in FORMATS):
        file = open_container(path)
        tensors = {name: _in_file(tensor) for name, tensor in file.tensors.items()}
        metadata = file.metadata
        if isinstance(metadata, Metadata):
            metadata = metadata.without(*(key for key in KEYS if key in metadata))
        return Checkpoint(tensors, metadata, file)
    return _open_safetensors(path)


def _in_file(tensor: Tensor) -> StoredTensor:
    """Returns a tensor of a weights file, which stays open for it."""
    return StoredTensor(tensor.shape, tensor.dtype.dtype, tensor.dequantize, tensor.place if tensor.nbytes else None, tensor)


@dataclass(frozen=True)
class _Unreadable:
    """An entry that torch has no dtype for: it may be left out."""

    code: str

    def __repr__(self) -> str:
        return f"a dtype that torch does not have, {self.code}"


def _open_safetensors(path: StrPath) -> Checkpoint:
    """Opens a file that the format's own library accepts. Numbers are read here: of some rows the library is slow to do so."""
    source = open_source(path)  # first: it refuses what is no regular file without waiting on it
    names = _names_in_safetensors(path)
    length = int.from_bytes(source.read(0, 8), "little")
    header = json.loads(bytes(source.read(8, length)))
    stored: dict[str, StoredTensor | _Unreadable] = {}
    for name in names:
        code, shape, start = header[name]["dtype"], tuple(header[name]["shape"]), header[name]["data_offsets"][0]
        dtype = getattr(torch, SAFETENSORS_DTYPES.get(code, ""), None)
        if isinstance(dtype, torch.dtype):
            numbers = _Numbers(source, 8 + length + start, dtype, name)
            stored[name] = StoredTensor(shape, dtype, partial(numbers, 0, shape), rows=Rows(shape, dtype, numbers))
        else:
            stored[name] = _Unreadable(code)
    return Checkpoint(stored, header.get(SAFETENSORS_METADATA) or {})


@dataclass(frozen=True)
class _Numbers:
    """Numbers one after another in a file, from byte `start` on."""

    source: Source
    start: int
    dtype: torch.dtype
    name: str

    def __call__(self, first: int, shape: Sequence[int]) -> torch.Tensor:
        """Returns a tensor of those from number `first` on."""
        size = self.dtype.itemsize
        try:
            return tensor_over(self.source.private(self.start + first * size, math.prod(shape) * size), self.dtype, shape)
        except FormatError as error:  # of a file that was cut since it was opened
            error.tensor = self.name
            raise


def _names_in_safetensors(path: StrPath) -> list[str]:
    """Returns the names of tensors in a file; raises FormatError, with what the library says, where it does not accept it."""
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(os.fspath(path), framework="pt", backend="pread")
        return list(opened.keys())
    except SafetensorError as error:
        found = one_line(str(error))
        raise FormatError(f"expected a safetensors or torch file, found {found}", file=os.fspath(path)) from error


def _open_folder(folder: Path) -> Mapping[str, Any]:
    indices = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if not indices:
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            raise FormatError(f"expected an index (*{INDEX_SUFFIX}) or one safetensors file, found {len(files)} files")
        return _open_safetensors(files[0]).tensors
    if len(indices) > 1:
        raise FormatError(f"expected one index in the folder, found {', '.join(safe(index.name) for index in indices)}")
    return _open_index(indices[0])


def _open_index(index: Path) -> Mapping[str, Any]:
    stored = read_regular(index)
    try:
        places = json.loads(stored.decode("utf-8"))["weight_map"]
        shards = set(places.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"expected JSON with a weight_map, found something else in {safe(index.name)}") from None
    if not shards:
        raise FormatError(f"expected at least one tensor in the weight_map, found none in {safe(index.name)}")
    opened = {}
    for shard in sorted(shards, key=str):
        if not isinstance(shard, str) or not is_file_name(shard):
            raise FormatError(f"expected the name of a file in the folder, found {shown(shard)}", "weight_map")
        opened[shard] = _open_safetensors(index.parent / shard).tensors
    missing = [name for name, shard in places.items() if name not in opened[shard]]
    if missing:
        raise FormatError(f"expected tensor {shown(missing[0])} in {safe(places[missing[0]])}, found none", "weight_map")
    return {name: opened[shard][name] for name, shard in places.items()}


def is_file_name(text: str) -> bool:
    """Tells whether a text names a file of the folder that it is looked for in, and no other place."""
    return text == os.path.basename(text) and text not in ("", ".", "..") and "\0" not in text and is_utf8(text)


def _load_torch(path: StrPath, mmap: bool) -> dict[str, Any]:
    try:
        _check_not_compressed(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (OSError, MemoryError, FormatError, ModuleNotFoundError):
        raise
    except Exception as error:
        reason = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):
            reason = "Python objects beside them, or none at all; save model.state_dict() instead"
        raise FormatError(f"expected a torch file that holds only tensors, found: {reason}") from error
    for key in NESTED_KEYS:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found:
        raise FormatError(f"expected a dict of tensors, found {shown(found)}")
    for name, tensor in found.items():
        if isinstance(tensor, torch.Tensor) and is_dense(tensor):
            _check_not_repeated(str(name), tensor)
    return dict(found)


def _check_not_compressed(path: StrPath) -> None:
    """Raises FormatError for an archive that takes more memory than it has bytes; torch stores all as it is."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    problem = f"expected members as they are, as torch stores them, found {shown(member.filename)} compressed"
                    raise FormatError(problem, file=os.fspath(path))


def _check_not_repeated(name: str, tensor: torch.Tensor) -> None:
    """Raises TensorError for a tensor of a file that is much larger than what is stored of it: a few bytes, again and again."""
    stored, whole = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    if whole > max(stored, REPEATED):
        raise TensorError(f"expected {whole} bytes of numbers, found {stored} that are repeated: save a contiguous one", name)
