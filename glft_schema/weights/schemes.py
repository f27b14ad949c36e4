"""Chooses a type for each tensor, from its name, the schemes, and what each type can store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from glft_schema.codec.type_codes import TypeTable
from glft_schema.errors import SchemeError, TensorError, alternatives, shown
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.tensor_type import is_float
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.stored_tensors import StoredTensor


@dataclass(frozen=True)
class Choice:
    """The type of a tensor, and why it differs from the requested or stored type, if it does."""

    type: TensorType
    note: str = ""


@runtime_checkable
class TypeChooser(Protocol):
    """Anything else that chooses types, such as a recipe."""

    def choose(self, tensors: Mapping[str, StoredTensor], types: TypeTable[TensorType]) -> dict[str, Choice]:
        """Returns a type for each tensor, in the new file's order. Raises as `choose_types`."""


Schemes = Mapping[str, str] | TypeChooser


def choose_types(
    tensors: Mapping[str, StoredTensor],
    schemes: Schemes,
    types: TypeTable[TensorType],
    keep_vectors: bool = False,
) -> dict[str, Choice]:
    """Returns a type for each tensor.

    Names override patterns. Among matching patterns, the last one whose type can hold the tensor
    wins. A tensor without such a scheme keeps its type. If the format lacks that type, the next
    type that holds it exactly is used: quantized tensors of another format are dequantized to F32,
    narrow floats widened to F32, and integers to wider ones.

    Args:
        tensors: by name.
        schemes: names or fnmatch patterns -> names of types, ``{"*.weight": "q8_per_channel"}``;
            or a `TypeChooser`.
        types: of the format.
        keep_vectors: whether patterns ignore tensors with fewer than two dims.

    Raises:
        SchemeError: if a scheme names no type or matches no tensor, or its type requires an
            importance matrix and no tensor has one.
        TensorError: if the type for an exact name, or every type of the format, cannot hold it.
    """
    if isinstance(schemes, TypeChooser):
        return schemes.choose(tensors, types)
    if not isinstance(schemes, Mapping):
        raise SchemeError(f"expected a mapping of names or patterns to types, found {shown(schemes)}")
    requests: dict[str, list[tuple[str, TensorType]]] = {}
    for key, scheme in schemes.items():
        type_, names = type_named(scheme, types), names_matching(key, tensors)
        if type_.needs_importance and all(tensors[name].importance is None for name in names):
            raise SchemeError(f"{type_.scheme} requires an importance matrix, found none for {shown(key)}")
        for name in names:
            requests.setdefault(name, []).append((key, type_))
    return {name: _choose(name, tensor, requests.get(name, []), types, keep_vectors) for name, tensor in tensors.items()}


def type_named(scheme: str, types: TypeTable[TensorType]) -> TensorType:
    """Returns the type of a scheme. Raises SchemeError if there is none with an encoder."""
    for type_ in types:
        if isinstance(scheme, str) and type_.scheme == scheme.lower():
            if not type_.has_encoder:
                raise SchemeError(f"expected a type with an encoder, found {scheme!r}, which can only be read")
            return type_
    names = alternatives(type_.scheme for type_ in types if type_.has_encoder)
    raise SchemeError(f"{types.kind} has no type {scheme!r}: expected {names}")


def choose_type(name: str, tensor: StoredTensor, types: TypeTable[TensorType]) -> Choice:
    """Returns the type of a tensor that no scheme selects. Raises as `choose_types`."""
    return _choose(name, tensor, [], types, False)


def _choose(
    name: str, tensor: StoredTensor, requests: list[tuple[str, TensorType]], types: TypeTable[TensorType], keep_vectors: bool
) -> Choice:
    """Returns the type of a tensor. `requests` are the matching keys and their types, in order."""
    stored_type = tensor.file_tensor.dtype if tensor.file_tensor else None
    refusals: list[str] = []
    if stored_type is not None and (reason := stored_type.bytes_only):
        if stored_type not in types or name in [key for key, _ in requests]:
            raise TensorError(f"cannot be converted: {reason}", name)
        return Choice(stored_type, reason if requests else "")
    by_name, by_pattern = ([item for item in reversed(requests) if (item[0] == name) == exact] for exact in (True, False))
    for key, type_ in by_name + by_pattern:
        if type_ == stored_type:
            return Choice(type_, "; ".join(refusals))
        refusal = type_.refusal(tensor.shape) if type_.takes(tensor.dtype) else type_.dtype_refusal(tensor.dtype)
        if refusal is None and type_.needs_importance and tensor.importance is None:
            refusal = "it has no importance matrix"
        if refusal is None and keep_vectors and key != name and len(tensor.shape) < 2:
            refusal = "it has fewer than two dims, and no scheme selects it by its full name"
        if refusal is None:
            return Choice(type_, "; ".join(refusals))
        if key == name:
            raise TensorError(f"cannot be stored as {type_.scheme}: {refusal}", name)
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
        raise TensorError("no type stores float64 exactly; to round it, select a type such as f32 by a scheme", name)
    if is_float(tensor.dtype):
        return types["F32"], "; ".join([*notes, f"{tensor.dtype} widened to F32 (lossless)"])
    for type_ in types if tensor.dtype in (torch.bool, torch.uint8) else ():
        if type_.is_integer and torch.promote_types(type_.dtype, tensor.dtype) == type_.dtype:
            return type_, "; ".join([*notes, f"{tensor.dtype} widened to {type_}, exactly"])
    exact = ", ".join(type_.exact for type_ in types if type_.exact)
    raise TensorError(f"{types.kind} has no type for {tensor.dtype}: exclude the tensor, or convert it to one of {exact}", name)
