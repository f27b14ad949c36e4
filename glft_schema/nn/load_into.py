"""`load_into`: loads the tensors of a weights file into any module.

The memory of new tensors is allocated before the module changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from glft_schema.display import with_display
from glft_schema.errors import OptionError, TensorError, quote, safe
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.formats.registry import FORMATS
from glft_schema.lazy import outside_graphs
from glft_schema.nn.layers import ModuleTensor, can_be_packed, module_tensors, owner_of, pack_tensor, packed_owner
from glft_schema.nn.saving import prepare_save_pretrained
from glft_schema.storage.dtypes import is_float, name_of
from glft_schema.storage.source import StrPath
from glft_schema.storage.torch_tensors import as_tensor, dtype_in_torch, not_dense, usable_device
from glft_schema.tensors.stored_tensor import StoredTensor, are_equal, of_file
from glft_schema.words import suggestion

LISTED, LONGEST = 5, 400  # items listed in an error, characters per item
Renaming = Mapping[str, "str | None"] | Callable[[str], "str | None"]


@with_display
class Unmatched(NamedTuple):
    """Tensors that only one side has.

    Attributes:
        missing: names in the module without a tensor in the file.
        left_over: names of the file, after renaming, that the module lacks.
    """

    missing: list[str]
    left_over: list[str]


@outside_graphs
def load_into(
    module: nn.Module,
    path: StrPath,
    *,
    packed: bool = False,
    names: Renaming | None = None,
    strict: bool = True,
    device: str | torch.device = "cpu",
) -> Unmatched:
    """Loads the tensors of a weights file into a module's parameters and buffers.

    Everything is checked before anything changes. Values are written into the module's existing
    memory. Tensors on the meta device get new memory; on the CPU, floats that keep their dtype
    become copy-on-write views of the file.

    Args:
        module: any module.
        path: the file.
        packed: replace each `torch.nn.Linear`, `Embedding` and `Conv2d` whose weight is quantized
            in the file by the module of `glft_schema.nn` that keeps the file's bytes, unless
            float32 takes no more. Required if the module has such modules already.
        names: a mapping or function from names in the file to names in the module, or to None to
            leave a tensor out. Names that a mapping lacks stay the same.
        strict: refuse names that only one side has, and names of the mapping that the file lacks.
        device: the device for tensors that are on the meta device.

    Returns:
        The names that only one side has; none if `strict`.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid file of a known format.
        OptionError: if names, shapes or types do not fit, a device lacks the memory for a tensor,
            or torch cannot use the device. The module is then unchanged.
    """
    with torch.inference_mode(False), open(path) as file:
        tensors = rename_tensors(file, names or {}, path, strict=strict)
        return fill(module, tensors, path, packed=packed, strict=strict, device=device)


def rename_tensors(file: File, names: Renaming, source: StrPath, *, strict: bool = False) -> dict[str, StoredTensor]:
    """Returns the tensors of a file by their new names; see `load_into`.

    Raises OptionError if `names` is invalid, two tensors get the same name, or `strict` is set and
    a mapping has a name that the file lacks.
    """
    if not callable(names) and not isinstance(names, Mapping):
        raise OptionError(f"expected names as a mapping or a function, found {quote(names)}")
    if strict and not callable(names) and (unknown := [name for name in names if name not in file.weights]):
        hint = suggestion(unknown[0], file.weights)
        raise OptionError(f"{source}: names has {list_some(unknown)}, which the file lacks{hint}")
    rename = names if callable(names) else lambda name: names.get(name, name)
    pairs = [(new, tensor) for name, tensor in file.weights.items() if (new := rename(name)) is not None]
    if wrong := [new for new, _ in pairs if not isinstance(new, str)]:
        raise OptionError(f"expected the new name of a tensor as text or None, found {quote(wrong[0])}")
    twice = [f"{name}: several tensors of the file" for name, count in Counter(new for new, _ in pairs).items() if count > 1]
    if twice:
        raise OptionError(f"{source}: {list_some(twice, '; ')}")
    return {name: of_file(tensor) for name, tensor in pairs}


def fill(
    module: nn.Module,
    found: Mapping[str, StoredTensor],
    source: StrPath,
    *,
    packed: bool,
    strict: bool = True,
    device: str | torch.device = "cpu",
    experts: Collection[str] = (),
) -> Unmatched:
    """Loads tensors by their names in a module; see `load_into`.

    Args:
        module: any module.
        found: the tensors.
        source: the file, for errors.
        packed: as in `load_into`.
        strict: as in `load_into`.
        device: as in `load_into`.
        experts: names of 3-D parameters to replace by `Experts`; the module must index one matrix
            at a time.

    Raises OptionError as `load_into`.
    """
    device, tensors = usable_device(device), module_tensors(module)
    missing = [entry.names[0] for entry in tensors if not found.keys() & set(entry.names)]
    unmatched = Unmatched(missing, sorted(found.keys() - {name for entry in tensors for name in entry.names}))
    _check(module, tensors, found, source, unmatched if strict else Unmatched([], []), packed)
    changes: list[Callable[[], None]] = []
    for entry in tensors:
        if name := next((name for name in entry.names if name in found), None):
            target = device if entry.tensor.is_meta else entry.tensor.device
            with _naming(source, name, target):
                changes.append(_change(module, entry, name, found[name], target, packed, experts))
    for change in changes:
        change()
    if packed:
        prepare_save_pretrained(module)
    return unmatched


def _check(
    module: nn.Module,
    tensors: Sequence[ModuleTensor],
    found: Mapping[str, StoredTensor],
    source: StrPath,
    unmatched: Unmatched,
    packed: bool,
) -> None:
    """Raises OptionError, which names `source`, if tensors do not fit a module."""
    misfits = [problem for entry in tensors for problem in _misfits(module, entry, found)]
    problems = [f"the file lacks {list_some(unmatched.missing)}"] * bool(unmatched.missing)
    problems += [f"the module lacks {list_some(unmatched.left_over)}"] * bool(unmatched.left_over)
    problems += [list_some(misfits, "; ")] * bool(misfits)
    if not packed and (already := [names[0] for _, names in tensors if packed_owner(module, names[0])]):
        problems.append(f"{list_some(already)}: packed already, so load with packed=True, or into a new module")
    if problems:
        raise OptionError(f"{source}: {'; '.join(problems)}")


def _change(
    module: nn.Module,
    entry: ModuleTensor,
    name: str,
    tensor: StoredTensor,
    device: torch.device,
    packed: bool,
    experts: Collection[str],
) -> Callable[[], None]:
    """Allocates the memory of a module's tensor, and returns a function that sets its values."""
    own, transposed = entry.tensor, tensor.transposed is not None and name in experts
    stack = tensor.transposed if tensor.transposed and transposed else tensor
    payload = stack.packed
    is_smaller = payload is not None and payload.nbytes < 4 * stack.numel
    if packed and payload and is_smaller and all(each in experts or can_be_packed(module, each) for each in entry.names):
        values = as_tensor(payload.packed_rows()).to(device)
        return partial(pack_tensor, module, entry, values, payload.type, stack.shape, transposed)
    _check_range(name, tensor, own.dtype)
    if not own.is_meta:
        return partial(_write, module, entry, tensor)
    if payload and packed_owner(module, entry.names[0]):
        return partial(_replace, module, entry, as_tensor(payload.packed_rows()).to(device))
    return partial(_replace, module, entry, _values(tensor, own.dtype).to(device))


@contextmanager
def _naming(source: StrPath, name: str, device: torch.device) -> Iterator[None]:
    """Raises OptionError, which names a tensor, if a device lacks the memory for it, or its numbers
    are out of range."""
    try:
        yield
    except TensorError as error:
        raise OptionError(f"{source}: {error}") from None
    except (RuntimeError, MemoryError) as error:  # RuntimeError includes torch.OutOfMemoryError
        if not (isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)):
            raise
        raise OptionError(f"{source}: {name}: {device} lacks the memory for this tensor") from error


def _misfits(module: nn.Module, entry: ModuleTensor, found: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Yields why tensors of the file do not fit."""
    own, given = entry.tensor, [name for name in entry.names if name in found]
    for name in given:
        tensor, first, owner = found[name], found[given[0]], packed_owner(module, name)
        type_ = tensor.file_tensor.type if tensor.file_tensor else name_of(tensor.dtype)
        if problem := _refusal(own):
            yield f"{name}: {problem}"
        elif tensor.file_tensor and tensor.file_tensor.type.bytes_only:
            yield f"{name}: {tensor.file_tensor.type.bytes_only}"
        elif owner is not None:
            expected, shape = owner.weight_type, owner.weight_shape
            if (type_, tensor.shape) != (expected, shape):
                yield f"{name}: expected {expected} {list(shape)}, found {type_} {list(tensor.shape)}"
        elif tensor.shape != tuple(own.shape):
            yield f"{name}: expected {list(own.shape)}, found {list(tensor.shape)}"
        elif not own.dtype.is_floating_point and own.dtype != dtype_in_torch(tensor.dtype):
            yield f"{name}: expected {own.dtype}, found {type_}"
        elif tensor is not first and not are_equal(tensor, first):
            yield f"{name}: expected the values of {given[0]}, with which it is tied; names={{{name!r}: None}} leaves it out"


def _refusal(own: torch.Tensor) -> str | None:
    """Returns why values cannot be written into a tensor, or None."""
    if is_lazy(own):
        return "the module is lazy: call it once before"
    if own.is_meta:
        return None
    if problem := not_dense(own):
        return problem
    return "elements share memory: replace the tensor by its clone()" if torch._debug_has_internal_overlap(own) == 1 else None


def _check_range(name: str, tensor: StoredTensor, dtype: torch.dtype) -> None:
    """Raises TensorError if a finite number becomes infinite in float16, or from float64 in
    float32."""
    stored, own = name_of(tensor.dtype), str(dtype).removeprefix("torch.")
    if own != stored and is_float(tensor.dtype) and (own == "float16" or (stored, own) == ("float64", "float32")):
        next(type_ for format in FORMATS for type_ in format.types if type_.exact == own).encode(tensor.values(), name)


def _replace(module: nn.Module, entry: ModuleTensor, values: torch.Tensor) -> None:
    """Puts a tensor in place of one on the meta device."""
    if isinstance(entry.tensor, nn.Parameter):
        values = nn.Parameter(values, entry.tensor.requires_grad)
    for owner, attribute in (owner_of(module, name) for name in entry.names):
        setattr(owner, attribute, values)


def _write(module: nn.Module, entry: ModuleTensor, tensor: StoredTensor) -> None:
    """Writes values into a tensor's memory."""
    own = entry.tensor.detach()
    with torch.inference_mode(own.is_inference()):  # an inference tensor can only be written in this mode
        if packed_owner(module, entry.names[0]):
            assert tensor.packed is not None
            own.copy_(as_tensor(tensor.packed.packed_rows()))
        elif tensor.file_tensor is not None and own.is_contiguous():
            tensor.file_tensor.dequantize(out=own)
        else:
            own.copy_(as_tensor(tensor.values()))


def _values(tensor: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns values, in the given dtype if it is a float dtype; copies only to convert."""
    if not dtype.is_floating_point:
        return as_tensor(tensor.values())
    return as_tensor(tensor.values()).to(dtype) if tensor.file_tensor is None else tensor.file_tensor.dequantize(dtype)


def list_some(parts: Sequence[str], separator: str = ", ") -> str:
    """Joins the first `LISTED` parts, and counts the rest."""
    others = len(parts) - LISTED
    return separator.join(safe(part, LONGEST) for part in parts[:LISTED]) + (f" and {others} more" if others > 0 else "")
