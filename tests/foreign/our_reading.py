"""The contents of a GGUF file by this package, as a `Reading`."""

from __future__ import annotations

from pathlib import Path

import glft_schema
from tests.foreign.readings import Info, Reading, exact, of_torch


def type_text(text: str) -> str:
    """Returns a type as text; nested arrays are without inner types, which no client reports."""
    return "array[array]" if text.startswith("array[array") else text


def ours(path: Path) -> Reading:
    """Reads a file, or a set by its first file; quantized tensors as float32."""
    with glft_schema.open(path) as file:
        weights = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
        return Reading(
            metadata={key: exact(file.metadata[key]) for key in file.metadata},
            types={key: type_text(file.metadata.type_of(key)) for key in file.metadata},
            tensors={name: of_torch(found) for name, found in weights.items()},
            infos={t.name: Info(t.dims, t.type.code, t.offset, t.position) for t in file.tensors.values()},
            version=file.header.version,
            order=file.header.byte_order,
        )
