"""Metadata keys of GGUF that count blocks, after blocks have been added or left out.

llama.cpp counts the blocks that predict further tokens (MTP) in ``block_count``, and
``nextn_predict_layers`` states how many of the last blocks they are. It refuses an array with a
value for each block if its length is not ``block_count``. Sources: ``load_hparams`` in llama.cpp's
src/llama-model.cpp, ``get_key_or_arr`` in src/llama-model-loader.cpp, and the options --mtp and
--no-mtp of convert_hf_to_gguf.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.families.config import KEY_TYPES
from glft_schema.families.page import BLOCK_COUNT
from glft_schema.formats.gguf_names import ARCHITECTURE, LAYER

NEXTN_LAYERS = "nextn_predict_layers"  # the key
NEXTN = re.compile(rf"{LAYER.pattern}nextn\.")  # in the name of a tensor that only MTP blocks have


def with_block_counts(
    metadata: Mapping[str, Any], before: Collection[str], after: Collection[str], added: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Returns a model's metadata with the counts of blocks that its tensors have.

    A count that the names do not change is kept, even if it differs from theirs. Arrays with a
    value for each block are shortened, or continued with values of `added`.

    Args:
        metadata: of the model; returned as it is if it is not typed or has no ``block_count``.
        before: the names of its tensors when it was opened.
        after: the names that are written.
        added: the metadata of the files that blocks are added from. The first array is used.
    """
    prefix = f"{metadata.get(ARCHITECTURE)}."
    if not isinstance(metadata, TypedMetadata) or f"{prefix}{BLOCK_COUNT}" not in metadata:
        return metadata
    old, new, stated = _counts(before), _counts(after), metadata[f"{prefix}{BLOCK_COUNT}"]
    changed: dict[str, Any] = {f"{prefix}{name}": number for name, number in new.items() if number != old[name]}
    for key in metadata if new[BLOCK_COUNT] != old[BLOCK_COUNT] else ():
        if key.startswith(prefix) and _is_per_block(key, values := metadata[key], stated):
            more = next((found for entries in added if isinstance(found := entries.get(key), list)), [])
            changed[key] = Typed([*values, *more[len(values) :]][: new[BLOCK_COUNT]], metadata.type_of(key))
    return metadata | changed


def _counts(names: Collection[str]) -> dict[str, int]:
    """Returns the values of the keys for tensors with these names."""
    blocks, nextn = ({int(found[1]) for name in names if (found := part.match(name))} for part in (LAYER, NEXTN))
    return {BLOCK_COUNT: max(blocks, default=-1) + 1, NEXTN_LAYERS: len(nextn)}


def _is_per_block(key: str, value: Any, blocks: Any) -> bool:
    """Returns whether a key of the architecture has an array with a value for each block."""
    return isinstance(value, list) and len(value) == blocks and not str(KEY_TYPES.type_of(key, False)).startswith("array")
