"""Metadata of the GGUF model that a folder was written from, in a file beside the weights.

Hugging Face's tokenizer files lack some of it, such as scores, token types and the pre-tokenizer,
and the model card is not written. The file is a GGUF file without tensors. It is ignored if the
tokenizer's files have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.families.config import Config, read_json
from glft_schema.families.export import IDS
from glft_schema.families.page import Family
from glft_schema.families.vocabulary import TOKENIZER_FILES
from glft_schema.files.container import Container
from glft_schema.files.container import open as open_container
from glft_schema.formats.gguf_names import ARCHITECTURE, TOKENIZER
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.opening import read_regular

KEPT, GENERATION = "metadata.gguf", "generation_config.json"
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
    kept = metadata.without(*(key for key in metadata if key in keys)) | {DIGEST: tokenizer_digest(folder)}
    Container.build_file({"format": WITH_TYPES.name, "metadata": kept, WITH_TYPES.table: []}, folder / KEPT)


def kept_metadata(folder: Path, family: Family, config: Config, computed: Mapping[str, object]) -> dict[str, Any] | None:
    """Returns the metadata of the model that a folder was written from, or None.

    Keys that the other files decide are left out: token ids are those of the generation config or
    the config, and keys of config fields that no longer have a value are missing.

    Args:
        folder: the folder.
        family: of the model.
        config: of the folder.
        computed: the values of keys that the folder's other files have.

    Raises:
        FormatError: if a file is invalid.
    """
    if not (folder / KEPT).is_file():
        return None
    metadata: TypedMetadata = open_container(folder / KEPT).metadata
    if (metadata.get(DIGEST), metadata.get(ARCHITECTURE)) != (tokenizer_digest(folder), family.arch):
        return None
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    decided = {f"{family.arch}.{key.key}" for key in family.keys if key.field or key.default is not None}
    left_out = {DIGEST, f"{family.arch}.pooling_type", *decided} - computed.keys()
    kept = {key: Typed(metadata[key], metadata.type_of(key)) for key in metadata if key not in left_out}
    ids = {TOKENIZER + key: {**config, **generation}.get(field) for field, key in IDS.items()}
    return kept | {key: number for key, number in ids.items() if isinstance(number, int)}
