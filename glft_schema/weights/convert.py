"""From any weights file to any other: safetensors, GLFT, GGUF; tensors one at a time, metadata in a form that comes back.

Payloads are copied bit for bit where the target has their type and no scheme asks for another. Metadata of GGUF has types; in
GLFT and safetensors, which hold text alone, each value becomes the text of its type and itself as JSON, and an entry
`MARKER` says so. On the way back the types return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from glft_schema.codec.metadata import KeyValues, TypedMetadata
from glft_schema.codec.typed_text import from_text, to_text
from glft_schema.display import Progress
from glft_schema.errors import FormatError, OptionError
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules
from glft_schema.formats.format import Format
from glft_schema.formats.registry import WITH_TYPES, target_format
from glft_schema.lazy import outside_graphs, torch
from glft_schema.storage.source import StrPath
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.payloads import WrittenTensor
from glft_schema.weights.safetensors_files import save_safetensors
from glft_schema.weights.save import save_file

MARKER, MARKED = "glft_schema.metadata", "typed"  # the key and value that say that all others have types
FOR_TORCH = ("format", "pt")  # what transformers asks for in the metadata of a safetensors file


@outside_graphs
def convert(
    source: StrPath | Checkpoint,
    out: StrPath,
    *,
    schemes: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    format: str | None = None,
    header: Mapping[str, Any] | None = None,
    alignment: int | None = None,
    rules: str | Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    importance: Mapping[str, torch.Tensor] | None = None,
) -> list[WrittenTensor]:
    """Writes the tensors and the metadata of `source` to another file.

    Args:
        source: whatever `open_checkpoint` opens, or what `open_with_metadata` has opened.
        out: the file to write.
        schemes: what is to be requantized, as of `save_file`.
        metadata: entries to add or to replace.
        format: ``safetensors``, ``glft`` or ``gguf``; unless given, what the ending of `out` says.
        header: as of `save_file`.
        alignment: as of `save_file`.
        rules: as of `save_file`; unless given, none where the source is a GGUF file that breaks them itself, or typed metadata
            come as text: it keeps its ways.
        exclude: as of `save_file`.
        progress: as of `save_file`.
        importance: as of `save_file`.

    Returns:
        What became of each tensor; `copied` tells whether its payload was taken over, `error` what it lost otherwise.

    Raises:
        OptionError: for a format that is not known; and as `save_file`, with its other errors.
    """
    target = target_format(out, format)
    if not isinstance(source, Checkpoint):
        source, exclude = open_with_metadata(source, exclude), ()
    tensors, entries = leave_out(source.tensors, exclude), source.metadata
    if target is None:
        if header or alignment or rules or importance:
            unused = "header, alignment, rules or importance"
            raise OptionError(f"expected no {unused} for a safetensors file, which has no use for them")
        texts = dict([FOR_TORCH]) | as_texts(entries, metadata or {})
        return save_safetensors(tensors, out, texts, schemes=schemes, progress=progress, measure=True)
    typed = target.has_typed_metadata
    if rules is None and typed and has_types(entries) and not keeps_to_rules(source.file, target):
        rules = ()
    kept = as_typed(entries, metadata or {}, target.metadata) if typed else as_texts(entries, metadata or {})
    more: dict[str, Any] = {"header": header, "rules": rules, "progress": progress, "importance": importance}
    return save_file(tensors, out, kept, schemes=schemes, alignment=alignment, format=target.name, measure=True, **more)


def keeps_to_rules(file: File | None, format: Format) -> bool:
    """Tells whether a file of a format keeps to the rules that new ones keep to; of a file of another format nobody knows."""
    if file is None or file.format is not format:
        return False
    return not any(finding.building for shard in file.shards for finding in check_rules(shard, format.keeps_to))


def has_types(entries: Mapping[str, Any]) -> bool:
    """Tells whether metadata has types: of GGUF, or as their text."""
    return isinstance(entries, TypedMetadata) or entries.get(MARKER) == MARKED


def as_texts(entries: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, str]:
    """Returns metadata as text by key: as it is where it was text, else as types and values."""
    if not has_types(entries):
        return {**entries, **added}
    typed = as_typed(entries, added, WITH_TYPES.metadata)
    if MARKER in typed:
        raise FormatError(f"expected no key {MARKER}, which marks metadata with types, found one", "metadata")
    return {MARKER: MARKED, **{key: to_text(typed.stored(key)) for key in typed}}


def as_typed(entries: Mapping[str, Any], added: Mapping[str, Any], declared: KeyValues) -> TypedMetadata:
    """Returns metadata as typed values: as they are, or read from their texts, or as strings."""
    if not isinstance(entries, TypedMetadata) and has_types(entries):
        texts = {key: text for key, text in entries.items() if key != MARKER and (key, text) != FOR_TORCH}
        entries = {key: from_text(text, declared.types, f"metadata -> {key}") for key, text in texts.items()}
    elif not isinstance(entries, TypedMetadata):
        entries = {key: added.get(key, text) for key, text in entries.items()}  # a text that is replaced is not parsed
    return declared.metadata(entries).with_texts(added)
