"""`load_into`: the tensors of a weights file into a module of any kind.

Everything that can fail for want of memory happens before the module changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from glft_schema.display import with_display
from glft_schema.errors import OptionError, safe, shown
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.nn.modules import Conv2d, Embedding, Experts, Linear, Packed
from glft_schema.nn.saving import refuse_save_pretrained
from glft_schema.storage.dtypes import Array, name_of, words
from glft_schema.storage.source import StrPath
from glft_schema.storage.torch_tensors import as_tensor, dtype_in_torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.stored_tensor import StoredTensor, of_file
from glft_schema.tensors.upload import usable_device
from glft_schema.words import suggestion

LISTED, LONGEST = 5, 400  # names in an error, characters of a part of it
Renaming = Mapping[str, "str | None"] | Callable[[str], "str | None"]


@with_display
class Unmatched(NamedTuple):
    """Tensors that only one side has.

    Attributes:
        missing: names in the module without a tensor in the file.
        left_over: names for the module without a tensor there.
    """

    missing: list[str]
    left_over: list[str]


class _Place(NamedTuple):
    """A tensor of a module.

    Attributes:
        tensor: the parameter or buffer.
        names: in the state dict; several if it is shared.
    """

    tensor: torch.Tensor
    names: list[str]


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

    Everything is checked before anything changes. Values are written into the memory that the
    module has. Tensors on the meta device get new memory, where floats that keep their dtype are
    copy-on-write views of the file.

    Args:
        module: any module.
        path: the file.
        packed: replace each `torch.nn.Linear`, `Embedding` and `Conv2d` whose weight is quantized
            in the file by the module of `glft_schema.nn` that keeps the file's bytes. Required if
            the module has such modules already.
        names: the module's name for a name in the file, or None to leave the tensor out. Names that
            a mapping does not have stay the same.
        strict: refuse names that only one side has, and names of the mapping that the file lacks.
        device: of tensors that are on the meta device now.

    Returns:
        The names that only one side has; none if `strict`.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid file of a known format.
        OptionError: if names, shapes or types do not fit, or a device lacks the memory, with the
            names, or torch cannot use the device; the module is unchanged.
    """
    with torch.inference_mode(False), open(path) as file:
        found = renamed(file, names or {}, path, strict=strict)
        return fill(module, found, path, packed=packed, strict=strict, device=device)


def renamed(file: File, names: Renaming, source: StrPath, *, strict: bool = False) -> dict[str, StoredTensor]:
    """Returns the tensors of a file by other names; see `load_into`.

    Raises OptionError, which names `source`, if two of them get one name, or if `strict` and a
    mapping has a name that the file lacks.
    """
    if not callable(names) and not isinstance(names, Mapping):
        raise OptionError(f"expected names as a mapping or a function, found {shown(names)}")
    if strict and not callable(names) and (unknown := [name for name in names if name not in file.tensors]):
        hint = suggestion(unknown[0], file.tensors)
        raise OptionError(f"{source}: names has {_listed(unknown)}, which the file lacks{hint}")
    rename = names if callable(names) else lambda name: names.get(name, name)
    pairs = [(new, tensor) for name, tensor in file.tensors.items() if (new := rename(name)) is not None]
    if wrong := [new for new, _ in pairs if not isinstance(new, str)]:
        raise OptionError(f"expected the new name of a tensor as text or None, found {shown(wrong[0])}")
    twice = [f"{name}: several tensors of the file" for name, count in Counter(new for new, _ in pairs).items() if count > 1]
    if twice:
        raise OptionError(f"{source}: {_listed(twice, '; ')}")
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
        source: what they are from, for errors.
        packed: as in `load_into`.
        strict: as in `load_into`.
        device: as in `load_into`.
        experts: names of parameters of three dims, of which the module takes one matrix at a time,
            to be replaced by `Experts`.

    Raises OptionError as `load_into`.
    """
    device = usable_device(device)
    places = _places(module)
    missing = [place.names[0] for place in places if not found.keys() & set(place.names)]
    left_over = sorted(found.keys() - {name for place in places for name in place.names})
    misfits = [problem for place in places for problem in _misfits(module, place, found)]
    problems = [f"the file lacks {_listed(missing)}"] * bool(missing and strict)
    problems += [f"the module lacks {_listed(left_over)}"] * bool(left_over and strict)
    problems += [_listed(misfits, "; ")] * bool(misfits)
    if not packed and (already := [place.names[0] for place in places if _is_packed(module, place)]):
        problems.append(f"{_listed(already)}: packed already, so load with packed=True, or into a new module")
    if problems:
        raise OptionError(f"{source}: {'; '.join(problems)}")
    given = [(place, name) for place in places if (name := next((name for name in place.names if name in found), None))]
    changes = []
    for place, name in given:
        tensor, own = found[name], place.tensor
        target = device if own.is_meta else own.device
        stack = tensor.transposed if tensor.transposed and name in experts else tensor
        keeps = packed and stack.packed and all(name in experts or _can_be_packed(module, name) for name in place.names)
        values: torch.Tensor | None = None
        with _naming(source, name, target):
            if keeps or (own.is_meta and _is_packed(module, place)):
                assert stack.packed is not None
                values = as_tensor(stack.packed.packed()).to(target)
            elif own.is_meta:
                values = _values(tensor, own.dtype).to(target)
        changes.append((place, tensor, values, keeps))
    for place, tensor, values, keeps in changes:
        if keeps:
            assert values is not None
            _pack(module, place, tensor, values)
        elif values is not None:
            _replace(module, place, values)
        else:
            _write(module, place, tensor)
    if packed:
        refuse_save_pretrained(module)
    return Unmatched(missing, left_over)


@contextmanager
def _naming(source: StrPath, name: str, device: torch.device) -> Iterator[None]:
    """Raises OptionError, which names a tensor, if a device lacks the memory for it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # also of torch.OutOfMemoryError
        if not (isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)):
            raise
        raise OptionError(f"{source}: {name}: {device} lacks the memory for this tensor") from error


def _places(module: nn.Module) -> list[_Place]:
    """Returns the tensors of a module's state dict."""
    places: dict[int, _Place] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):  # no extra state
            places.setdefault(id(tensor), _Place(tensor, [])).names.append(name)
    return list(places.values())


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Returns the module that has a tensor, and the tensor's name there."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


def _is_packed(module: nn.Module, place: _Place) -> bool:
    """Tells whether a tensor is the packed weight of a module of this package."""
    owner, attribute = _owner(module, place.names[0])
    return isinstance(owner, Packed) and attribute == "weight"


def _misfits(module: nn.Module, place: _Place, found: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Yields why tensors of the file do not fit."""
    own, given = place.tensor, [name for name in place.names if name in found]
    for name in given:
        tensor, first, owner = found[name], found[given[0]], _owner(module, name)[0]
        type_ = tensor.file_tensor.type if tensor.file_tensor else name_of(tensor.dtype)
        if tensor.file_tensor and tensor.file_tensor.type.bytes_only:
            yield f"{name}: {tensor.file_tensor.type.bytes_only}"
        elif _is_packed(module, place):
            assert isinstance(owner, Packed)
            expected, shape = owner.weight_type, owner.weight_shape
            if (type_, tensor.shape) != (expected, shape):
                yield f"{name}: expected {expected} {list(shape)}, found {type_} {list(tensor.shape)}"
        elif tensor.shape != tuple(own.shape):
            yield f"{name}: expected {list(own.shape)}, found {list(tensor.shape)}"
        elif not own.dtype.is_floating_point and own.dtype != dtype_in_torch(tensor.dtype):
            yield f"{name}: expected {own.dtype}, found {type_}"
        elif tensor is not first and not are_equal(tensor, first):
            yield f"{name}: expected the values of {given[0]}, with which it is tied; names={{{name!r}: None}} leaves it out"


def are_equal(tensor: StoredTensor, other: StoredTensor) -> bool:
    """Tells whether two tensors have the same type and bytes."""
    one, two = tensor.file_tensor, other.file_tensor
    if one is not None and two is not None:
        return (one.type, one.raw) == (two.type, two.raw)
    if tensor.packed and other.packed and tensor.packed.type != other.packed.type:
        return False
    return have_equal(tensor.values(), other.values())


def have_equal(array: Array, other: Array) -> bool:
    """Tells whether two arrays have the same dtype and numbers."""
    return array.dtype == other.dtype and np.array_equal(words(array), words(other))


def _can_be_packed(module: nn.Module, name: str) -> bool:
    """Tells whether a tensor is the weight of a layer that has a packed counterpart."""
    path, _, attribute = name.rpartition(".")
    if attribute != "weight" or not path:
        return False
    owner, parent = module.get_submodule(path), _owner(module, path)[0]
    kinds = nn.Linear, nn.Embedding, nn.Conv2d  # and no subclasses, which may compute something else
    reads_weights = isinstance(parent, nn.TransformerEncoderLayer)  # of its layers, in its fast path
    known = type(owner) in kinds or _scale(owner) is not None
    return known and not reads_weights and getattr(owner, "max_norm", None) is None


def _scale(owner: nn.Module) -> float | None:
    """Returns the factor of Gemma's embeddings, which transformers has as a subclass."""
    return owner.scalar_embed_scale if type(owner).__name__.endswith("TextScaledWordEmbedding") else None  # type: ignore[return-value]


def _pack(module: nn.Module, place: _Place, tensor: StoredTensor, packed: torch.Tensor) -> None:
    """Replaces layers by packed ones, which share the weight, or a parameter by `Experts`."""
    source = tensor if tensor.packed else tensor.transposed
    assert source is not None
    assert source.packed is not None
    weight, layers, type_ = nn.Parameter(packed, requires_grad=False), dict[nn.Module, nn.Module](), source.packed.type
    for name in place.names:
        parent, attribute = _owner(module, name.removesuffix(".weight"))
        owner = getattr(parent, attribute)
        if not isinstance(owner, nn.Module):
            delattr(parent, attribute)
            options: dict[str, Any] = {"device": "meta", "dtype": owner.dtype, "transposed": source is not tensor}
            stack: Any = Experts(source.shape, type_, **options)  # type: ignore[arg-type]
            stack.weight = weight
            setattr(parent, attribute, stack)
            continue
        if owner not in layers:
            layers[owner] = layer = _layer(owner, type_)
            layer.weight, layer.dtype = weight, place.tensor.dtype
            added = {name: value for name, value in owner.__dict__.items() if name not in layer.__dict__ or "_hooks" in name}
            layer.__dict__.update(added, training=owner.training)
        setattr(parent, attribute, layers[owner])


def _layer(owner: nn.Module, type_: TensorType) -> Linear | Embedding | Conv2d:
    """Returns a packed layer in place of another one, with its bias."""
    layer: Linear | Embedding | Conv2d
    if isinstance(owner, nn.Embedding):
        sizes, scale = (owner.num_embeddings, owner.embedding_dim), _scale(owner)
        return Embedding(*sizes, type_, padding_idx=owner.padding_idx, scale=1.0 if scale is None else scale, device="meta")
    if isinstance(owner, nn.Linear):
        layer = Linear(owner.in_features, owner.out_features, type_, device="meta")
    else:
        assert isinstance(owner, nn.Conv2d)
        options = {name: getattr(owner, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        size: Any = owner.kernel_size
        layer = Conv2d(owner.in_channels, owner.out_channels, size, type_, device="meta", **options)
    layer.bias = owner.bias
    return layer


def _replace(module: nn.Module, place: _Place, values: torch.Tensor) -> None:
    """Puts a tensor in place of one on the meta device."""
    if isinstance(place.tensor, nn.Parameter):
        values = nn.Parameter(values, place.tensor.requires_grad)
    for owner, attribute in (_owner(module, name) for name in place.names):
        setattr(owner, attribute, values)


def _write(module: nn.Module, place: _Place, tensor: StoredTensor) -> None:
    """Writes values into a tensor's memory."""
    own = place.tensor.detach()
    if _is_packed(module, place):
        assert tensor.packed is not None
        own.copy_(as_tensor(tensor.packed.packed()))
    elif tensor.file_tensor is not None and own.is_contiguous():
        tensor.file_tensor.dequantize(out=own)
    else:
        own.copy_(as_tensor(tensor.values()))


def _values(tensor: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns values in a dtype if it is a float dtype, without a copy if they have it."""
    if not dtype.is_floating_point:
        return as_tensor(tensor.values())
    return as_tensor(tensor.values()).to(dtype) if tensor.file_tensor is None else tensor.file_tensor.dequantize(dtype)


def _listed(parts: Sequence[str], separator: str = ", ") -> str:
    """Joins the first parts, with the number of the others."""
    others = len(parts) - LISTED
    return separator.join(safe(part, LONGEST) for part in parts[:LISTED]) + (f" and {others} more" if others > 0 else "")
