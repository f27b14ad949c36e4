"""Saves tensors: plans all sizes and offsets, then writes one payload at a time.

A `FilePlan` is written by `FilePlan.write`, or within `written_by` by another function, such as one
that shares the work with other processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.rules import rule_sets
from glft_schema.display import Progress, Results
from glft_schema.errors import FormatError, OptionError, TiedWarning, shown
from glft_schema.families.loader import LLAMA_CPP, broken_model
from glft_schema.files.container import Container
from glft_schema.files.layout import Layout, laid_out, with_offsets
from glft_schema.files.parsing import parse_source
from glft_schema.files.summary import FILE_TYPE
from glft_schema.formats.file_types import MAIN_TYPES
from glft_schema.formats.format import Format
from glft_schema.formats.registry import format_for
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.source import BytesSource, StrPath
from glft_schema.tensors.tensor import Tensor
from glft_schema.weights.importance import with_importance
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.payloads import PlannedPayload, WrittenTensor, payloads_of
from glft_schema.weights.schemes import Choice, Schemes, TypeChooser, choose_types, file_type_of
from glft_schema.weights.stored_tensors import StoredTensor, in_memory


@dataclass(frozen=True)
class FilePlan:
    """A file to be written: all of it except the bytes of payloads.

    Attributes:
        format: its format.
        regions: by name, with the offset of each payload.
        rules: rule sets that it must satisfy.
        payloads: in file order, including those of tensors that share the payload of another.
        aliases: names of tensors -> the tensor whose payload they share.
        progress: called as writing goes on, with a tensor's name and the share written.
    """

    format: Format
    regions: Mapping[str, Any]
    rules: Any
    payloads: Mapping[str, PlannedPayload]
    aliases: Mapping[str, str]
    progress: Progress | None = None

    def write(self, path: StrPath) -> None:
        """Writes the file, one payload at a time. It is replaced only on success."""
        Container.build_file({"format": self.format.name, **self.regions}, path, rules=self.rules)

    def laid_out(self) -> Layout:
        """Returns the bytes that belong to no payload, and where each payload begins."""
        return laid_out(self.format, self.regions, self.rules)

    def written(self) -> list[WrittenTensor]:
        """Returns the result for each tensor, after writing."""
        payloads, aliases = self.payloads, self.aliases
        return Results((payload.written(payloads.get(aliases.get(name, ""))) for name, payload in payloads.items()), "tensor")


Writer = Callable[[FilePlan, StrPath], None]
_WRITER: ContextVar[Writer] = ContextVar("writer", default=FilePlan.write)


@contextmanager
def written_by(writer: Writer) -> Iterator[None]:
    """Lets a function write the files that `save_file`, `convert` and `quantize` plan in the
    block."""
    token = _WRITER.set(writer)
    try:
        yield
    finally:
        _WRITER.reset(token)


@contextmanager
def only_planned() -> Iterator[list[FilePlan]]:
    """Yields a list for the plans of files in the block, which are not written."""
    plans: list[FilePlan] = []
    with written_by(lambda plan, path: plans.append(plan)):
        yield plans


@outside_graphs
def save_file(
    tensors: Mapping[str, torch.Tensor | Tensor | StoredTensor],
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
    importance: Mapping[str, torch.Tensor] | None = None,
    strict: bool = False,
    allow_requantize: bool = False,
) -> list[WrittenTensor]:
    """Writes tensors to a weights file.

    The file at `path` is replaced at the end, and unchanged after an error. Tied tensors are stored
    once. Peak memory is a constant and 2 float32 copies of the largest tensor, 3 if it is one row.

    Args:
        tensors: torch tensors by name; tensors of an open `File`, whose payloads are copied; or
            `StoredTensor`s to be loaded one at a time.
        path: the file to write.
        metadata: text by key; in GGUF, values of any type, see `glft_schema.Typed`. A
            ``general.file_type`` whose type no matrix has is replaced by that of most weights,
            unless most of them are copied.
        schemes: names or fnmatch patterns -> lower-case types, such as ``f32``, ``q8_per_channel``,
            ``q4_0``; or pairs of them, in which a pattern may be repeated. Names override patterns.
            The last pattern whose type can hold the tensor wins. If none can, because the rows are
            not a multiple of its blocks, the type's fallback is used, such as ``q5_0`` for
            ``q4_k``. Other tensors keep their type.
        alignment: payloads begin at multiples of this; by default 1 in GLFT and 32 in GGUF. With
            64, every float tensor can be read in place at full speed.
        format: ``glft``, ``gguf``, ``safetensors`` or a registered format; by default from the
            suffix of `path`, or GLFT for other suffixes.
        header: header fields with values other than the default, such as ``{"version": 2,
            "byte_order": "big"}`` in GGUF.
        rules: rule sets that the file must satisfy, such as ``["spec"]``, or ``[]`` for none; by
            default the format's own, ``["spec", "ggml"]`` in GGUF. ``llama.cpp``: its loader takes
            the model.
        exclude: names or fnmatch patterns of tensors to omit.
        progress: called after each tensor with its name and the share written, from 0 to 1.
        measure: compare payloads with their source and report the error.
        importance: weight of errors in each column, by tensor; see `glft_schema.read_importance`.
        strict: raise an error instead of using a fallback type, or keeping the type of a tensor
            that a pattern matches.
        allow_requantize: also let schemes give another quantized type to tensors that are quantized
            already, whose error adds to that of the new type.

    Returns:
        The result for each tensor, in file order.

    Raises:
        OptionError: if a format, alignment or rule set is unknown or invalid, or `importance`
            covers none of the tensors.
        SchemeError: if a scheme or pattern is invalid or matches nothing; if `strict`, and unless
            `allow_requantize`, as above.
        TensorError: if a tensor cannot be stored as requested.
        FormatError: if the format cannot hold names, shapes or metadata.
        OSError: from the system.

    Warns:
        QuantizationWarning: if weights are so small that their scale rounds to zero.
        TiedWarning: if tied tensors get different types and are stored separately.
    """
    if not isinstance(tensors, Mapping):
        raise OptionError(f"expected tensors by name, such as model.state_dict(), found {shown(tensors)}")
    planned = plan_file(
        with_importance(in_memory(leave_out(tensors, exclude)), {} if importance is None else importance),
        format_for(path, format),
        metadata,
        schemes=schemes,
        alignment=alignment,
        header=header,
        rules=rules,
        progress=progress,
        measure=measure,
        strict=strict,
        allow_requantize=allow_requantize,
    )
    _WRITER.get()(planned, path)
    return planned.written()


def plan_file(
    stored: Mapping[str, StoredTensor],
    target: Format,
    metadata: Mapping[str, Any] | None = None,
    *,
    schemes: Schemes | None = None,
    alignment: int | None = None,
    header: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] | None = None,
    progress: Progress | None = None,
    measure: bool = False,
    strict: bool = False,
    allow_requantize: bool = False,
) -> FilePlan:
    """Plans a file of tensors. Arguments and errors are those of `save_file`."""
    choices = choose_types(stored, schemes or {}, target.types, target.keep_vectors, strict, allow_requantize)
    asked = target.keeps_to if rules is None else (rules,) if isinstance(rules, str) else tuple(rules)
    rules = rule_sets(name for name in asked if name != LLAMA_CPP)
    aliases = {} if set(rules).intersection(target.unshared_by) else _alias_tied(stored, choices)
    payloads = payloads_of(choices, stored, progress, measure)
    if target.alignment_key and alignment is not None:
        metadata = target.metadata.stating(metadata or {}, target.alignment_key, alignment)
    if metadata and target.has_typed_metadata and not isinstance(schemes, TypeChooser):
        metadata = _with_file_type(target.metadata.metadata(metadata), choices, stored)
    types = {name: choice.type for name, choice in choices.items()}
    rows = [{"name": name, "dims": target.dims_of(stored[name].shape), "dtype": types[name]} for name in types]
    rows = sorted(rows, key=target.order) if target.order else rows
    payload_of = {name: payloads[aliases.get(name, name)] for name in payloads}
    regions: dict[str, Any] = {target.table: rows, "data": payload_of}
    for region, value in (("header", header), ("metadata", metadata)):
        if target.field(region) is not None:
            regions[region] = value or {}
        elif value:
            raise OptionError(f"{target.name} files have no {region}, found {shown(value)}")
    regions = with_offsets(target, regions, 1 if alignment is None else alignment, aliases)
    in_order = {str(row["name"]): payloads[str(row["name"])] for row in rows}
    planned = FilePlan(target, regions, rules, in_order, aliases, progress)
    if LLAMA_CPP in asked:
        _refuse_unloadable(planned)
    return planned


def _with_file_type(
    metadata: TypedMetadata, choices: Mapping[str, Choice], stored: Mapping[str, StoredTensor]
) -> TypedMetadata:
    """Returns metadata without a file type that new payloads have made wrong."""
    code, stated = file_type_of(choices, stored), metadata.get(FILE_TYPE)
    matrices = [choices[name].type.scheme for name, tensor in stored.items() if len(tensor.shape) > 1]
    copied = [name for name, tensor in stored.items() if tensor.file_tensor and tensor.file_tensor.dtype == choices[name].type]
    is_kept = 2 * sum(stored[name].numel for name in copied) >= sum(tensor.numel for tensor in stored.values())
    if is_kept or not isinstance(stated, int) or MAIN_TYPES.get(stated) in matrices:
        return metadata
    return metadata.without(FILE_TYPE) if code is None else metadata | {FILE_TYPE: code}


def _refuse_unloadable(planned: FilePlan) -> None:
    """Raises FormatError if llama.cpp's loader would refuse a planned model."""
    (_, head), *_ = planned.laid_out().pieces
    findings = list(broken_model(parse_source(BytesSource(head, "the planned file"), allow_truncated=True)))
    if findings:
        others = f" ({len(findings) - 1} more)" if findings[1:] else ""
        raise FormatError(f"llama.cpp would refuse the file: {findings[0].problem}{others}", findings[0].path)


def _alias_tied(stored: Mapping[str, StoredTensor], choices: dict[str, Choice]) -> dict[str, str]:
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
            difference = "type" if choices[earlier[0]].type != choices[name].type else "importance"
            note = f"tied to {shown(earlier[0])}, which has a different {difference}, so it is stored separately"
            choices[name] = replace(choices[name], note="; ".join(filter(None, (choices[name].note, note))))
            warnings.warn(f"tensor {shown(name)} is {note}", TiedWarning, stacklevel=4)
        earlier.append(name)
    return aliases


def _same_payload(one: str, other: str, stored: Mapping[str, StoredTensor], choices: Mapping[str, Choice]) -> bool:
    """Returns whether two tied tensors get the same payload."""
    type_, first, second = choices[one].type, stored[one].importance, stored[other].importance
    if type_ != choices[other].type or not type_.takes_importance or first is second:
        return type_ == choices[other].type
    return first is not None and second is not None and torch.equal(first, second)
