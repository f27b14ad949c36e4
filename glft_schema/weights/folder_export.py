"""Writes a GGUF model as a Hugging Face folder: config.json, model.safetensors and tokenizer."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glft_schema.composites.as_ggml import in_ggml
from glft_schema.errors import FormatError, MetadataWarning, OptionError, one_line, warn
from glft_schema.families.config import CONFIG, Config, refusing
from glft_schema.families.export import hf_model
from glft_schema.families.folders import write_json, write_pooling
from glft_schema.families.kept_metadata import keep_metadata
from glft_schema.families.tokenizers import tokenizer_of
from glft_schema.families.vocabulary import SETTINGS
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.dtypes import is_float
from glft_schema.storage.source import StrPath, path_text
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import Checkpoint
from glft_schema.weights.payloads import WrittenTensor

WEIGHTS = "model.safetensors"
CLASS = '"PreTrainedTokenizerFast"'  # in versions 4 and 5 of transformers


def is_folder(path: StrPath) -> bool:
    """Returns whether an output is a folder: one that exists, or a path that ends in a slash."""
    return os.path.isdir(path_text(path)) or path_text(path).endswith(("/", os.sep))


def write_folder(
    source: Checkpoint,
    out: StrPath,
    save: Callable[[Mapping[str, StoredTensor], Path], list[WrittenTensor]],
    pack: str | None = None,
) -> list[WrittenTensor]:
    """Writes a GGUF model as a new Hugging Face folder. After an error, `out` is unchanged.

    The tokenizer is written if transformers is installed and the vocabulary's rules are known.

    Args:
        source: the model.
        out: the folder, which is new or empty.
        save: writes tensors to model.safetensors.
        pack: the library whose form quantized weights get if that holds their values.

    Raises:
        OptionError: if the source is not a GGUF file, the folder is not empty, or the family has a
            form of its own for quantized weights.
        FormatError, TensorError: if the model is not of a known family; see `hf_model`.
        OSError: from the system.

    Warns:
        MetadataWarning: if the tokenizer cannot be written.
    """
    if source.file is None or source.file.format is not WITH_TYPES:
        raise OptionError(
            f"expected a {WITH_TYPES.name} file to write a Hugging Face folder of, found another source: convert it first"
        )
    tensors, config = hf_model({name: in_ggml(tensor) for name, tensor in source.tensors.items()}, source.file)
    stored = {
        name: StoredTensor(t.shape, t.dtype, t.load, None, None if t.companions else t.file_tensor, read=t.read)
        for name, t in tensors.items()
    }
    entries: Config = {}
    if pack is not None:
        if "quantization_config" in config:
            raise OptionError("pack (--pack) is not for this family, whose folders have packed weights of their own")
        from glft_schema.composites.packing import packed_model  # slow to import

        stored, entries = packed_model(tensors, stored, pack)
    with _new_folder(Path(out)) as folder:
        written = save(stored, folder / WEIGHTS)
        matrices = [t for t in written if t.name in tensors and len(stored[t.name].shape) > 1 and is_float(t.type.dtype)]
        config |= {"dtype": matrices[0].type.exact if matrices else "float32", **entries}
        write_json(folder / CONFIG, config)
        write_pooling(source.metadata, folder)
        if problem := _write_tokenizer(source.metadata, folder):
            warn(f"no tokenizer is written: {problem}", MetadataWarning)
        keep_metadata(source.file.metadata, folder)
    return written


@contextlib.contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Makes a folder beside `path` and renames it to `path` when the block ends."""
    if path.exists() and any(path.iterdir()):
        raise OptionError(f"expected a new or empty folder, found files in {str(path)!r}")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.rmdir()  # Windows renames over no folder
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> str | None:
    """Writes a GGUF model's tokenizer by transformers' classes. Returns the problem, or None."""
    try:
        with refusing(folder, "a vocabulary that transformers can write"):
            tokenizer_of(metadata).save_pretrained(folder)
        settings = folder / SETTINGS
        settings.write_text(settings.read_text("utf-8").replace('"TokenizersBackend"', CLASS), "utf-8", newline="\n")
    except OptionError:
        return "transformers is not installed"
    except FormatError as error:
        return one_line(error.text)
    except OSError as error:
        return one_line(str(error))
    return None
