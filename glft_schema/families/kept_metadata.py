"""Metadata of the GGUF model that a folder was written from, in a file beside the weights.

Hugging Face's tokenizer files lack some of it, such as scores, token types and the pre-tokenizer,
and the model card is not written. The file is a GGUF file without tensors. It is ignored if the
tokenizer's files have changed since.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.families.vocabulary import TOKENIZER_FILES
from glft_schema.files.container import Container
from glft_schema.files.container import open as open_container
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.file_source import read_regular

KEPT = "metadata.gguf"
DIGEST = "glft_schema.tokenizer_sha256"  # the key


def tokenizer_digest(folder: Path) -> str:
    """Returns the SHA-256 of the tokenizer's files in a folder, with their names, as hex."""
    digest = sha256()
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update(f"{name}\n{sha256(read_regular(folder / name)).hexdigest()}\n".encode())
    return digest.hexdigest()


def keep_metadata(metadata: TypedMetadata, folder: Path) -> None:
    """Writes the metadata of a model beside its tokenizer."""
    keys = WITH_TYPES.shard_keys or ()
    kept = metadata.without(*(key for key in metadata if key in keys)).with_texts({DIGEST: tokenizer_digest(folder)})
    Container.build_file({"format": WITH_TYPES.name, "metadata": kept, WITH_TYPES.table: []}, folder / KEPT)


def kept_metadata(folder: Path) -> TypedMetadata | None:
    """Returns the metadata of the model that a folder was written from, or None.

    Raises:
        FormatError: if the file is invalid.
    """
    if not (folder / KEPT).is_file():
        return None
    metadata: TypedMetadata = open_container(folder / KEPT).metadata
    return metadata.without(DIGEST) if metadata.get(DIGEST) == tokenizer_digest(folder) else None
