"""Which type each tensor gets: from its name, the schemes asked for, and what the types can hold."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from glft_schema.checkpoints import StoredTensor
from glft_schema.errors import SchemeError, TensorError
from glft_schema.lazy import torch
from glft_schema.tensor_types import TensorType, TypeTable

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """The type of a tensor, and, where that is not the one asked for or stored, why."""

    type: TensorType
    note: str = ""


def choose_types(tensors: Mapping[str, StoredTensor], schemes: Mapping[str, str], types: TypeTable) -> dict[str, Choice]:
    """Returns a type for each tensor.

    An exact name wins over a pattern, and the last matching pattern whose type can hold the tensor over earlier ones. A tensor
    that no scheme names, or none can hold, keeps its own type; bfloat16 and narrower floats are widened to F32, exactly.

    Args:
        tensors: what is to be written.
        schemes: names or fnmatch patterns -> names of types, such as ``{"*.weight": "q8_per_channel"}``.
        types: of the format.

    Raises:
        SchemeError: for a scheme that names no type or matches no tensor.
        TensorError: for an exact name whose type cannot hold the tensor, and for a tensor of no type of the format.
    """
    wanted = {key: _type(scheme, types) for key, scheme in schemes.items()}
    for key in wanted:
        if key not in tensors and not any(fnmatchcase(name, key) for name in tensors):
            raise SchemeError(f"expected a tensor that matches {key!r}, found none{_suggestion(key, tensors)}")
    return {name: _choose(tensor, wanted, types) for name, tensor in tensors.items()}


def leave_out(tensors: Mapping[str, T], patterns: Iterable[str]) -> dict[str, T]:
    """Returns the tensors that no pattern matches. Raises SchemeError for a pattern that matches none."""
    kept = dict(tensors)
    for pattern in patterns:
        matched = [name for name in tensors if fnmatchcase(name, pattern)]
        if not matched:
            raise SchemeError(f"expected a tensor that matches {pattern!r}, found none{_suggestion(pattern, tensors)}")
        for name in matched:
            kept.pop(name, None)
    return kept


def _type(scheme: str, types: TypeTable) -> TensorType:
    for type_ in types:
        if type_.scheme == scheme:
            return type_
    raise SchemeError(f"expected one of {', '.join(type_.scheme for type_ in types)}, found {scheme!r}")


def _suggestion(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _choose(tensor: StoredTensor, wanted: dict[str, TensorType], types: TypeTable) -> Choice:
    if not tensor.dtype.is_floating_point:
        raise TensorError(f"expected a float dtype, found {tensor.dtype}: leave it out or convert it", tensor.name)
    if exact := wanted.get(tensor.name):
        if refusal := exact.refusal(tensor.shape):
            raise TensorError(f"{exact.scheme} cannot hold it: {refusal}", tensor.name)
        return Choice(exact)
    refusals: list[str] = []
    for pattern, type_ in reversed(wanted.items()):
        if fnmatchcase(tensor.name, pattern):
            refusal = type_.refusal(tensor.shape)
            if refusal is None:
                return Choice(type_, "; ".join(refusals))
            refusals.append(f"not {type_.scheme}: {refusal}")
    return Choice(*_own_type(tensor, types, refusals))


def _own_type(tensor: StoredTensor, types: TypeTable, notes: list[str]) -> tuple[TensorType, str]:
    for type_ in types:
        if type_.exact and type_.dtype == tensor.dtype:
            return type_, "; ".join(notes)
    if tensor.dtype == torch.float64:
        raise TensorError("no type holds float64 unchanged; name it in a scheme, such as f32, to have it rounded", tensor.name)
    return types["F32"], "; ".join([*notes, f"{tensor.dtype} widened to F32, exactly"])
