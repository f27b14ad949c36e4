"""Files written by `torch.save`."""

from __future__ import annotations

import os
import pickle
import zipfile
from typing import Any

from glft_schema.errors import FormatError, TensorError, one_line, shown
from glft_schema.formats.registry import ZIP
from glft_schema.lazy import torch
from glft_schema.storage.source import StrPath
from glft_schema.weights.stored_tensors import is_dense

# A zip archive, or a pickle with the magic number of torch before 1.6. A shorter prefix could also
# be the header length at the start of a safetensors file.
TORCH_MAGICS = (ZIP, b"\x80\x02\x8a\x0a")

MAX_REPEATED = 1 << 24  # bytes that a tensor with repeated elements may expand to

NESTED_KEYS = ("state_dict", "model_state_dict", "model")  # weights in checkpoints of training scripts


def load_torch(path: StrPath, mmap: bool) -> dict[str, Any]:
    """Returns the entries of a torch file that holds only tensors, dense or not.

    Raises:
        OSError: from the system.
        FormatError: if it is not a torch file, or holds other objects.
        TensorError: if a tensor expands repeated elements beyond `MAX_REPEATED`.
    """
    try:
        _check_not_compressed(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (OSError, MemoryError, FormatError, ModuleNotFoundError):
        raise
    except Exception as error:
        reason = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):
            reason = "other Python objects, or no tensors; save model.state_dict() instead"
        raise FormatError(f"expected a torch file that holds only tensors, found: {reason}") from error
    for key in NESTED_KEYS:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise FormatError(f"expected a dict of tensors, found {shown(loaded)}")
    for name, tensor in loaded.items():
        if isinstance(tensor, torch.Tensor) and is_dense(tensor):
            stored, whole = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
            if whole > max(stored, MAX_REPEATED):
                problem = f"expected {whole} bytes of values, found {stored}, repeated by strides: save tensor.contiguous()"
                raise TensorError(problem, str(name))
    return dict(loaded)


def _check_not_compressed(path: StrPath) -> None:
    """Raises FormatError for a compressed archive, which could expand to any size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    problem = f"expected an uncompressed archive, found {shown(member.filename)} compressed"
                    raise FormatError(problem, file=os.fspath(path))
