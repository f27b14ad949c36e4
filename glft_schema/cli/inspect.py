"""`glft inspect FILE`: header, metadata, tensors, and where the bytes go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from glft_schema.cli.terminal import blame, safe, table
from glft_schema.container import Container
from glft_schema.describe.byte_counts import byte_counts
from glft_schema.errors import shown
from glft_schema.file import File
from glft_schema.typed_values import Metadata

FIRST = 8  # elements of a long array that are shown


def inspect(
    file: Annotated[Path, typer.Argument(help="A weights file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the header, the metadata, the tensors, and the bytes by type."""
    with blame(file), Container.parse_file(file) as parsed:
        print(json.dumps(as_data(parsed), indent=2) if as_json else as_text(parsed))


def as_data(file: File) -> dict[str, Any]:
    """Returns what the file holds, but for its numbers, as JSON can hold it; of long arrays the first elements."""
    header = {**file.header, **file.header.counts}
    return {
        "file": file.name,
        "format": file.format.name,
        "bytes": file.nbytes,
        "header": {name: value.decode() if isinstance(value, bytes) else value for name, value in header.items()},
        "metadata": _entries_as_data(file.metadata),
        "tensors": [
            {
                "name": tensor.name,
                "dims": list(tensor.dims),
                "dtype": tensor.dtype.name,
                "offset": tensor.offset,
                "position": tensor.position,
                "nbytes": tensor.nbytes,
            }
            for tensor in file.tensors.values()
        ],
        "byte_counts": byte_counts(file),
        "trailing_bytes": file.tensors.trailing,
    }


def _entries_as_data(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, Metadata):
        return dict(metadata)
    entries: dict[str, Any] = {}
    for key, value in metadata.items():
        entries[key] = {"type": metadata.type_of(key), **_value_as_data(value)}
    return entries


def _value_as_data(value: Any) -> dict[str, Any]:
    if isinstance(value, (str, int, float)) or (isinstance(value, list) and len(value) <= FIRST):
        return {"value": value}
    first = value[:FIRST]
    return {"length": len(value), "first": first.tolist() if isinstance(first, np.ndarray) else list(first)}


def as_text(file: File) -> str:
    """Returns the same for people."""
    fields = {**file.header, **file.header.counts}
    header = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "magic")
    files = f", the first of {len(file.shards)} files" if len(file.shards) > 1 else ""
    lines = [f"{safe(file.name)}: {file.format.name}, {file.nbytes:,} bytes, {header}{files}"]
    lines += ["", "metadata"] if file.metadata else []
    lines += [f"  {safe(key)} = {_value_as_text(value)}" for key, value in file.metadata.items()]
    rows = [
        (safe(tensor.name), tensor.dtype.name, str(list(tensor.dims)), f"{tensor.nbytes:,}", f"{tensor.position:,}")
        for tensor in file.tensors.values()
    ]
    lines += ["", *table(("tensor", "dtype", "dims", "bytes", "at byte"), rows, right=2)]
    parts = [(part, f"{n:,}", f"{100 * n / file.nbytes:.2f} %") for part, n in byte_counts(file).items() if n]
    lines += ["", *table(("part", "bytes", "share"), parts, right=2)]
    if file.tensors.trailing:
        lines += ["", f"{file.tensors.trailing:,} bytes follow the last payload; they belong to no tensor and are kept"]
    return "\n".join(lines)


def _value_as_text(value: Any) -> str:
    if isinstance(value, str):
        return safe(value)
    if not isinstance(value, (Sequence, np.ndarray)):
        return str(value)
    first = ", ".join(
        shown(element, 40) for element in (value[:FIRST].tolist() if isinstance(value, np.ndarray) else value[:FIRST])
    )
    return f"[{first}{f', ... {len(value):,} in all' if len(value) > FIRST else ''}]"
