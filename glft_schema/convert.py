"""From any weights file to any other: safetensors, GLFT, GGUF; tensors one at a time, metadata in a form that comes back.

Payloads are copied bit for bit where the target has their type and no scheme asks for another. Metadata of GGUF has types; in
GLFT and safetensors, which hold text alone, each value becomes the text of its type and itself as JSON, and an entry
`MARKER` says so. On the way back the types return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glft_schema.checkpoints import Checkpoint, open_with_metadata
from glft_schema.container import ENDINGS, findings, format_named
from glft_schema.errors import FormatError, SchemeError
from glft_schema.export import save_file
from glft_schema.file import File
from glft_schema.formats.gguf import GGUF, VALUE_TYPES, as_entry, as_metadata
from glft_schema.formats.gguf_keys import suits
from glft_schema.formats.glft import GLFT
from glft_schema.lazy import outside_graphs, torch
from glft_schema.names import leave_out
from glft_schema.planned import Progress, WrittenTensor
from glft_schema.safetensors_file import save_safetensors
from glft_schema.source import StrPath
from glft_schema.typed_text import from_text, from_value_text, to_text
from glft_schema.typed_values import Metadata

MARKER, MARKED = "glft_schema.metadata", "typed"  # the key and value that say that all others have types
FOR_TORCH = ("format", "pt")  # what transformers asks for in the metadata of a safetensors file
SAFETENSORS = "safetensors"


@outside_graphs
def convert(
    source: StrPath | Checkpoint,
    out: StrPath,
    schemes: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
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
        SchemeError: where the format is not known; and as `save_file`, with its other errors.
    """
    target = target_format(out, format)
    if not isinstance(source, Checkpoint):
        source, exclude = open_with_metadata(source, exclude), ()
    tensors, entries = leave_out(source.tensors, exclude), source.metadata
    if target == SAFETENSORS:
        if header or alignment or rules or importance:
            unused = "header, alignment, rules or importance"
            raise SchemeError(f"expected no {unused} for a safetensors file, which has no use for them")
        texts = dict([FOR_TORCH]) | as_texts(entries, metadata or {})
        return save_safetensors(tensors, out, texts, schemes, progress=progress, measure=True)
    if rules is None and target == GGUF.name and has_types(entries) and not keeps_to_rules(source.file):
        rules = ()
    kept = as_texts(entries, metadata or {}) if target == GLFT.name else as_typed(entries, metadata or {})
    more: dict[str, Any] = {"header": header, "rules": rules, "progress": progress, "importance": importance}
    return save_file(tensors, out, kept, schemes, alignment, format=target, measure=True, **more)


def target_format(out: StrPath, format: str | None) -> str:
    """Returns the name of the format that is asked for, or that the ending of `out` stands for.

    Raises:
        SchemeError: where there is none such.
    """
    ending = Path(out).suffix.lower()
    if format is not None:
        return SAFETENSORS if format.lower() == SAFETENSORS else format_named(format).name
    if ending == f".{SAFETENSORS}":
        return SAFETENSORS
    if ending not in ENDINGS:
        known = ", ".join([*ENDINGS, f".{SAFETENSORS}"])
        raise SchemeError(f"expected a format, or a file that ends in {known}, found {str(out)!r}")
    return ENDINGS[ending].name


def keeps_to_rules(file: File | None) -> bool:
    """Tells whether a GGUF file keeps to the rules that new ones keep to; of another file with its metadata nobody knows."""
    if file is None or file.format is not GGUF:
        return False
    return not any(finding.building for shard in file.shards for finding in findings(shard, GGUF.keeps_to))


def has_types(entries: Mapping[str, Any]) -> bool:
    """Tells whether metadata has types: of GGUF, or as their text."""
    return isinstance(entries, Metadata) or entries.get(MARKER) == MARKED


def as_texts(entries: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, str]:
    """Returns metadata as text by key: as it is where it was text, else as types and values."""
    if not has_types(entries):
        return {**entries, **added}
    typed = as_typed(entries, added)
    if MARKER in typed:
        raise FormatError(f"expected no key {MARKER}, which marks metadata with types, found one", "metadata")
    return {MARKER: MARKED, **{key: to_text(typed.stored(key)) for key in typed}}


def as_typed(entries: Mapping[str, Any], added: Mapping[str, Any]) -> Metadata:
    """Returns metadata as typed values: as they are, or read from their texts, or as strings."""
    if not isinstance(entries, Metadata) and has_types(entries):
        texts = {key: text for key, text in entries.items() if key != MARKER and (key, text) != FOR_TORCH}
        entries = {key: from_text(text, VALUE_TYPES, f"metadata -> {key}") for key, text in texts.items()}
    elif not isinstance(entries, Metadata):
        entries = {key: added.get(key, text) for key, text in entries.items()}  # a text that is replaced is not parsed
    metadata = as_metadata(entries)
    return metadata | {key: _in_type_of(key, value, metadata) for key, value in added.items()}


def _in_type_of(key: str, value: Any, metadata: Metadata) -> Any:
    """Returns an added value, in the type of the value that it replaces if that suits the key, else in the key's type."""
    path = f"metadata -> {key}"
    if key not in metadata or not suits(key, metadata.type_of(key)):
        return as_entry(key, value, path)
    return from_value_text(value, metadata.type_of(key), VALUE_TYPES, path) if isinstance(value, str) else value
