"""Editing of metadata and tensor names in a file of any format. Everything else stays as it is.

The regions before the payloads are rebuilt. All bytes from the first payload to the end of the
file, with the gaps between payloads, are copied as one span. Before it is written, the edited file
is parsed like any other, with the new regions read from memory and the payloads from the old file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from glft_schema.codec.arrays import StoredStrings
from glft_schema.codec.json_table import JsonRows
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.rules import REQUIRED
from glft_schema.codec.structs import Padding
from glft_schema.codec.typed_text import texts_of_change
from glft_schema.codec.typed_values import Typed
from glft_schema.display import with_display
from glft_schema.errors import FormatError, MetadataWarning, OptionError, quote, safe, warn
from glft_schema.families.chat_templates import unrendered
from glft_schema.families.loader import wrong_ids
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.files.parsing import check_rules, parse_source
from glft_schema.files.shards import find_set, whole_set
from glft_schema.formats.chat_templates import syntax_problem
from glft_schema.formats.registry import indexed_format, refuse_ending
from glft_schema.lazy import outside_graphs
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.locations import is_remote, shown
from glft_schema.storage.source import SplicedSource, StrPath, path_text
from glft_schema.storage.system import check_replaceable
from glft_schema.storage.tensor_bytes import copy_all, write_all
from glft_schema.tensors.region import TensorMap
from glft_schema.weights.convert import MARKER, as_texts, has_types
from glft_schema.weights.similar_keys import warn_of_typos
from glft_schema.words import suggestion

PAGE = 4096  # bytes: payload alignments up to this are preserved
NOTHING: Mapping[str, Any] = MappingProxyType({})
SHOWN = 60  # characters of a value in a report


class Change(NamedTuple):
    """A change to a file. Its text is a line of the report.

    Attributes:
        action: ``set``, ``add`` or ``remove`` for a metadata key, ``rename`` for a tensor.
        name: the key, or the tensor's old name.
        before: the old value, as `Typed` if the format has types, or None.
        after: the new value, the tensor's new name, or None.
    """

    action: str
    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        values = filter(None, texts_of_change(self.before, self.after, SHOWN))
        return f"{self.action} {quote(self.name)}{':' if self.action != 'rename' else ' ->'} {' -> '.join(values)}"


@with_display
class Edited(NamedTuple):
    """The result of `edit`.

    Attributes:
        changes: in the order of the arguments `set`, `remove` and `rename`.
        nbytes: bytes of the edited file.
        copied: bytes of payloads and gaps that are copied unchanged.
    """

    changes: tuple[Change, ...]
    nbytes: int
    copied: int


@outside_graphs
def edit(
    source: StrPath,
    out: StrPath | None = None,
    *,
    set: Mapping[str, Any] = NOTHING,
    remove: str | Iterable[str] = (),
    rename: Mapping[str, str] = NOTHING,
    dry_run: bool = False,
    check: Callable[[File, File], None] | None = None,
) -> Edited:
    """Changes metadata and names of tensors in a file.

    Payloads, gaps, the order of tensors and keys, the alignment, byte order and version stay as
    they are. A key that is set keeps its position; a new key is the last. The new file replaces
    `out` when it is complete, and nothing is written after an error.

    A text is parsed as the type of the value that it replaces, or of a well-known key. Types other
    than strings are written as JSON. A `Typed` value changes the type.

    Args:
        source: the file.
        out: the file to write; by default `source` is replaced.
        set: values by metadata key.
        remove: metadata keys.
        rename: new names of tensors by their old names. Names can be swapped.
        dry_run: check everything, but write nothing.
        check: called with the file and the edited file before it is written.

    Returns:
        What was changed.

    Raises:
        OptionError: if a key or tensor to remove or rename is missing, a name is taken, a key is
            set and removed or describes the file's layout, nothing is to be changed, the file is
            part of a set, or `out` has the ending of another format.
        FormatError: if the file is invalid, a value does not fit its type, or the edited file
            breaks a rule set that the source satisfies.
        OSError: from the system; `out` is unchanged.

    Warns:
        MetadataWarning: if a chat template renders no conversation.
        SimilarKeyWarning: if a new key resembles a well-known one.
    """
    removed = [remove] if isinstance(remove, str) else list(dict.fromkeys(remove))
    if not (set or removed or rename):
        raise OptionError("expected at least one change, found none to set, remove or rename")
    if os.path.isdir(path_text(source)):
        source = find_set(Path(source))
    if indexed_format(source):
        raise OptionError("expected a single file, found the index of a set: merge the set first")
    if out is None and is_remote(source):
        raise OptionError(f"expected a local path to write (out, -o) for {quote(shown(source))}, found none")
    if out is None and not dry_run:
        check_replaceable(path_text(source))
    with open(source, mmap=False, whole_set=False) as file, file.limits:
        if out is not None:
            refuse_ending(out, file.format, "edit keeps the format,")
        if part := whole_set(file):
            found = f"{part[0]} ({safe(part[1].name)})"
            raise OptionError(f"expected a file that is not part of a set, found {found}: merge the set first")
        entries, changes = _edit_metadata(file, set, removed)
        names = _new_names(file, rename)
        changes += [Change("rename", old, None, new) for old, new in rename.items()]
        if isinstance(rows := file.regions[file.format.table], JsonRows):
            rows.check_kept(file.format.table)
        edited, copied = _splice(file, entries, names)
        result = _parse(file, edited)
        before = {finding.problem for finding in wrong_ids(file)}
        if wrong := next((finding for finding in wrong_ids(result) if finding.problem not in before), None):
            raise FormatError(wrong.problem, wrong.path)
        if check:
            check(file, result)
        warn_of_typos((change.name for change in changes if change.action == "add"), file.metadata)
        if not dry_run:
            with atomic_write(source, file.source) if out is None else atomic_write(out) as stream:
                write_all(stream, edited.read(0, edited.size - copied))
                copy_all(stream, edited, edited.size - copied, copied)
    return Edited(tuple(changes), edited.size, copied)


def _edit_metadata(file: File, set: Mapping[str, Any], removed: list[str]) -> tuple[Mapping[str, Any], list[Change]]:
    """Returns the new metadata, and the changes to it."""
    format, old = file.format, file.metadata
    for key in (*set, *removed):
        if key in (format.alignment_key, *(format.shard_keys or ())):
            raise OptionError(f"expected a key that can be edited, found {quote(key)}, which describes the file's layout")
    for key in removed:
        if key in set:
            raise OptionError(f"expected each key to be set or removed, found both for {quote(key)}")
        if key not in old:
            hint = ", which is a tensor: use glft convert --exclude" if key in file.tensors else _hint(key, old)
            raise OptionError(f"expected an existing metadata key to remove, found {quote(key)}{hint}")
    if set and format.metadata is None:
        raise OptionError(f"{format.name} files have no metadata, found {quote(next(iter(set)))} to set")
    if not (set or removed):
        return old, []
    new: Mapping[str, Any]
    for key, value in set.items():
        if wrong := syntax_problem(key, value):
            raise FormatError(wrong, f"metadata -> {key}")
        if doubt := unrendered(key, value):
            advice = "it is set nevertheless; try it with messages like those of your application"
            warn(f"{key}: {doubt}: {advice}", MetadataWarning)
    if isinstance(old, TypedMetadata):
        new = (old | set).without(*removed)
        for key in set:
            if old.key_types and (problem := old.key_types.refusal(key, new.type_of(key))):
                raise FormatError(problem, f"metadata -> {key}")
    else:
        for key, value in set.items():
            if not (isinstance(value, str) or has_types(old)):
                found, _ = texts_of_change(value, None, SHOWN)
                raise FormatError(f"expected text, the only type in {format.name}, found {found}", f"metadata -> {key}")
        texts = as_texts({key: text for key, text in old.items() if key in (MARKER, *set)}, set)
        entries = {**old, **{key: texts[key] for key in set}}
        replace = getattr(old, "replace", dict)  # keeps how the entries are stored
        new = replace({key: text for key, text in entries.items() if key not in removed})
    changes = [Change("set" if key in old else "add", key, _value(old, key), _value(new, key)) for key in set]
    return new, [*changes, *(Change("remove", key, _value(old, key), None) for key in removed)]


def _hint(name: str, names: Iterable[str]) -> str:
    return ": patterns are not supported" if {*"*?["}.intersection(name) else suggestion(name, names)


def _value(entries: Mapping[str, Any], key: str) -> Any:
    """Returns a value in memory, as `Typed` if it has a type; None if it is missing."""
    if key not in entries:
        return None
    value = list(entries[key]) if isinstance(entries[key], StoredStrings) else entries[key]
    return Typed(value, entries.type_of(key)) if isinstance(entries, TypedMetadata) else value


def _new_names(file: File, rename: Mapping[str, str]) -> dict[str, str]:
    """Returns the new names of all tensors by their old names."""
    uses = Counter(rename.values())
    for old, new in rename.items():
        if old not in file.tensors:
            hint = ", which is a metadata key" if old in file.metadata else _hint(old, file.tensors)
            raise OptionError(f"expected an existing tensor to rename, found {quote(old)}{hint}")
        is_free = new not in file.tensors or (new in rename and new != old)
        if not is_free or uses[new] > 1:
            raise OptionError(f"expected a new name for tensor {quote(old)}, found {quote(new)}, which is taken")
    return {name: rename.get(name, name) for name in file.tensors}


def _splice(file: File, entries: Mapping[str, Any], names: Mapping[str, str]) -> tuple[SplicedSource, int]:
    """Returns the bytes of the edited file, and how many at its end come from the old file."""
    format, tensors = file.format, file.tensors
    assert isinstance(tensors, TensorMap)
    rows = [{**row, "name": names[row.name]} for row in file.regions[format.table]]
    before = {name: value for name, value in file.regions.items() if name != "data" and not _is_zero_padding(file, name)}
    before |= {format.table: rows, **({"metadata": entries} if format.metadata is not None else {})}
    head, _ = format.build(before, limits=file.limits)
    gap = min((place.offset for place in tensors.places().values()), default=0)
    new_gap = _aligned_gap(file, gap, len(head))
    if new_gap != gap:
        shifted = [{**row, "offset": row["offset"] + new_gap - gap} for row in rows]
        head, _ = format.build({**before, format.table: shifted}, limits=file.limits)
        head += bytes(new_gap)
    start = tensors.start + (gap if new_gap != gap else 0)
    return SplicedSource(head, file.source, start), file.source.size - start


def _is_zero_padding(file: File, region: str) -> bool:
    """Returns whether a region is complete padding of zeros, which is rebuilt with a new length."""
    tensors = file.tensors
    assert isinstance(tensors, TensorMap)
    if not isinstance(file.format.field(region), Padding) or any(file.regions[region]):
        return False
    return bool(tensors.start % file.regions.counts.get("alignment", 1) == 0)


def _aligned_gap(file: File, gap: int, start: int) -> int:
    """Returns the number of bytes before the first payload in the region of payloads.

    If zeros align the first payload, their number changes with the start of the region, so that all
    payloads keep their position modulo the alignment: the format's, or a page. A gap never becomes
    empty, because its zeros show that the payloads are aligned.

    Args:
        file: the file to edit.
        gap: the number of bytes in `file`.
        start: first byte of the region in the edited file.
    """
    tensors, step = file.tensors, file.regions.counts.get("alignment", PAGE)
    assert isinstance(tensors, TensorMap)
    if not 0 < gap <= step or any(file.source.read(tensors.start, gap)):
        return gap
    return int((tensors.start + gap - start - 1) % step + 1)


def _parse(file: File, edited: SplicedSource) -> File:
    """Parses the edited file. Raises FormatError if it breaks a rule set that `file` satisfies."""
    result = parse_source(edited)
    sets = {*file.format.rule_sets} - {set_ for finding in check_rules(file, file.format.rule_sets) for set_ in finding.sets}
    for finding in check_rules(result, [REQUIRED, *sets]):
        error = FormatError(finding.problem, finding.path, tensor=finding.tensor, key=finding.key)
        error.rule = finding.rule
        raise error
    return result
