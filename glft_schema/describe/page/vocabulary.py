"""The vocabulary of a file, within the limits of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glft_schema.describe.page.frame import visible
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import NORMAL, TOKENIZER

TYPES, ROLE = f"{TOKENIZER}token_type", "_token_id"
FIRST, SPECIAL = 1 << 14, 1 << 11  # tokens on a page: those of the first ids, and others of a type that is not normal
LONGEST = 60  # characters of a token


def vocabulary(file: File) -> dict[str, Any] | None:
    """Returns ids, texts and types of tokens, and the ids with a role such as ``bos``; or None."""
    metadata = file.metadata
    tokens, types = _array(metadata.get(f"{TOKENIZER}tokens")), _array(metadata.get(TYPES))
    if not tokens:
        return None
    typed = {id: type_ for id, type_ in enumerate(types[: len(tokens)]) if type_ != NORMAL}
    ids = [*range(min(FIRST, len(tokens))), *[id for id in typed if id >= FIRST][:SPECIAL]]
    keys = [key for key in metadata if key.startswith(TOKENIZER) and key.endswith(ROLE)]
    roles = {key[len(TOKENIZER) : -len(ROLE)]: metadata[key] for key in keys}
    return {
        "count": len(tokens),
        "ids": ids[FIRST:],
        "texts": [visible(str(tokens[id]), LONGEST) for id in ids],
        "types": {id: file.format.meaning(TYPES, typed[id]) or visible(f"type {typed[id]}") for id in ids if id in typed},
        "normal": file.format.meaning(TYPES, NORMAL) if types else "",
        "roles": [
            [visible(role), id, visible(str(tokens[id]), LONGEST)]
            for role, id in roles.items()
            if isinstance(id, int) and 0 <= id < len(tokens)
        ],
    }


def _array(value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return value.tolist()  # type: ignore[no-any-return]
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
