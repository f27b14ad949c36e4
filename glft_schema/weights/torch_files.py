"""Files that `torch.save` writes."""

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

# A zip archive; and a pickle that begins with torch's own number, as before 1.6. With fewer of its bytes one could not tell it
# from a safetensors file, which begins with the length of its header.
TORCH_MAGICS = (ZIP, b"\x80\x02\x8a\x0a")

REPEATED = 1 << 24  # bytes up to which a tensor of a file may repeat what is stored of it

NESTED_KEYS = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights in a larger dict


def load_torch(path: StrPath, mmap: bool) -> dict[str, Any]:
    """Returns the entries of a torch file that holds only tensors; they need not be dense ones.

    Raises:
        OSError: from the system.
        FormatError: for a file that is none, or holds other objects.
        TensorError: for a tensor that repeats what is stored of it.
    """
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
