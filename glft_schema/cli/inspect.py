"""`glft inspect`: header, metadata, tensors and bytes by type."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from glft_schema.cli.terminal import echo, file_errors
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Array, StoredValue
from glft_schema.display import aligned
from glft_schema.errors import FormatError, safe, shown
from glft_schema.files.byte_counts import byte_counts
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.files.shards import whole_set
from glft_schema.formats.format import ShardIndex
from glft_schema.formats.imatrix import KIND, is_old_matrix

if TYPE_CHECKING:  # imported when a file is one
    from glft_schema.weights.importance import ImportanceMatrix

OLD_NAME = "imatrix.dat"
FIRST = 8  # elements shown of a long array


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Weights file or imatrix.dat; for a set, its first file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --json: print metadata arrays in full.")] = False,
) -> None:
    """Shows header, metadata, tensors and sizes.

    Long metadata arrays are abbreviated. Dims are in stored order, which for GGUF is the reverse
    of torch's.

    Of llama.cpp's importance matrices, GGUF or imatrix.dat, shows statistics of each matrix, over
    the mean squared activations of its columns: the share of active columns, the entropy in bits
    and relative to equal columns, the share of columns above the mean by a standard deviation, and
    the cosine similarity with the layer before.
    """
    with file_errors(file):
        if is_old_matrix(file):
            matrix = _importance_matrix().open(file)
            found: dict[str, Any] | list[str] = (
                _old_matrix_as_data(file, matrix) if as_json else _old_matrix_in_lines(file, matrix)
            )
        else:
            with Container.parse_file(file) as parsed:
                found = as_data(parsed, full) if as_json else in_lines(parsed)
        if isinstance(found, dict):
            print(json.dumps(found, indent=2, allow_nan=False))  # escapes everything but ASCII
        else:
            echo(*found)


def as_data(file: File, full: bool = False) -> dict[str, Any]:
    """Returns everything but the payloads as JSON data; long arrays abbreviated unless `full`."""
    header = _header(file)
    return {
        "file": file.name,
        "format": file.format.name,
        "bytes": file.nbytes,
        "header": {name: as_json_value(value) for name, value in header.items()},
        "metadata": _entries_as_data(file.metadata, full),
        "tensors": [
            {
                **({"file": tensor.file} if len(file.shards) > 1 else {}),
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
        **({"part_of": str(part[1])} if (part := whole_set(file)) else {}),
        **_importance_as_data(file),
    }


def _has_index(file: File) -> bool:
    """Tells whether a file is a set that an index lists, so that none of its files is the first."""
    return len(file.shards) > 1 and isinstance(file.format.shards, ShardIndex)


def _header(file: File) -> dict[str, Any]:
    """Returns the header with its counts; empty for a set that an index lists."""
    return {} if _has_index(file) else {**file.header, **file.header.counts}


def _entries_as_data(metadata: Any, full: bool) -> dict[str, Any]:
    if not isinstance(metadata, TypedMetadata):
        return dict(metadata)
    entries: dict[str, Any] = {}
    for key, value in metadata.items():
        entries[key] = {"type": metadata.type_of(key)}
        if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str) and len(value) > FIRST and not full:
            entries[key] |= {"length": len(value), "first": as_json_value(value[:FIRST])}
        else:
            entries[key]["value"] = as_json_value(value)
    return entries


def as_json_value(value: Any) -> Any:
    """Returns a value as JSON data; bytes, NaN and infinities as text."""
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
        return [as_json_value(element) for element in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return value


def in_lines(file: File) -> list[str]:
    """Returns the output without ``--json``."""
    about = [file.format.name, f"{file.nbytes:,} bytes"]
    about += [f"{name} {value}" for name, value in _header(file).items() if name != "magic"]
    if len(file.shards) > 1:
        about.append(f"{'' if _has_index(file) else 'the first of '}{len(file.shards)} files")
    elif part := whole_set(file):
        about.append(f"{part[0]} ({safe(part[1].name)} opens the whole model)")
    lines = [f"{safe(file.name)}: {', '.join(about)}"]
    if isinstance(file.metadata, TypedMetadata):
        entries = [(safe(key), safe(file.metadata.type_of(key)), _as_text(file.metadata.stored(key))) for key in file.metadata]
        lines += ["", *aligned([("key", "type", "value"), *entries], right=0)] if entries else []
    elif file.metadata:
        lines += ["", "metadata", *(f"  {safe(key)} = {safe(value)}" for key, value in file.metadata.items())]
    rows = [("file", "tensor", "dtype", "dims", "bytes", "at byte")]
    for tensor in file.tensors.values():
        size, position = f"{tensor.nbytes:,}", f"{tensor.position:,}"
        rows.append(
            (safe(Path(tensor.file).name), safe(tensor.name), tensor.dtype.name, str(list(tensor.dims)), size, position)
        )
    lines += ["", *aligned([row if len(file.shards) > 1 else row[1:] for row in rows], right=2)]
    parameters = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    lines += ["", f"{len(file.tensors)} tensors, {parameters:,} parameters"]
    parts = [(part, f"{n:,}", f"{100 * n / file.nbytes:.2f} %") for part, n in byte_counts(file).items() if n]
    lines += ["", *aligned([("part", "bytes", "share"), *parts], right=2)]
    if file.tensors.trailing:
        lines += ["", f"{file.tensors.trailing:,} trailing bytes after the last payload"]
    if matrix := _importance_in(file):
        lines += ["", *([f"no statistics: {matrix}"] if isinstance(matrix, str) else _statistics_in_lines(matrix))]
    return lines


def _importance_matrix() -> type[ImportanceMatrix]:
    from glft_schema.weights.importance import ImportanceMatrix

    return ImportanceMatrix


def _importance_in(file: File) -> ImportanceMatrix | str | None:
    """Returns the importance matrix in a GGUF file, or how it is invalid; None for other files."""
    if file.metadata.get("general.type") != KIND:
        return None
    try:
        return _importance_matrix().of_file(file)
    except FormatError as error:
        return str(error)


def _importance_as_data(file: File) -> dict[str, Any]:
    if not (matrix := _importance_in(file)):
        return {}
    return {"no_statistics": matrix} if isinstance(matrix, str) else {"statistics": _statistics_as_data(matrix)}


def _old_matrix_as_data(path: Path, matrix: ImportanceMatrix) -> dict[str, Any]:
    about = {"file": str(path), "format": OLD_NAME, "bytes": path.stat().st_size}
    return {
        **about,
        "datasets": list(matrix.datasets),
        "chunks": matrix.chunk_count,
        "statistics": _statistics_as_data(matrix),
    }


def _old_matrix_in_lines(path: Path, matrix: ImportanceMatrix) -> list[str]:
    text = "".join(f" of {safe(text)}" for text in matrix.datasets)
    size = f"{path.stat().st_size:,} bytes, {len(matrix.columns)} matrices"
    return [f"{path}: {OLD_NAME}, {size}, {matrix.chunk_count} chunks{text}", "", *_statistics_in_lines(matrix)]


def _statistics_as_data(matrix: ImportanceMatrix) -> list[dict[str, Any]]:
    return [{name: as_json_value(value) for name, value in row._asdict().items()} for row in matrix.statistics()]


def _statistics_in_lines(matrix: ImportanceMatrix) -> list[str]:
    head = ("tensor", "layer", "sum", "min", "max", "mean", "std", "active", "n", "entropy", "normalized", "z > 1", "cosine")
    rows = [
        (
            safe(row.tensor),
            "-" if row.layer is None else str(row.layer),
            f"{row.total:.2f}",
            *(f"{number:.4f}" for number in (row.min, row.max, row.mean, row.std)),
            f"{row.active:.2%}",
            str(row.n),
            f"{row.entropy:.4f}",
            f"{row.normalized_entropy:.2%}",
            f"{row.z_score:.2%}",
            "-" if row.cosine is None else f"{row.cosine:.4f}",
        )
        for row in matrix.statistics()
    ]
    return aligned([head, *rows], right=12)


def _as_text(entry: StoredValue) -> str:
    """Returns a value as text; numbers have the digits of their stored type."""
    value = entry.value
    if not isinstance(value, Array):
        return safe(value) if isinstance(value, str) else str(entry.plain if entry.type.name == "bool" else value)
    parts = [StoredValue(value.type, element) for element in value.values[:FIRST]]
    first = ", ".join(shown(part.value, 40) if isinstance(part.value, str) else _as_text(part) for part in parts)
    return f"[{first}{f', ... {len(value.values):,} in all' if len(value.values) > FIRST else ''}]"
