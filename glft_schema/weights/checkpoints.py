"""Opens checkpoints of any kind: a weights file, the files of a set, or torch files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.composites.as_ggml import in_ggml
from glft_schema.display import ByName
from glft_schema.errors import MetadataWarning, OptionError, quote, safe, warn
from glft_schema.families.block_keys import with_block_counts
from glft_schema.families.composite import refuse_composite
from glft_schema.families.config import config_of, read_json
from glft_schema.families.converter import Converter
from glft_schema.families.donors import Donor
from glft_schema.families.export import family_in_gguf, gguf_config
from glft_schema.families.folders import declared_family, is_model_folder, open_folder
from glft_schema.families.page import Family
from glft_schema.files.container import open as open_container
from glft_schema.files.file import File
from glft_schema.files.shards import TORCH_INDEX, check_whole, find_set
from glft_schema.formats.format import Format
from glft_schema.formats.gguf_names import SCALES, scale_of
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.locations import is_remote, session, shown
from glft_schema.storage.source import StrPath, path_text
from glft_schema.tensor_types.ggml.fp4 import NVFP4
from glft_schema.tensors.stored_tensor import StoredTensor, of_file
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.peft_adapters import CONFIG, in_llama_cpp, is_adapter, updates_of_peft, weights_of
from glft_schema.weights.torch_files import is_torch, load_torch, load_torch_set


class Checkpoint(NamedTuple):
    """An open checkpoint. As a context manager it closes its weights files at the end."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, Any]  # typed if from GGUF, otherwise text; without the keys of a GGUF set
    file: File | None = None  # if it is a weights file
    family: str | None = None  # GGUF architecture, if a Hugging Face folder was mapped by its family
    donor: File | None = None  # the GGUF file whose names, metadata and types it takes
    converter: str | None = None  # name of llama.cpp's converter, if it maps the folder
    dropped: tuple[str, ...] = ()  # names of the folder's tensors that GGUF does not have
    is_part: bool = False  # whether tensors are left out
    files: tuple[File, ...] = ()  # open files, which are closed with it

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files:
            file.close()

    def with_tensors(self, tensors: Mapping[str, Any], *added: Mapping[str, Any]) -> Checkpoint:
        """Returns the checkpoint with other tensors and counts of blocks; see `with_block_counts`.

        Args:
            tensors: all tensors.
            added: the metadata of the files that some of them are from.
        """
        metadata = with_block_counts(self.metadata, self.tensors, tensors, added)
        is_part = self.is_part or not self.tensors.keys() <= tensors.keys()
        return self._replace(tensors=tensors, metadata=metadata, is_part=is_part)

    def composed(self, path: StrPath) -> Checkpoint:
        """Returns the checkpoint with the parts of a composite weight as one tensor, see
        `ComposedTensors`. `path` is its own, beside which a config may be."""
        from glft_schema.composites.composed import composed  # slow to import

        entries = self.tensors.items()
        arrays = {name: entry for name, entry in entries if isinstance(name, str) and isinstance(entry, np.ndarray)}
        return self._replace(tensors=composed({**self.tensors, **in_memory(arrays)}, path))

    def with_scales(self) -> Checkpoint:
        """Returns the checkpoint with the scales of NVFP4 weights of GGUF as their companions."""
        blocks = (name for name, tensor in self.tensors.items() if tensor.packed and tensor.packed.type == NVFP4)
        scales = {name: beside for name in blocks if (beside := scale_of(name)) in self.tensors}
        if not scales:
            return self
        from glft_schema.composites.schemes import NVFP4OfGGUF  # slow to import
        from glft_schema.composites.weight import Facts

        tensors = {name: tensor for name, tensor in self.tensors.items() if name not in scales.values()}
        for name, beside in scales.items():
            tensor, scale = tensors[name], self.tensors[beside]
            values = NVFP4OfGGUF(name, {"weight": tensor, "scale": scale}, Facts()).stored
            tensors[name] = replace(tensor, load=values.load, read=values.part, companions={SCALES[0]: scale.values()})
        return self._replace(tensors=tensors)

    def as_ggml(self, exact: bool) -> Checkpoint:
        """Returns the checkpoint with its composite weights in types of ggml, see `in_ggml`."""
        return self._replace(tensors={name: in_ggml(tensor, exact=exact) for name, tensor in self.tensors.items()})

    @property
    def own_metadata(self) -> Mapping[str, Any]:
        """The metadata without the entries that the format adds to new files."""
        added = self.file.format.entries if self.file else {}
        if isinstance(self.metadata, TypedMetadata) or not added:
            return self.metadata
        return {key: text for key, text in self.metadata.items() if added.get(key) != text}


BY_FAMILY = Converter()
Weights = StrPath | File | Mapping[str, Any] | Checkpoint  # a path, an open file, a state dict, or an open checkpoint


def open_checkpoint(path: StrPath, exclude: Iterable[str] = (), *, as_stored: bool = False) -> dict[str, StoredTensor]:
    """Opens a checkpoint: whatever `glft_schema.open` opens, a torch file, or the index or the
    folder of torch files.

    A torch file is read without torch's reader, so it cannot run code. If its dict has the weights
    under ``state_dict``, ``model_state_dict`` or ``model``, that entry is used, with the tensors
    beside it. Other Python objects are not constructed, and can be excluded.

    Args:
        path: the file or folder.
        exclude: names or fnmatch patterns of entries to omit, which need not be tensors.
        as_stored: also open codes and scales of schemes such as GPTQ, as separate tensors.

    Raises:
        OSError: if a file cannot be opened.
        FormatError: if it is not a whole checkpoint, or has codes and scales without `as_stored`.
        TensorError: if an entry is not a tensor.
        SchemeError: if a pattern matches nothing.
    """
    return ByName(open_with_metadata(path, exclude, as_stored=as_stored).tensors)


def open_with_metadata(
    source: StrPath | Checkpoint,
    exclude: Iterable[str] = (),
    target: Format | None = None,
    like: StrPath | None = None,
    converter: Converter = BY_FAMILY,
    as_stored: bool | None = None,
    *,
    exact: bool = False,
) -> Checkpoint:
    """Opens a checkpoint as `open_checkpoint` does, with its metadata, or uses an open one.

    If `target` is GGUF, a Hugging Face folder with a config.json is mapped by its family, or by
    llama.cpp's converter: the tensors get GGUF's names and values, and the metadata includes the
    vocabulary. A folder with an adapter of peft becomes llama.cpp's adapter of the base model
    `like`, or of the one that its settings name. With `like`, names and metadata are taken from
    that GGUF file; see `Donor`.

    A weight of several tensors, such as codes and scales, is one tensor, unless `as_stored`, which
    is None if the caller has no such option. If `target` is GGUF, it has the type of ggml that
    holds its values, see `in_ggml`, which takes `exact`. An open checkpoint stays open.

    Raises:
        OptionError: if `like` is given and the target is not GGUF, or `like` is not a GGUF model;
            if the converter is missing, or the source is not a folder that it can convert.
        FormatError: if it is a file of a set, and not the first one or the index; if it has codes
            and scales, see `refuse_composite`, unless `as_stored` and it is not mapped to GGUF.
        FormatError, TensorError: if it cannot be mapped; see `open_folder`, `Converter.open` and
            `Donor.tensors_of`.
    """
    folder = None if isinstance(source, Checkpoint) or not is_model_folder(source) else Path(source)
    if converter.path is not None and (folder is None or target is not WITH_TYPES or like is not None):
        raise OptionError("converter (--converter) maps a Hugging Face folder to a GGUF file, without like (--like)")
    if target is WITH_TYPES and not isinstance(source, Checkpoint) and is_adapter(source):
        adapter = _open_adapter(Path(source), like)
        return adapter.with_tensors(leave_out(adapter.tensors, exclude))
    by_table = folder if target is WITH_TYPES and like is None else None
    family = declared_family(folder) if folder and like is not None else None
    as_parts = bool(as_stored) or (family is not None and family.packs_weights)
    checkpoint = _open_mapped(by_table, converter, exact) if by_table else _open_whole(source)
    with ExitStack() as opened:  # what is open is closed after an error
        opened.enter_context(checkpoint)
        is_gguf = checkpoint.file is not None and checkpoint.file.format is target is WITH_TYPES
        if not (isinstance(source, Checkpoint) or by_table or as_parts):
            checkpoint = checkpoint.with_scales() if is_gguf else checkpoint.composed(source)
        checkpoint = checkpoint.with_tensors(in_memory(leave_out(checkpoint.tensors, exclude)))
        if target is WITH_TYPES and like is None:
            checkpoint = checkpoint.as_ggml(exact)
        are_weights = checkpoint.converter or isinstance(checkpoint.metadata, TypedMetadata) or (as_stored and like is None)
        if not isinstance(source, Checkpoint) and not are_weights:
            refuse_composite(checkpoint.tensors, source, as_stored is False and like is None, family)
            if folder is None and target is WITH_TYPES and like is None and _is_mapped(parent := Path(source).parent):
                problem = "names are kept, and no metadata are added; give the folder for those of GGUF"
                warn(f"{safe(str(source), 1000)}: {problem}: {str(parent)!r}", MetadataWarning)
        if like is not None:
            donor = Donor.of(opened.enter_context(open_container(like)))
            if target is not WITH_TYPES:
                raise OptionError(f"expected {WITH_TYPES.name} as the output for like (--like), found another format")
            files = (*checkpoint.files, donor.file)
            checkpoint = by_example(checkpoint.tensors, donor, folder)._replace(is_part=checkpoint.is_part, files=files)
            checkpoint = checkpoint.as_ggml(exact)
        opened.pop_all()
        return checkpoint


def _is_mapped(folder: Path) -> bool:
    return is_model_folder(folder) or is_adapter(folder)


def _open_adapter(folder: Path, like: StrPath | None) -> Checkpoint:
    """Opens an adapter of peft as llama.cpp's, by its base model, a GGUF file or a folder."""
    weights, named = weights_of(folder), read_json(folder / CONFIG).get("base_model_name_or_path")
    found = os.path.abspath(named) if like is None and isinstance(named, str) else like  # never a URL of the settings
    if found is None or not (os.path.exists(found) or is_remote(found)):
        problem = "expected the base model of an adapter as like (--like), a GGUF file or a Hugging Face folder"
        raise OptionError(f"{problem}, found {quote(named if like is None else shown(like))}, which is not a local path")
    base = open_with_metadata(found, target=WITH_TYPES)
    family = family_in_gguf(base.metadata)
    model = gguf_config(base.file) if base.file else (family, config_of(base.metadata, family.keys, family.arch))
    updates = updates_of_peft(folder, open_checkpoint(weights), model, base.tensors)
    tensors, keys = in_llama_cpp(updates, family, base.tensors)
    return Checkpoint(tensors, WITH_TYPES.metadata.metadata(keys), files=base.files)


def _open_mapped(path: Path, converter: Converter, exact: bool = False) -> Checkpoint:
    """Opens a Hugging Face folder by its family, or by llama.cpp's converter."""
    if converter.path is not None or (declared_family(path) is None and converter.script()):
        return _of_file(converter.open(path))._replace(converter=converter.name)
    files: list[File] = []
    model = open_folder(path, partial(_in_order, path, files), exact=exact)
    return Checkpoint(model.tensors, model.metadata, family=model.family.arch, dropped=model.dropped, files=tuple(files))


def _in_order(folder: Path, files: list[File], family: Family) -> dict[str, StoredTensor]:
    """Returns the tensors of a folder, those of each safetensors file by name. Adds to the open
    files."""
    opened = _open_path(folder)
    files += opened.files
    opened = opened if family.packs_weights else opened.composed(folder)
    shards = {name: number for file in files for number, shard in enumerate(file.shards) for name in shard.tensors}
    return in_memory(
        {name: opened.tensors[name] for name in sorted(opened.tensors, key=lambda name: (shards.get(name, 0), name))}
    )


def by_example(tensors: Mapping[str, StoredTensor], donor: Donor, folder: Path | None = None) -> Checkpoint:
    """Returns tensors with the names, types and metadata of a donor, which stays open. Arguments
    and errors are those of `Donor.tensors_of`."""
    arch = None if donor.has_names_of(tensors) or donor.family is None else donor.family.arch
    return Checkpoint(donor.tensors_of(tensors, folder), donor.metadata, family=arch, donor=donor.file)


def _open_whole(source: StrPath | Checkpoint) -> Checkpoint:
    """Opens a checkpoint, with its tensors as stored. Raises FormatError for a single file of a
    set."""
    checkpoint = _open_stored(source)
    if isinstance(source, (str, os.PathLike)):
        check_whole(checkpoint.file, source)
    return checkpoint


def open_entries(source: Weights) -> Checkpoint:
    """Opens a checkpoint of any kind, or returns an open one. Its entries may not be tensors."""
    checkpoint = _open_stored(source)
    if isinstance(source, Mapping | Checkpoint):
        return checkpoint
    return checkpoint.composed(source.name if isinstance(source, File) else source)


def _open_stored(source: Weights) -> Checkpoint:
    """Opens a checkpoint of any kind, with its entries as stored, or returns an open one."""
    if isinstance(source, Checkpoint):
        return source._replace(files=())
    if isinstance(source, Mapping):
        return Checkpoint(source, {})
    return _of_file(source)._replace(files=()) if isinstance(source, File) else _open_path(source)


def open_beside(opened: Checkpoint, source: Weights, other: File | None) -> Checkpoint:
    """Returns a checkpoint to be compared with a file.

    If the file is GGUF, a Hugging Face folder of a declared family is mapped to GGUF.

    Args:
        opened: the checkpoint.
        source: what it was opened from.
        other: the file, or None if the checkpoint is compared with something else.

    Raises as `open_with_metadata`.
    """
    if other is not None and other.format is WITH_TYPES and isinstance(source, (str, os.PathLike)):
        folder = Path(source)
        if is_model_folder(folder) and declared_family(folder):
            return _open_mapped(folder, BY_FAMILY)
    return opened


def _open_path(path: StrPath) -> Checkpoint:
    found = find_set(Path(path)) if os.path.isdir(path_text(path)) else path
    with session():
        if shown(found).endswith(TORCH_INDEX):
            return Checkpoint(load_torch_set(found), {})
        return Checkpoint(load_torch(found), {}) if is_torch(found) else _of_file(open_container(found))


def _of_file(file: File) -> Checkpoint:
    if not file.format.has_tensors:
        raise OptionError(f"expected a file of a format that holds tensors, found {quote(file.name)} ({file.format.name})")
    metadata = file.metadata
    if keys := file.format.shard_keys:
        metadata = metadata.without(*(key for key in keys if key in metadata))
    return Checkpoint({name: of_file(tensor) for name, tensor in file.tensors.items()}, metadata, file, files=(file,))
