"""Metadata keys that other libraries find in a folder. `apart` runs these functions in a
separate process, so their arguments and results are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from glft_schema.codec.typed_values import Typed
from glft_schema.families.config import Config, refusing
from glft_schema.families.libraries import keys_of, library
from glft_schema.families.pages import FAMILIES
from glft_schema.families.vocabulary import vocabulary_keys


def general_keys(folder: Path, arch: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, Typed]:
    """Returns the keys ``general.*`` from the model card, the config and the folder's name.

    Args:
        folder: the folder.
        arch: the family's name in GGUF.
        shapes: of the tensors, by their names in GGUF.

    Raises FormatError if the model card is invalid.
    """
    with refusing(folder, "a valid model card"):
        gguf = library("gguf")
        writer = gguf.GGUFWriter(path=None, arch=arch)
        for name, shape in shapes.items():  # for their count
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 0)
        total, *counts = writer.get_total_parameter_count()
        metadata = gguf.Metadata.load(None, folder, None, total)
        metadata.name = metadata.name or folder.resolve().name
        metadata.size_label = metadata.size_label or gguf.size_label(total, *counts)
        writer.add_type(gguf.GGUFType.MODEL)
        metadata.set_gguf_meta_model(writer)
        return keys_of(writer)


def tokenizer_keys(folder: Path, architecture: str, config: Config) -> tuple[dict[str, Typed], list[str]]:
    """Returns what `vocabulary_keys` returns, and raises as it does."""
    with refusing(folder, "a valid tokenizer"):
        family = next(family for family in FAMILIES if architecture in family.architectures)
        return vocabulary_keys(folder, family, config)
