"""`load_into`: the tensors of a weights file into a module of any kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from glft_schema.errors import OptionError, safe
from glft_schema.files.container import open
from glft_schema.nn.modules import Conv2d, Embedding, Linear, Packed
from glft_schema.storage.source import StrPath
from glft_schema.tensors.tensor import Tensor

LISTED = 5  # names in an error


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
    names: Mapping[str, str] | Callable[[str], str | None] | None = None,
    strict: bool = True,
) -> Unmatched:
    """Loads the tensors of a weights file into a module's parameters and buffers.

    Everything is checked before anything changes. Values are written into the memory that the
    module has. Tensors on the meta device get new memory, where floats that keep their dtype are
    copy-on-write views of the file.

    Args:
        module: any module.
        path: the file.
        packed: replace each `torch.nn.Linear`, `Embedding` and `Conv2d` whose weight is quantized
            in the file by the module of `glft_schema.nn` that keeps the file's bytes.
        names: the module's name for a name in the file, or None to leave the tensor out; by default
            the same.
        strict: refuse names that only one side has.

    Returns:
        The names that only one side has; none if `strict`.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a valid file of a known format.
        OptionError: if names, shapes or types do not fit, with the names; the module is unchanged.
    """
    renamed = names.get if isinstance(names, Mapping) else names or (lambda name: name)
    with torch.inference_mode(False), open(path) as file:
        pairs = [(new, tensor) for name, tensor in file.tensors.items() if (new := renamed(name)) is not None]
        found, places = dict(pairs), _places(module)
        missing = [place.names[0] for place in places if not found.keys() & set(place.names)]
        left_over = sorted(found.keys() - {name for place in places for name in place.names})
        misfits = [f"{name}: several tensors of the file" for name, n in Counter(new for new, _ in pairs).items() if n > 1]
        misfits += [problem for place in places for problem in _misfits(module, place, found)]
        problems = [f"the file lacks {_listed(missing)}"] * bool(missing and strict)
        problems += [f"the module lacks {_listed(left_over)}"] * bool(left_over and strict)
        problems += [_listed(misfits, "; ")] * bool(misfits)
        if problems:
            raise OptionError(f"{path}: {'; '.join(problems)}")
        for place in places:
            name = next((name for name in place.names if name in found), None)
            if name is None:
                continue
            if packed and not found[name].dtype.exact and all(_can_be_packed(module, each) for each in place.names):
                _pack(module, place, found[name])
            else:
                _fill(module, place, found[name])
    return Unmatched(missing, left_over)


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


def _misfits(module: nn.Module, place: _Place, found: Mapping[str, Tensor]) -> Iterator[str]:
    """Yields why tensors of the file do not fit."""
    own, given = place.tensor, [name for name in place.names if name in found]
    for name in given:
        tensor, first, (owner, attribute) = found[name], found[given[0]], _owner(module, name)
        if tensor.dtype.bytes_only:
            yield f"{name}: {tensor.dtype.bytes_only}"
        elif isinstance(owner, Packed) and attribute == "weight":
            expected, shape = owner.weight_type, owner.weight_shape
            if (tensor.dtype, tensor.shape) != (expected, shape):
                yield f"{name}: expected {expected} {list(shape)}, found {tensor.dtype} {list(tensor.shape)}"
        elif tensor.shape != tuple(own.shape):
            yield f"{name}: expected {list(own.shape)}, found {list(tensor.shape)}"
        elif not own.dtype.is_floating_point and own.dtype != tensor.dtype.dtype:
            yield f"{name}: expected {own.dtype}, found {tensor.dtype}"
        elif tensor is not first and (tensor.dtype, tensor.raw) != (first.dtype, first.raw):
            yield f"{name}: expected the values of {given[0]}, with which it is tied"


def _can_be_packed(module: nn.Module, name: str) -> bool:
    """Tells whether a tensor is the weight of a layer that has a packed counterpart."""
    path, _, attribute = name.rpartition(".")
    if attribute != "weight" or not path:
        return False
    owner, parent = module.get_submodule(path), _owner(module, path)[0]
    kinds = nn.Linear, nn.Embedding, nn.Conv2d  # and no subclasses, which may compute something else
    reads_weights = isinstance(parent, nn.TransformerEncoderLayer)  # of its layers, in its fast path
    return type(owner) in kinds and not reads_weights and getattr(owner, "max_norm", None) is None


def _pack(module: nn.Module, place: _Place, tensor: Tensor) -> None:
    """Replaces layers by packed ones, which share the weight."""
    device = torch.device("cpu") if place.tensor.is_meta else place.tensor.device
    weight, layers = nn.Parameter(tensor.packed().to(device), requires_grad=False), dict[nn.Module, nn.Module]()
    for path in (name.removesuffix(".weight") for name in place.names):
        parent, attribute = _owner(module, path)
        owner = getattr(parent, attribute)
        if owner not in layers:
            layers[owner] = layer = _layer(owner, tensor)
            layer.weight, layer.dtype = weight, place.tensor.dtype
            added = {name: value for name, value in owner.__dict__.items() if name not in layer.__dict__ or "_hooks" in name}
            layer.__dict__.update(added, training=owner.training)
        setattr(parent, attribute, layers[owner])


def _layer(owner: nn.Module, tensor: Tensor) -> Linear | Embedding | Conv2d:
    """Returns a packed layer in place of another one, with its bias."""
    layer: Linear | Embedding | Conv2d
    if isinstance(owner, nn.Embedding):
        return Embedding(owner.num_embeddings, owner.embedding_dim, tensor.dtype, padding_idx=owner.padding_idx, device="meta")
    if isinstance(owner, nn.Linear):
        layer = Linear(owner.in_features, owner.out_features, tensor.dtype, device="meta")
    else:
        assert isinstance(owner, nn.Conv2d)
        options = {name: getattr(owner, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        size: Any = owner.kernel_size
        layer = Conv2d(owner.in_channels, owner.out_channels, size, tensor.dtype, device="meta", **options)
    layer.bias = owner.bias
    return layer


def _fill(module: nn.Module, place: _Place, tensor: Tensor) -> None:
    """Writes values into a tensor, or replaces one on the meta device."""
    own, (owner, attribute) = place.tensor.detach(), _owner(module, place.names[0])
    is_packed = isinstance(owner, Packed) and attribute == "weight"
    if own.is_meta:
        values = tensor.packed() if is_packed else tensor.dequantize(own.dtype if own.dtype.is_floating_point else None)
        if isinstance(place.tensor, nn.Parameter):
            values = nn.Parameter(values, place.tensor.requires_grad)
        for owner, attribute in (_owner(module, name) for name in place.names):
            setattr(owner, attribute, values)
    elif is_packed:
        own.copy_(tensor.packed())
    elif own.is_contiguous():
        tensor.dequantize(out=own)
    else:
        own.copy_(tensor.dequantize())


def _listed(parts: Sequence[str], separator: str = ", ") -> str:
    """Joins the first parts, with the number of the others."""
    others = len(parts) - LISTED
    return separator.join(map(safe, parts[:LISTED])) + (f" and {others} more" if others > 0 else "")
