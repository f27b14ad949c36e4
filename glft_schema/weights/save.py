"""Saves tensors: plans the whole file, then writes one payload at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.rules import rule_sets
from glft_schema.display import Progress, Results, format_count
from glft_schema.errors import FormatError, OptionError, SchemeError, TiedWarning, quote, warn
from glft_schema.families.loader import LLAMA_CPP, broken_model
from glft_schema.files.layout import Layout, lay_out
from glft_schema.files.parsing import parse_source
from glft_schema.formats.file_types import FILE_TYPE, MAIN_TYPES
from glft_schema.formats.format import Format
from glft_schema.formats.gguf_names import scale_of
from glft_schema.formats.registry import target_format
from glft_schema.lazy import outside_graphs
from glft_schema.limits import check_repeats
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.source import BytesSource, StrPath
from glft_schema.tensors.stored_tensor import StoredTensor, of_values
from glft_schema.weights.importance import with_importance
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.payloads import PlannedPayload, WrittenTensor, payloads_of
from glft_schema.weights.schemes import Schemes, TypeChoice, choose_type, choose_types, file_type_of
from glft_schema.weights.tensor_scales import with_search


class Writer(Protocol):
    """Writes planned files."""

    @property
    def is_first(self) -> bool:
        """Whether this process shows progress."""

    def write(self, plan: FilePlan, path: StrPath) -> None:
        """Writes a file. It is replaced only on success."""


@dataclass(frozen=True)
class Writing:
    """Options of a file to be written: arguments of `save_file`."""

    schemes: Schemes = ()
    alignment: int | None = None
    header: Mapping[str, Any] | None = None
    rules: str | Iterable[str] | None = None
    importance: Mapping[str, Any] | None = None
    strict: bool = False
    allow_requantize: bool = False
    measure: bool = False
    progress: Progress | None = None
    exact: bool = False
    search: bool = False


@dataclass(frozen=True)
class FilePlan:
    """A file to be written: types, offsets and all bytes except those of payloads.

    Attributes:
        layout: its spans.
        payloads: in file order, including those of tensors that share the payload of another.
        aliases: names of tensors -> the tensor whose payload they share.
        progress: called during writing with a tensor's name and the share written.
    """

    layout: Layout
    payloads: Mapping[str, PlannedPayload]
    aliases: Mapping[str, str]
    progress: Progress | None = None

    def write(self, path: StrPath, ranks: Writer | None = None) -> list[WrittenTensor]:
        """Writes the file, one payload at a time. It is replaced only on success.

        Args:
            path: the file.
            ranks: processes that write it together, or None.

        Returns:
            The result for each tensor, in file order.
        """
        if ranks is None:
            with atomic_write(path) as stream:
                self.layout.write(stream)
        else:
            ranks.write(self, path)
        return self.report()

    def report(self) -> list[WrittenTensor]:
        """Returns the result for each tensor; before writing, without errors."""
        payloads, aliases = self.payloads, self.aliases
        return Results((payload.report(payloads.get(aliases.get(name, ""))) for name, payload in payloads.items()), "tensor")


@outside_graphs
def save_file(
    tensors: Mapping[str, Any],
    path: StrPath,
    metadata: Mapping[str, Any] | None = None,
    *,
    schemes: Schemes | None = None,
    alignment: int | None = None,
    format: str | None = None,
    header: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    measure: bool = False,
    importance: Mapping[str, Any] | None = None,
    strict: bool = False,
    allow_requantize: bool = False,
    search: bool = False,
    ranks: Writer | None = None,
) -> list[WrittenTensor]:
    """Writes tensors to a weights file.

    The file at `path` is replaced at the end, and unchanged after an error. Tied tensors are stored
    once. Weights are read and encoded a few rows at a time.

    Args:
        tensors: by name: tensors of torch or arrays of numpy; tensors of an open `File`, whose
            payloads are copied; or `StoredTensor`s to be loaded one at a time.
        path: the file to write.
        metadata: text by key; in GGUF, values of any type, see `glft_schema.Typed`. If
            no matrix has the type that ``general.file_type`` states, and most weights are not
            copied, the key gets the type of most weights.
        schemes: names or fnmatch patterns -> lower-case types, such as ``f32``, ``q8_per_channel``,
            ``q4_0``; or pairs of them, in which a pattern may be repeated. Names override patterns.
            The last pattern whose type can hold the tensor wins. If none can, because the rows are
            not a multiple of its blocks, the type's fallback is used, such as ``q5_0`` for
            ``q4_k``. Other tensors keep their type.
        alignment: payloads begin at multiples of this; by default 1 in GLFT and 32 in GGUF. With
            64, every float tensor can be read in place at full speed.
        format: ``glft``, ``gguf``, ``safetensors`` or a registered format; by default the one of
            the path's ending.
        header: values of header fields that replace the defaults, such as ``{"version": 2,
            "byte_order": "big"}`` in GGUF.
        rules: rule sets that the file must satisfy, such as ``["spec"]``, or ``[]`` for none; by
            default the format's own, ``["spec", "ggml"]`` in GGUF. ``llama.cpp`` requires a model
            that its loader accepts.
        exclude: names or fnmatch patterns of tensors to omit.
        progress: called after each tensor with its name and the share written, from 0 to 1.
        measure: compare payloads with their source and report the largest error.
        importance: weight of errors in each column, by tensor; see `glft_schema.read_importance`.
        strict: raise an error instead of using a fallback type, or keeping the type of a tensor
            that a pattern matches.
        allow_requantize: also let schemes give another quantized type to tensors that are quantized
            already; the errors of both types add up.
        search: let the encoders of NVFP4 and MXFP4 search for the scales with the least error,
            weighted by `importance`. In a GGUF model whose architecture has them in llama.cpp,
            matrices in NVFP4 also get a scale of the whole matrix, in a tensor ``NAME.scale``.
        ranks: processes that write the file together; see `glft_schema.distributed.together`.

    Returns:
        The result for each tensor, in file order.

    Raises:
        OptionError: if a format, alignment or rule set is unknown or invalid, or `importance`
            covers none of the tensors.
        SchemeError: if a scheme or pattern is invalid or matches nothing; if a type is refused by
            `strict` or without `allow_requantize`.
        TensorError: if a tensor cannot be stored as requested.
        FormatError: if the format cannot hold names, shapes or metadata, or the file would break
            one of the `rules`.
        OSError: from the system.

    Warns:
        QuantizationWarning: if weights are so small that their scale rounds to zero.
        TiedWarning: if tied tensors get different types and are stored separately.
    """
    if not isinstance(tensors, Mapping):
        raise OptionError(f"expected tensors by name, such as model.state_dict(), found {quote(tensors)}")
    stored = in_memory(leave_out(tensors, exclude))
    options = alignment, header, rules, importance, strict, allow_requantize, measure, progress
    writing = Writing(schemes or (), *options, search=search)
    return plan_file(stored, target_format(path, format), metadata, writing).write(path, ranks)


def plan_file(
    stored: Mapping[str, StoredTensor],
    target: Format,
    metadata: Mapping[str, Any] | None,
    writing: Writing,
    choices: dict[str, TypeChoice] | None = None,
    states_type: bool | None = None,
) -> FilePlan:
    """Plans a file of tensors. Errors are those of `save_file`.

    Args:
        stored: its tensors.
        target: its format.
        metadata: of the file.
        writing: how it is to be written.
        choices: the type of each tensor, in the file's order; by default those of the schemes.
        states_type: whether to set ``general.file_type``; by default only to correct a wrong value.
    """
    if choices is None:
        stored = with_importance(stored, writing.importance)
        again = writing.allow_requantize
        choices = choose_types(stored, writing.schemes, target.types, target.keep_vectors, writing.strict, again)
        if writing.search:
            stored, choices = with_search(stored, choices, metadata or {}, target.types)
    stored, choices = _with_companions(stored, choices, target)
    given, alignment = writing.rules, writing.alignment
    asked = target.keeps_to if given is None else (given,) if isinstance(given, str) else tuple(given)
    rules = rule_sets(name for name in asked if name != LLAMA_CPP)
    tied = _alias_tied(stored, choices)
    aliases = {} if set(rules).intersection(target.unshared_by) else tied
    payloads = payloads_of(choices, stored, writing.progress, writing.measure)
    rounded = [name for name, payload in payloads.items() if not payload.is_exact] if writing.exact else []
    if rounded:
        one = f"such as {quote(rounded[0])} as {choices[rounded[0]].type.scheme}"
        raise SchemeError(f"exact (--exact): {format_count(rounded, 'tensor')} would be rounded, {one}")
    if not aliases:
        distinct = sum(payload.nbytes for name, payload in payloads.items() if name not in tied)
        check_repeats(sum(payload.nbytes for payload in payloads.values()), distinct)
    if target.alignment_key and alignment is not None:
        metadata = target.metadata.with_number(metadata or {}, target.alignment_key, alignment)
    if metadata and target.has_typed_metadata and states_type is not False:
        metadata = _with_file_type(target.metadata.metadata(metadata), choices, stored, bool(states_type))
    types = {name: choice.type for name, choice in choices.items()}
    rows = [{"name": name, "dims": target.dims_of(stored[name].shape), "dtype": types[name]} for name in types]
    rows = sorted(rows, key=target.order) if target.order else rows
    payload_of = {name: payloads[aliases.get(name, name)] for name in payloads}
    regions: dict[str, Any] = {target.table: rows, "data": payload_of}
    for region, value in (("header", writing.header), ("metadata", metadata)):
        if target.field(region) is not None:
            regions[region] = value or {}
        elif value:
            raise OptionError(f"{target.name} files have no {region}, found {quote(value)}")
    layout, _ = lay_out(target, regions, 1 if alignment is None else alignment, aliases, rules)
    if LLAMA_CPP in asked:
        _refuse_unloadable(layout)
    in_order = {str(row["name"]): payloads[str(row["name"])] for row in rows}
    return FilePlan(layout, in_order, aliases, writing.progress)


def _with_companions(
    stored: Mapping[str, StoredTensor], choices: Mapping[str, TypeChoice], target: Format
) -> tuple[Mapping[str, StoredTensor], dict[str, TypeChoice]]:
    """Returns tensors and their types with those that scale the copied bytes of others."""
    tensors, types = dict[str, StoredTensor](), dict[str, TypeChoice]()
    for name, choice in choices.items():
        tensor = tensors[name] = stored[name]
        types[name] = choice
        copied = tensor.file_tensor is not None and tensor.file_tensor.type == choice.type
        for ending, numbers in tensor.companions.items() if copied else ():
            beside = scale_of(name, ending)
            tensors[beside] = of_values(numbers)
            types[beside] = choose_type(beside, tensors[beside], target.types)
    return tensors, types


def _with_file_type(
    metadata: TypedMetadata, choices: Mapping[str, TypeChoice], stored: Mapping[str, StoredTensor], always: bool
) -> TypedMetadata:
    """Returns metadata with the file type of most weights, unless the stated one may be kept.

    If the type of most weights has no code, a wrong value is removed.
    """
    code, stated = file_type_of(choices, stored), metadata.get(FILE_TYPE)
    if always and code is not None:
        return metadata | {FILE_TYPE: code}
    matrices = [choices[name].type.scheme for name, tensor in stored.items() if len(tensor.shape) > 1]
    copied = [name for name, tensor in stored.items() if tensor.file_tensor and tensor.file_tensor.type == choices[name].type]
    is_kept = 2 * sum(stored[name].numel for name in copied) >= sum(tensor.numel for tensor in stored.values())
    if is_kept or not isinstance(stated, int) or MAIN_TYPES.get(stated) in matrices:
        return metadata
    return metadata.without(FILE_TYPE) if code is None else metadata | {FILE_TYPE: code}


def _refuse_unloadable(layout: Layout) -> None:
    """Raises FormatError if llama.cpp's loader would refuse a planned model."""
    findings = list(broken_model(parse_source(BytesSource(layout.head, "the planned file"), allow_truncated=True)))
    if findings:
        others = f" ({len(findings) - 1} more)" if findings[1:] else ""
        raise FormatError(f"llama.cpp would refuse the file: {findings[0].problem}{others}", findings[0].path)


def _alias_tied(stored: Mapping[str, StoredTensor], choices: dict[str, TypeChoice]) -> dict[str, str]:
    """Returns aliases: names of tied tensors -> the earlier tensor whose payload they share.

    Tied tensors with different payloads get a note in `choices` and a warning.
    """
    first: dict[Any, list[str]] = {}
    aliases = {}
    for name, tensor in stored.items():
        if tensor.identity is None:
            continue
        earlier = first.setdefault(tensor.identity, [])
        same = [other for other in earlier if _same_payload(other, name, stored, choices)]
        if same:
            aliases[name] = same[0]
            continue
        if earlier:
            one, other = choices[earlier[0]], choices[name]
            difference = "type" if one.type != other.type else "importance" if one.scale is other.scale else "scale"
            note = f"tied to {quote(earlier[0])}, which has a different {difference}, so it is stored separately"
            choices[name] = replace(choices[name], note="; ".join(filter(None, (choices[name].note, note))))
            warn(f"tensor {quote(name)} is {note}", TiedWarning)
        earlier.append(name)
    return aliases


def _same_payload(one: str, other: str, stored: Mapping[str, StoredTensor], choices: Mapping[str, TypeChoice]) -> bool:
    """Returns whether two tied tensors get the same payload."""
    choice, also, first, second = choices[one], choices[other], stored[one].importance, stored[other].importance
    if choice.type != also.type or (choice.scale is None) != (also.scale is None):
        return False
    if first is second or not (choice.type.takes_importance or (choice.search and choice.type.searches)):
        return True
    return first is not None and second is not None and np.array_equal(first, second)
