"""Which type each tensor gets: from its name, the schemes asked for, and what the types can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glft_schema.codec.type_codes import TypeTable
from glft_schema.errors import SchemeError, TensorError, shown
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.tensor_type import is_float
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.stored_tensors import StoredTensor


@dataclass(frozen=True)
class Choice:
    """The type of a tensor, and, where that is not the one asked for or stored, why."""

    type: TensorType
    note: str = ""


def choose_types(
    tensors: Mapping[str, StoredTensor],
    schemes: Mapping[str, str],
    types: TypeTable[TensorType],
    keep_vectors: bool = False,
) -> dict[str, Choice]:
    """Returns a type for each tensor.

    A key that is a tensor's name stands for that tensor alone. A name wins over a pattern, and the last matching pattern whose
    type can hold the tensor over earlier ones. A tensor that no scheme names, or none can hold, keeps its own type; where the
    format has none of its kind, it gets the next that holds it exactly: a quantized one of another format is dequantized to
    F32, narrower floats are widened to it, and integers to wider ones.

    Args:
        tensors: what is to be written.
        schemes: names or fnmatch patterns -> names of types, such as ``{"*.weight": "q8_per_channel"}``.
        types: of the format.
        keep_vectors: patterns leave tensors of fewer than two dims as they are.

    Raises:
        SchemeError: for a scheme that names no type or matches no tensor, and for a type that needs to know the importance of
            columns where none is known.
        TensorError: for an exact name whose type cannot hold the tensor, and for a tensor of no type of the format.
    """
    if not isinstance(schemes, Mapping):
        raise SchemeError(f"expected a mapping of names or patterns to types, found {shown(schemes)}")
    wanted: dict[str, list[tuple[str, TensorType]]] = {}
    for key, scheme in schemes.items():
        type_, names = _type(scheme, types), names_matching(key, tensors)
        if type_.needs_importance and all(tensors[name].importance is None for name in names):
            raise SchemeError(f"expected an importance matrix, which {type_.scheme} needs, found none for {shown(key)}")
        for name in names:
            wanted.setdefault(name, []).append((key, type_))
    return {name: _choose(name, tensor, wanted.get(name, []), types, keep_vectors) for name, tensor in tensors.items()}


def _type(scheme: str, types: TypeTable[TensorType]) -> TensorType:
    for type_ in types:
        if isinstance(scheme, str) and type_.scheme == scheme.lower():
            if not type_.has_encoder:
                raise SchemeError(f"expected a type with an encoder, found {scheme!r}, which can only be read")
            return type_
    names = ", ".join(type_.scheme for type_ in types if type_.has_encoder)
    raise SchemeError(f"expected one of {names}, found {scheme!r}")


def _choose(
    name: str, tensor: StoredTensor, wanted: list[tuple[str, TensorType]], types: TypeTable[TensorType], keep_vectors: bool
) -> Choice:
    """Returns the type of a tensor for which `wanted` has the keys that stand for it, in order, with their types."""
    stored_type = tensor.file_tensor.dtype if tensor.file_tensor else None
    refusals: list[str] = []
    if stored_type is not None and not stored_type.is_known:
        if stored_type not in types or name in [key for key, _ in wanted]:
            raise TensorError(f"its type, {stored_type.code}, is not known, and cannot be made another", name)
        return Choice(stored_type, "its type is not known" if wanted else "")
    by_name, by_pattern = ([item for item in reversed(wanted) if (item[0] == name) == exact] for exact in (True, False))
    for key, type_ in by_name + by_pattern:
        if type_ == stored_type:
            return Choice(type_, "; ".join(refusals))
        refusal = type_.refusal(tensor.shape) if type_.takes(tensor.dtype) else type_.dtype_refusal(tensor.dtype)
        if refusal is None and type_.needs_importance and tensor.importance is None:
            refusal = "the importance of its columns is not known"
        if refusal is None and keep_vectors and key != name and len(tensor.shape) < 2:
            refusal = "it has fewer than two dims, and no scheme of its own"
        if refusal is None:
            return Choice(type_, "; ".join(refusals))
        if key == name:
            raise TensorError(f"{type_.scheme} cannot hold it: {refusal}", name)
        refusals.append(f"not {type_.scheme}: {refusal}")
    if stored_type is not None and stored_type in types:
        return Choice(stored_type, "; ".join(refusals))
    if stored_type and not stored_type.exact:
        refusals.append(f"{stored_type} dequantized")
    return Choice(*_own_type(name, tensor, types, refusals))


def _own_type(name: str, tensor: StoredTensor, types: TypeTable[TensorType], notes: list[str]) -> tuple[TensorType, str]:
    for type_ in types:
        if type_.exact == str(tensor.dtype).removeprefix("torch."):
            return type_, "; ".join(notes)
    if tensor.dtype == torch.float64:
        raise TensorError("no type holds float64 unchanged; name it in a scheme, such as f32, to have it rounded", name)
    if is_float(tensor.dtype):
        return types["F32"], "; ".join([*notes, f"{tensor.dtype} widened to F32, exactly"])
    for type_ in types if tensor.dtype in (torch.bool, torch.uint8) else ():
        if type_.is_integer and torch.promote_types(type_.dtype, tensor.dtype) == type_.dtype:
            return type_, "; ".join([*notes, f"{tensor.dtype} widened to {type_}, exactly"])
    exact = ", ".join(type_.exact for type_ in types if type_.exact)
    raise TensorError(f"{types.kind} has no type for {tensor.dtype}: exclude the tensor, or convert it to one of {exact}", name)
