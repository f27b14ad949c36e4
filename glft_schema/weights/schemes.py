"""Chooses a type for each tensor, from its name, the schemes, and what each type can store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glft_schema.codec.type_codes import TypeTable
from glft_schema.errors import SchemeError, TensorError, alternatives, quote
from glft_schema.formats.file_types import MOSTLY
from glft_schema.storage.dtypes import is_float, name_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.fallback_types import divides, fallback
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.requantizing import refusal, type_before
from glft_schema.words import suggestion


@dataclass(frozen=True)
class TypeChoice:
    """The type of a tensor.

    Attributes:
        type: the type.
        note: why it differs from the requested or stored type, or empty.
        asked: the type that a scheme asks for, or None.
        search: whether its encoder searches, see `TensorType.encode`.
        scale: the `TensorScale` by which weights are divided, or None.
    """

    type: TensorType
    note: str = ""
    asked: TensorType | None = None
    search: bool = False
    scale: Any = None


PACKED = (
    "expected weights, found bytes (uint8). Packed weights lose their type if copied or written by torch.save: save "
    "module.state_dict() itself, or load the bytes into the module first; a scheme such as i16 stores them as integers"
)
MEASURE = "; to measure one: glft imatrix MODEL TEXT -o FILE"


Schemes = Mapping[str, str] | Sequence[tuple[str, str]]


def choose_types(
    tensors: Mapping[str, StoredTensor],
    schemes: Schemes,
    types: TypeTable[TensorType],
    keep_vectors: bool = False,
    strict: bool = False,
    allow_requantize: bool = False,
) -> dict[str, TypeChoice]:
    """Returns a type for each tensor.

    Names override patterns. Among matching patterns, the last one whose type can hold the tensor
    wins. If none can, because the rows are not a multiple of the blocks, the last one's fallback
    type is used. A tensor for which no scheme yields a type keeps its own. If the format lacks that
    type, a type that holds the values exactly is used: quantized tensors of another format are
    dequantized to F32, narrow floats are widened to F32, and bool and uint8 to a wider integer
    type.

    Args:
        tensors: by name.
        schemes: names or fnmatch patterns -> names of types, ``{"*.weight": "q8_per_channel"}``;
            or the same as pairs, in which a pattern may be repeated.
        types: of the format.
        keep_vectors: whether patterns ignore tensors with fewer than two dims.
        strict: whether to raise an error if none of the types requested for a tensor can hold it.
        allow_requantize: whether quantized tensors may get another quantized type.

    Raises:
        SchemeError: if a scheme names no type or matches no tensor, or its type requires an
            importance matrix and no tensor has one; if a type is refused by `strict` or without
            `allow_requantize`.
        TensorError: if the type for an exact name, or every type of the format, cannot hold the
            tensor.
    """
    requests: dict[str, list[tuple[str, TensorType]]] = {}
    for key, scheme in as_pairs(schemes):
        type_, names = type_named(scheme, types), names_matching(key, tensors)
        if type_.needs_importance and all(tensors[name].importance is None for name in names):
            hint = MEASURE if all(one.importance is None for one in tensors.values()) else "; the given matrix lacks it"
            raise SchemeError(f"{type_.scheme} requires an importance matrix, found none for {quote(key)}{hint}")
        for name in names:
            requests.setdefault(name, []).append((key, type_))
    choices = {name: _choose(name, tensor, requests.get(name, []), types, keep_vectors) for name, tensor in tensors.items()}
    if strict:
        _check_all_as_asked(tensors, choices, requests, keep_vectors)
    again = {name: before for name, choice in choices.items() if (before := type_before(tensors[name], choice.type))}
    if again and not allow_requantize:
        raise SchemeError(refusal(again))
    return choices


def file_type_of(choices: Mapping[str, TypeChoice], tensors: Mapping[str, StoredTensor]) -> int | None:
    """Returns the code of ``general.file_type`` for the type of most weights, or None."""
    weights: Counter[str] = Counter()
    for name, choice in choices.items():
        weights[choice.type.scheme] += tensors[name].numel
    return MOSTLY.get(max(weights, key=weights.__getitem__, default=""))


def as_pairs(schemes: Schemes) -> list[tuple[str, str]]:
    """Returns schemes as pairs. Raises SchemeError for anything else."""
    pairs = list(schemes.items()) if isinstance(schemes, Mapping) else schemes
    is_list = isinstance(pairs, Sequence) and not isinstance(pairs, (str, bytes))
    if not is_list or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise SchemeError(f"expected names or patterns with types, as a mapping or pairs, found {quote(schemes)}")
    return [(key, scheme) for key, scheme in pairs]


def _check_all_as_asked(
    tensors: Mapping[str, StoredTensor],
    choices: Mapping[str, TypeChoice],
    requests: Mapping[str, list[tuple[str, TensorType]]],
    keep_vectors: bool,
) -> None:
    """Raises SchemeError if a tensor has none of the types that were asked for."""
    missed = [
        f"{quote(name)} ({choices[name].note})"
        for name, asked in requests.items()
        if choices[name].type not in [type_ for _, type_ in asked] and not (keep_vectors and len(tensors[name].shape) < 2)
    ]
    if missed:
        rest = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        are = "tensor has" if len(missed) == 1 else "tensors have"
        raise SchemeError(f"{len(missed)} {are} none of the types asked for: {'; '.join(missed[:3])}{rest}")


def type_named(scheme: str, types: TypeTable[TensorType]) -> TensorType:
    """Returns the type of a scheme. Raises SchemeError if there is none with an encoder."""
    if type_ := types.named(scheme):
        if not type_.has_encoder:
            raise SchemeError(f"expected a type with an encoder, found {scheme!r}, which can only be read")
        return type_
    names = alternatives(type_.scheme for type_ in types if type_.has_encoder)
    raise SchemeError(
        f"{types.kind} has no type {scheme!r}: expected {names}{suggestion(scheme, [type_.scheme for type_ in types])}"
    )


def choose_type(name: str, tensor: StoredTensor, types: TypeTable[TensorType]) -> TypeChoice:
    """Returns the type of a tensor that no scheme selects. Raises as `choose_types`."""
    return _choose(name, tensor, [], types, False)


def _choose(
    name: str, tensor: StoredTensor, requests: list[tuple[str, TensorType]], types: TypeTable[TensorType], keep_vectors: bool
) -> TypeChoice:
    """Returns the type of a tensor. `requests` are the matching keys and their types, in order."""
    stored_type = tensor.file_tensor.type if tensor.file_tensor else None
    by_name, by_pattern = ([item for item in reversed(requests) if (item[0] == name) == exact] for exact in (True, False))
    asked = next((type_ for _, type_ in by_name + by_pattern), None)
    if stored_type is not None and (reason := stored_type.bytes_only):
        if stored_type not in types or by_name:
            raise TensorError(f"cannot be converted: {reason}", name)
        return TypeChoice(stored_type, reason if requests else "", asked)
    refusals: list[str] = []
    for key, type_ in by_name + by_pattern:
        if type_ == stored_type:
            return TypeChoice(type_, "; ".join(refusals), asked)
        refusal = _refusal(tensor, type_, keep_vectors and key != name)
        if refusal is None:
            return TypeChoice(type_, "; ".join(refusals), asked)
        if key == name:
            raise TensorError(f"cannot be stored as {type_.scheme}: {refusal}", name)
        refusals.append(f"not {type_.scheme}: {refusal}")
    for _, type_ in by_pattern:
        smaller = None if divides(type_, tensor.shape) else fallback(type_, tensor.shape, types)
        if smaller is not None and _refusal(tensor, smaller, keep_vectors) is None:
            return TypeChoice(smaller, "; ".join(refusals), asked)
    if stored_type is not None and stored_type in types:
        return TypeChoice(stored_type, "; ".join(refusals), asked)
    if stored_type and not stored_type.exact:
        refusals.append(f"{stored_type} dequantized")
    return TypeChoice(*_own_type(name, tensor, types, refusals), asked)


def _refusal(tensor: StoredTensor, type_: TensorType, keep_vectors: bool) -> str | None:
    """Returns why a type cannot store a tensor, or None if it can."""
    if keep_vectors and len(tensor.shape) < 2:
        return "it has fewer than two dims, and no scheme selects it by its full name"
    if not type_.takes(tensor.dtype):
        return type_.dtype_refusal(tensor.dtype)
    if type_.needs_importance and tensor.importance is None:
        return "it has no importance matrix"
    return type_.refusal(tensor.shape)


def _own_type(name: str, tensor: StoredTensor, types: TypeTable[TensorType], notes: list[str]) -> tuple[TensorType, str]:
    dtype_name = name_of(tensor.dtype)
    for type_ in types:
        if type_.exact == dtype_name:
            return type_, "; ".join(notes)
    if dtype_name == "float64":
        raise TensorError("no type stores float64 exactly; to round it, select a type such as f32 by a scheme", name)
    if is_float(tensor.dtype) and (wider := next((type_ for type_ in types if type_.exact == "float32"), None)):
        return wider, "; ".join([*notes, f"{dtype_name} widened to {wider} (lossless)"])
    if dtype_name == "uint8" and len(tensor.shape) > 1 and name.rpartition(".")[2] == "weight":
        raise TensorError(PACKED, name)
    for type_ in types if dtype_name in ("bool", "uint8") else ():
        if type_.is_integer and np.can_cast(tensor.dtype, type_.dtype):
            return type_, "; ".join([*notes, f"{dtype_name} widened to {type_}, exactly"])
    exact = ", ".join(type_.exact for type_ in types if type_.exact)
    ways = (
        f"exclude the tensor, {'select a type by a scheme, ' if is_float(tensor.dtype) else ''}or convert it to one of {exact}"
    )
    raise TensorError(f"{types.kind} has no type for {dtype_name}: {ways}", name)
