"""Converts weights files from one format to another, one tensor at a time.

Payloads are copied bit for bit if the target has their type and no scheme selects another. GGUF
metadata is typed. GLFT and safetensors metadata is only text, so each value is stored there as its
type followed by JSON, and an entry `MARKER` marks the file. Converting back restores the types.
A target whose typed metadata lacks a value's type stores the value as the same text, without the
mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glft_schema.codec.metadata import KeyValues, TypedMetadata
from glft_schema.codec.typed_text import STRING, from_text, to_text
from glft_schema.codec.typed_values import Typed
from glft_schema.display import Progress
from glft_schema.errors import FormatError, MetadataWarning, OptionError, alternatives, quote, warn
from glft_schema.families.converter import Converter
from glft_schema.families.loader import LLAMA_CPP
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.formats.file_types import FILE_TYPE
from glft_schema.formats.format import Format
from glft_schema.formats.gguf_names import ARCHITECTURE
from glft_schema.formats.registry import WITH_TYPES, target_format
from glft_schema.lazy import outside_graphs
from glft_schema.storage.source import StrPath
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.folder_export import is_folder, write_folder
from glft_schema.weights.grafts import Added, grafted
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.payloads import WrittenTensor
from glft_schema.weights.save import FilePlan, Writer, Writing, plan_file
from glft_schema.weights.schemes import Schemes, TypeChoice, as_pairs
from glft_schema.weights.similar_keys import warn_of_typos

MARKER, MARKED = "glft_schema.metadata", "typed"  # the entry that marks typed metadata


@outside_graphs
def convert(
    source: StrPath | Checkpoint,
    out: StrPath,
    *,
    metadata: Mapping[str, Any] | None = None,
    schemes: Schemes | None = None,
    like: StrPath | None = None,
    exclude: Iterable[str] = (),
    add: Added | Iterable[Added] = (),
    only: Iterable[str] = (),
    alignment: int | None = None,
    format: str | None = None,
    header: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] | None = None,
    progress: Progress | None = None,
    measure: bool = True,
    importance: Mapping[str, Any] | None = None,
    strict: bool = False,
    allow_requantize: bool = False,
    converter: StrPath | None = None,
    trust_remote_code: bool = False,
    as_stored: bool = False,
    exact: bool = False,
    pack: str | None = None,
    search: bool = False,
    ranks: Writer | None = None,
) -> list[WrittenTensor]:
    """Writes the tensors and the metadata of `source` to another file or folder.

    From or to GGUF, a Hugging Face folder of a known family is mapped: names, values, config and
    vocabulary. Folders of other families are mapped to GGUF by llama.cpp's converter. `out` is a
    folder if it exists as one or ends in a slash.

    If `schemes` choose the types of a model in GGUF, the key ``general.file_type`` is set to the
    type of most weights, unless `metadata` has it. By default no `rules` apply if typed metadata is
    read from text, or if the source is a GGUF file that breaks the rules itself. A folder of a
    known family, of which no tensors are left out, must also satisfy the rules of llama.cpp's
    loader.

    With `add`, tensors of other checkpoints replace those with equal names, or follow the others.
    Tensors are copied bit for bit unless a scheme selects another type. The metadata are those of
    `source`. If blocks are added or left out, the keys that count them are updated:
    ``block_count``, ``nextn_predict_layers``, and arrays with a value for each block.

    Args:
        source: any checkpoint `open_checkpoint` opens, or the result of `open_with_metadata`, which
            stays open.
        out: the file to write, or a new or empty folder.
        metadata: entries to add or replace.
        schemes: as in `save_file`, like all arguments that are not named here.
        like: a GGUF model whose names, metadata and types the new GGUF file gets; see
            `open_with_metadata`. `schemes` take precedence over its types.
        exclude: names or fnmatch patterns of tensors of `source` to omit.
        add: checkpoints with more tensors, by path or open; see `grafted`.
        only: names or fnmatch patterns of the tensors to take from `add`, by default all; without
            `add`, of the tensors of `source` to write.
        converter: llama.cpp's ``convert_hf_to_gguf.py`` or its folder, or ``installed`` for the
            package convert-hf-to-gguf. It maps a Hugging Face folder to GGUF in a separate process.
            By default the package, if it is installed, maps folders of unknown families.
        trust_remote_code: let the converter read folders with code of their own.
        as_stored: copy the codes and scales of schemes such as GPTQ as separate tensors. They are
            one weight by default: in GGUF in a type with the same values, or else dequantized.
        exact: refuse to round a value.
        pack: ``compressed-tensors`` or ``mlx``: quantized weights of a GGUF model get this
            library's form in a folder if it holds their values; others are dequantized.

    Returns:
        The result for each tensor: `copied` if the payload was copied, otherwise its `error`.

    Raises:
        OptionError: if the format is unknown, a folder to be written is not empty, or `pack` does
            not fit the output or other arguments. Other errors as `open_with_metadata`, `grafted`
            and `save_file`.
        SchemeError: if `exact`, and the type of a tensor would round its values.

    Warns:
        MetadataWarning: if the format has no metadata, and `source` has some; if a tensor has
            another shape than the one that it replaces.
        SimilarKeyWarning: if a new key resembles a well-known one.
    """
    to_folder = format is None and is_folder(out)
    target = None if to_folder else target_format(out, format)
    if to_folder and ranks:
        raise OptionError("expected a file as the output of several processes, found a folder")
    if to_folder and importance:
        raise OptionError("expected no importance for a Hugging Face folder, whose types do not use it")
    if pack is not None:
        from glft_schema.composites.packing import FORMS  # slow to import

        if pack not in FORMS:
            raise OptionError(f"expected pack (--pack) as {alternatives(FORMS)}, found {quote(pack)}")
        if not to_folder or schemes:
            raise OptionError("pack (--pack) is for a folder (DIR/) as the output, without schemes (--scheme)")
    writing = Writing(
        schemes or (), alignment, header, rules, importance, strict, allow_requantize, measure, progress, exact, search
    )
    mapping = Converter(converter, trust_remote_code)
    with (
        open_with_metadata(source, exclude, target, like, mapping, as_stored, exact=exact) as opened,
        grafted(opened, add, only, target, as_stored, exact) as checkpoint,
    ):
        check_ranks(checkpoint, ranks)
        if target is None:
            return _to_folder(checkpoint, out, writing, metadata or {}, pack)
        return plan_conversion(checkpoint, target, writing, metadata).write(out, ranks)


def check_ranks(checkpoint: Checkpoint, ranks: Writer | None) -> None:
    """Raises OptionError if each of several processes has converted a folder."""
    if ranks is not None and checkpoint.converter:
        raise OptionError(
            "expected a folder that several processes can map, found one for llama.cpp's converter: convert it first"
        )


def plan_conversion(
    checkpoint: Checkpoint,
    target: Format,
    writing: Writing,
    metadata: Mapping[str, Any] | None = None,
    choices: dict[str, TypeChoice] | None = None,
) -> FilePlan:
    """Plans the file that `convert` writes from an open checkpoint. Errors and warnings are those
    of `convert`.

    Args:
        checkpoint: the source.
        target: the format of the file.
        writing: how it is to be written.
        metadata: entries to add or replace.
        choices: the type of each tensor, in the file's order; by default those of the schemes and
            of the checkpoint's donor.
    """
    entries, added, rules = checkpoint.own_metadata, metadata or {}, writing.rules
    schemes, states_type = writing.schemes, None if choices is None and FILE_TYPE not in added else False
    if target.has_typed_metadata:
        if choices is None:
            asked = as_pairs(schemes)
            schemes = [*_types_of(checkpoint.donor, checkpoint.tensors, asked), *asked]
            stale = not isinstance(entries, TypedMetadata) and FILE_TYPE in entries  # it came with other types
            if states_type is None and (stale or (asked and not entries.keys().isdisjoint((FILE_TYPE, ARCHITECTURE)))):
                states_type = True
        model = checkpoint.file or checkpoint.donor
        if rules is None and not checkpoint.family and has_types(entries) and not keeps_to_rules(model, target):
            rules = ()
        if rules is None and checkpoint.family and target is WITH_TYPES and not checkpoint.is_part:
            rules = (*target.keeps_to, LLAMA_CPP)
        converted: Mapping[str, Any] = as_typed(entries, added, target.metadata)
        warn_of_typos((key for key in added if key not in entries), converted)
    elif target.metadata is None:
        if entries:
            warn(f"{target.name} files have no metadata: {len(entries)} entries are left out", MetadataWarning)
        converted = added  # refused unless empty
    else:
        converted = {**target.entries, **as_texts(entries, added)}
    writing = replace(writing, schemes=schemes, rules=rules)
    return plan_file(checkpoint.tensors, target, converted, writing, choices, states_type)


def _to_folder(
    checkpoint: Checkpoint, out: StrPath, writing: Writing, added: Mapping[str, Any], pack: str | None
) -> list[WrittenTensor]:
    """Writes a GGUF model as a Hugging Face folder."""

    def save(tensors: Mapping[str, StoredTensor], path: Path) -> list[WrittenTensor]:
        target = target_format(path, None)
        return plan_file(tensors, target, {**target.entries, **added}, writing).write(path)

    return write_folder(checkpoint, out, save, pack)


def _types_of(donor: File | None, tensors: Mapping[str, StoredTensor], asked: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pairs of name and type for a donor's tensors that no scheme matches."""
    left = tensors.keys() - {name for pattern, _ in asked for name in names_matching(pattern, tensors)}
    return [(name, tensor.type.scheme) for name, tensor in donor.tensors.items() if name in left] if donor else []


def keeps_to_rules(file: File | None, format: Format) -> bool:
    """Returns whether a file of `format` satisfies the rules for new files."""
    if file is None or file.format is not format:
        return False
    return not any(finding.building for shard in file.shards for finding in check_rules(shard, format.keeps_to))


def has_types(entries: Mapping[str, Any]) -> bool:
    """Returns whether metadata is typed, or is the text of typed metadata."""
    return isinstance(entries, TypedMetadata) or entries.get(MARKER) == MARKED


def as_texts(entries: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, str]:
    """Returns metadata as text by key. A typed value becomes its type and JSON."""
    if not has_types(entries):
        return {**entries, **added}
    typed = as_typed(entries, added, WITH_TYPES.metadata)
    if MARKER in typed:
        raise FormatError(f"expected no key {MARKER}, which is reserved for typed metadata", "metadata")
    return {MARKER: MARKED, **{key: to_text(typed.stored_value(key)) for key in typed}}


def as_typed(entries: Mapping[str, Any], added: Mapping[str, Any], declared: KeyValues) -> TypedMetadata:
    """Returns metadata as typed values: unchanged, parsed from marked text, or as strings.

    A value of a type that the target lacks becomes a string of its type and JSON. Raises
    FormatError if the target has no strings.
    """
    if not isinstance(entries, TypedMetadata) and has_types(entries):
        texts, known = {key: text for key, text in entries.items() if key != MARKER}, WITH_TYPES.metadata
        exact = {key: from_text(text, known.types, f"metadata -> {key}") for key, text in texts.items()}
        entries = TypedMetadata(exact, known.types, known.keys)
    elif not isinstance(entries, TypedMetadata):
        entries = {key: added.get(key, text) for key, text in entries.items()}  # replaced texts are not parsed
    if isinstance(entries, TypedMetadata) and STRING in declared.types:
        types = {key: re.findall(r"[^][,]+", entries.type_of(key)) for key in entries}
        lacking = {key for key, names in types.items() if not all(name in declared.types for name in names)}
        if lacking:
            typed = {key: Typed(value, entries.type_of(key)) for key, value in entries.items()}
            entries = typed | {key: to_text(entries.stored_value(key)) for key in lacking}
    return declared.metadata(entries) | added
