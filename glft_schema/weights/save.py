"""Tensors into a file: every size and offset planned first, then one payload at a time, and the file replaced at the end."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from glft_schema.codec.rules import rule_sets
from glft_schema.display import Progress
from glft_schema.errors import OptionError, TiedWarning, shown
from glft_schema.files.container import Container
from glft_schema.files.layout import with_offsets
from glft_schema.formats.registry import format_for
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.source import StrPath
from glft_schema.weights.importance import with_importance
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.payloads import WrittenTensor, payloads_of
from glft_schema.weights.schemes import Choice, choose_types
from glft_schema.weights.stored_tensors import StoredTensor, in_memory


@outside_graphs
def save_file(
    tensors: Mapping[str, torch.Tensor | StoredTensor],
    path: StrPath,
    metadata: Mapping[str, Any] | None = None,
    *,
    schemes: Mapping[str, str] | None = None,
    alignment: int | None = None,
    format: str | None = None,
    header: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    measure: bool = False,
    importance: Mapping[str, torch.Tensor] | None = None,
) -> list[WrittenTensor]:
    """Writes tensors to a weights file.

    The file at `path` is replaced at the end, or left as it was where anything fails. Tensors that are one and the same, as
    tied weights are, are stored once. Peak memory is that of the largest tensor as float32, twice, and a constant; of a tensor
    that is a single row, three times.

    Args:
        tensors: by name; torch tensors, or `StoredTensor`s that are loaded when their turn comes.
        path: where to.
        metadata: text by key in GLFT; in GGUF values of any kind, see `glft_schema.Typed`.
        schemes: names or fnmatch patterns -> types in lower case, such as ``f32``, ``q8_per_channel``, ``q4_0``; a name
            wins over patterns, later patterns over earlier ones. Tensors that none names keep their type.
        alignment: payloads begin at multiples of it; 1 in GLFT and 32 in GGUF unless given. 64 lets every float tensor be read
            in place, at its best speed.
        format: ``glft`` or ``gguf``; unless given, GGUF where `path` ends in ``.gguf``, and else GLFT.
        header: fields of the header that are not to have their default: ``{"version": 2, "byte_order": "big"}`` of GGUF.
        rules: rule sets that the file has to keep to, such as ``["spec"]``, or none, ``[]``; those of the format unless given,
            ``["spec", "ggml"]`` of GGUF.
        exclude: names or fnmatch patterns of tensors that are not to be written.
        progress: called after each tensor with its name and the share of all numbers that is written, from 0 to 1.
        measure: compare what is stored with its source, and report the error.
        importance: by tensor, how much an error in each of its columns matters: see `glft_schema.read_importance`.

    Returns:
        What became of each tensor, in the file's order.

    Raises:
        OptionError: for a format, alignment or rule set that is not known or possible, and for an importance of other tensors.
        SchemeError: for a scheme or pattern that cannot be followed.
        TensorError: for a tensor that cannot be stored as asked.
        FormatError: for names, shapes or metadata that the format cannot hold.
        OSError: from the system.

    Warns:
        QuantizationWarning: where weights are so small that their scale rounds to zero.
        TiedWarning: where tensors that are one and the same get different types, and so are stored apart.
    """
    if not isinstance(tensors, Mapping):
        raise OptionError(f"expected tensors by name, such as model.state_dict(), found {shown(tensors)}")
    target = format_for(path, format)
    stored = with_importance(in_memory(leave_out(tensors, exclude)), {} if importance is None else importance)
    choices = choose_types(stored, schemes or {}, target.types, target.keep_vectors)
    rules = target.keeps_to if rules is None else rule_sets(rules)
    aliases = {} if set(rules).intersection(target.unshared_by) else _tied(stored, choices)
    payloads = payloads_of(choices, stored, progress, measure)
    if target.alignment_key and alignment is not None:
        metadata = target.metadata.stating(metadata or {}, target.alignment_key, alignment)
    regions = {
        "header": header or {},
        "metadata": metadata or {},
        target.table: [
            {"name": name, "dims": target.dims_of(stored[name].shape), "dtype": choice.type} for name, choice in choices.items()
        ],
        "data": {name: payloads[aliases.get(name, name)] for name in payloads},
    }
    regions = with_offsets(target, regions, 1 if alignment is None else alignment, aliases)
    Container.build_file({"format": target.name, **regions}, path, rules=rules)
    return [tensor.written(payloads.get(aliases.get(name, ""))) for name, tensor in payloads.items()]


def _tied(stored: Mapping[str, StoredTensor], choices: dict[str, Choice]) -> dict[str, str]:
    """Returns, for each tensor that is the same numbers in the same type as an earlier one, the name of that one.

    Notes in `choices`, and warns of, those that are the same numbers in another type.
    """
    first: dict[Any, list[str]] = {}
    aliases = {}
    for name, tensor in stored.items():
        if tensor.identity is None:
            continue
        earlier = first.setdefault(tensor.identity, [])
        same = [other for other in earlier if _stored_alike(other, name, stored, choices)]
        if same:
            aliases[name] = same[0]
            continue
        if earlier:
            other = "type" if choices[earlier[0]].type != choices[name].type else "importance"
            note = f"tied to {shown(earlier[0])}, which gets another {other}: stored apart"
            choices[name] = Choice(choices[name].type, "; ".join(filter(None, (choices[name].note, note))))
            warnings.warn(f"tensor {shown(name)} is {note}", TiedWarning, stacklevel=3)
        earlier.append(name)
    return aliases


def _stored_alike(one: str, other: str, stored: Mapping[str, StoredTensor], choices: Mapping[str, Choice]) -> bool:
    """Tells whether two tensors that are the same numbers become the same payload."""
    type_, first, second = choices[one].type, stored[one].importance, stored[other].importance
    if type_ != choices[other].type:
        return False
    if not type_.takes_importance or first is second:
        return True
    return first is not None and second is not None and torch.equal(first, second)
