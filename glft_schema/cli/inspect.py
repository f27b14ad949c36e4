"""`glft inspect`: the model, its bytes by type, metadata and tensors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from glft_schema.cli.options import Input, Json, argument, flag, option
from glft_schema.cli.terminal import echo, file_errors
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_text import FIRST, as_json_value, entry_data
from glft_schema.codec.typed_values import Typed
from glft_schema.display import MAX_LINE, align, first_rows
from glft_schema.errors import FormatError, OptionError, quote, safe, without_controls
from glft_schema.files.byte_counts import GAPS, byte_counts
from glft_schema.files.container import open_damaged
from glft_schema.files.file import File
from glft_schema.files.shards import whole_set
from glft_schema.files.summary import (
    gaps_text,
    group_rows,
    headline,
    largest_first,
    missing_bytes,
    scheme_lines,
    totals_by_type,
    without_empty_column,
)
from glft_schema.formats.format import ShardIndex
from glft_schema.formats.imatrix import KIND, is_old_matrix
from glft_schema.storage.opening import open_source

if TYPE_CHECKING:
    from glft_schema.tensors.tensor import Tensor
    from glft_schema.weights.importance import ImportanceMatrix  # imported when a file is one

OLD_NAME = "imatrix.dat"
TEXT = 80  # characters shown of a text
ROWS = 60  # of tensors
# fmt: off
STATISTICS = (  # of an importance matrix: head, field and format of each column
    ("layer", "layer", "d"), ("sum", "total", ".2f"), ("min", "min", ".4f"), ("max", "max", ".4f"), ("mean", "mean", ".4f"),
    ("std", "std", ".4f"), ("active", "active", ".2%"), ("n", "n", "d"), ("entropy", "entropy", ".4f"),
    ("normalized", "normalized_entropy", ".2%"), ("z > 1", "z_score", ".2%"), ("cosine", "cosine", ".4f"),
)
# fmt: on


def inspect(
    file: Annotated[Input, argument("FILE", "Weights file or imatrix.dat; for a set, its first file.")],
    tensors: Annotated[str | None, option("PATTERN", "List the tensors whose name is or matches PATTERN.")] = None,
    key: Annotated[
        str | None, option("KEY", "Print only the value of a metadata key, or list the keys that match a pattern.")
    ] = None,
    everything: Annotated[bool, flag("List every tensor; shorten texts less.", "--all")] = False,
    as_json: Json = False,
    full: Annotated[bool, flag("With --json: print arrays in full.")] = False,
) -> None:
    """Shows the model in a file: sizes, metadata and tensors.

    Tensors whose names differ only in the block number share a row, with all their types. Dims
    are in stored order, which for GGUF is the reverse of torch's. For a file that ends within its
    payloads, shows the number of missing bytes of each tensor, and the exit code is 2. If it ends
    before them, glft explain shows the fields up to the fault.

    --key prints a text as it is, without a newline if the output is piped, and an array with one
    element per line. With a wildcard pattern, it lists keys with shortened values.

    For llama.cpp's importance matrices, GGUF or imatrix.dat, shows statistics of the mean squared
    activations of each matrix's columns: the share of active columns, the entropy in bits and
    relative to its maximum, the share of columns more than one standard deviation above
    the mean, and the cosine similarity with the previous layer.

    Examples:
        glft inspect model.gguf --key 'tokenizer.*'
        glft inspect model.gguf --key tokenizer.chat_template > template.jinja
    """
    with file_errors(file):
        if is_old_matrix(file):
            matrix = _importance_matrix().open(file)
            _print(_old_matrix_as_data(file, matrix) if as_json else _old_matrix_in_lines(file, matrix))
            return
        parsed, fault = open_damaged(file)
        if fault and not parsed.tensors:
            raise fault
        with parsed:
            if key is not None:
                _print_entries(parsed, key, as_json, everything, full)
            elif as_json:
                _print(as_data(parsed, full))
            elif tensors is not None:
                from glft_schema.weights.patterns import names_matching

                names = names_matching(tensors, parsed.tensors)
                _print(_tensor_rows(parsed, [parsed.tensors[name] for name in names]))
            else:
                _print(in_lines(parsed, everything, fault))
        if fault:
            raise fault


def _print(found: dict[str, Any] | list[str]) -> None:
    if isinstance(found, dict):
        print(json.dumps(found, indent=2, allow_nan=False))  # escapes everything but ASCII
    else:
        echo(*found)


def _print_entries(file: File, pattern: str, as_json: bool, everything: bool, full: bool) -> None:
    """Prints the metadata entries that match a pattern, as JSON or as a table. For a key, without
    `as_json`, prints only the value: texts as they are, but to a terminal with a newline and
    without control characters."""
    keys = [pattern] if pattern in file.metadata else [key for key in file.metadata if fnmatchcase(key, pattern)]
    if not keys:
        from glft_schema.words import suggestion

        raise OptionError(f"expected a metadata key of the file, found {quote(pattern)}{suggestion(pattern, file.metadata)}")
    if as_json or pattern not in file.metadata:
        _print(_entries_as_data(file.metadata, full, keys) if as_json else _entry_rows(file, everything, keys))
        return
    value = file.metadata[pattern]
    is_array = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
    for element in value if is_array else [value]:
        text, end = str(element), "\n"
        if sys.stdout.isatty():
            text = without_controls(text, keep="\n")
        elif isinstance(value, str):
            end = ""
        print(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), end=end)


def as_data(file: File, full: bool = False) -> dict[str, Any]:
    """Returns everything but the payloads as JSON data; long arrays abbreviated unless `full`."""
    header = _header(file)
    return {
        "file": file.name,
        "format": file.format.name,
        "bytes": file.nbytes,
        "header": {name: as_json_value(value) for name, value in header.items()},
        "metadata": _entries_as_data(file.metadata, full, file.metadata),
        "tensors": [
            {
                **({"file": tensor.file} if len(file.shards) > 1 else {}),
                "name": tensor.name,
                "dims": list(tensor.dims),
                "type": tensor.type.name,
                "offset": tensor.offset,
                "position": tensor.position,
                "nbytes": tensor.nbytes,
                "complete": not tensor.missing,
            }
            for tensor in file.tensors.values()
        ],
        "byte_counts": byte_counts(file),
        **({"composite_weights": schemes} if (schemes := scheme_lines(file)) else {}),
        "trailing_bytes": file.tensors.trailing,
        **(
            {}
            if file.format.has_tensors
            else {"regions": {name: as_json_value(value, None if full else FIRST) for name, value in file.regions.items()}}
        ),
        **({"part_of": str(part[1])} if (part := whole_set(file)) else {}),
        **_importance_as_data(file),
    }


def _has_index(file: File) -> bool:
    """Tells whether a file is a set that an index lists, so that none of its files is the first."""
    return len(file.shards) > 1 and isinstance(file.format.shards, ShardIndex)


def _header(file: File) -> dict[str, Any]:
    """Returns the header with its counts; empty for a set that an index lists."""
    return {} if _has_index(file) else {**file.header, **file.header.counts}


def _entries_as_data(metadata: Any, full: bool, keys: Iterable[str]) -> dict[str, Any]:
    if not isinstance(metadata, TypedMetadata):
        return {key: metadata[key] for key in keys}
    return {key: entry_data(metadata.type_of(key), metadata[key], full) for key in keys}


def in_lines(file: File, everything: bool = False, fault: FormatError | None = None) -> list[str]:
    """Returns the output without ``--json``.

    Args:
        file: the file to show.
        everything: list every tensor, and shorten texts less.
        fault: the error of a truncated file.
    """
    about = [file.format.name, f"{file.nbytes:,} bytes"]
    about += [f"{name} {value}" for name, value in _header(file).items() if name != "magic"]
    if len(file.shards) > 1:
        about.append(f"{'' if _has_index(file) else 'the first of '}{len(file.shards)} files")
    elif part := whole_set(file):
        about.append(f"{part[0]} ({safe(part[1].name)} opens the whole model)")
    lines = [f"{safe(file.name)}: {headline(file)}", ", ".join(about), *scheme_lines(file)]
    if fault:
        lines.append(fault.problem)
    lines += ["", *align(_bytes_by_type(file, everything), right=4 if file.format.has_tensors else 2)]
    if file.tensors.gaps:
        lines += ["", gaps_text(file)]
    lines += ["", *_entry_rows(file, everything, file.metadata)] if file.metadata else []
    if not file.format.has_tensors:
        lines += ["", *align([("region", "value"), *((name, quote(value, TEXT)) for name, value in file.regions.items())], 0)]
    elif everything:
        lines += ["", *_tensor_rows(file, file.tensors.values())]
    else:
        rows, right = without_empty_column(group_rows(file.tensors.values(), "dims"), 2)
        lines += ["", *first_rows(rows, right, ROWS, "--all, --tensors PATTERN")]
    if matrix := _importance_in(file):
        lines += ["", *([f"no statistics: {matrix}"] if isinstance(matrix, str) else _statistics_in_lines(matrix))]
    return lines


def _entry_rows(file: File, everything: bool, keys: Iterable[str]) -> list[str]:
    """Returns a table with a row per metadata entry."""
    if not isinstance(file.metadata, TypedMetadata):
        return ["metadata", *(f"  {safe(key)} = {safe(file.metadata[key])}" for key in keys)]
    longest = MAX_LINE if everything else TEXT
    rows = [(safe(key), safe(file.metadata.type_of(key)), _with_meaning(file, key, longest)) for key in keys]
    return align([("key", "type", "value"), *rows], right=0)


def _bytes_by_type(file: File, everything: bool) -> list[tuple[str, ...]]:
    """Returns a row per tensor type and per region with other bytes; with `everything`, also per
    field of a type's payloads."""
    counts, rows = byte_counts(file), list[tuple[str, str, str, int]]()
    if not file.format.has_tensors:
        sizes = [(part, f"{n:,}", f"{100 * n / file.nbytes:.2f} %") for part, n in counts.items() if n]
        return [("part", "bytes", "share"), *sizes]
    for type_, (count, weights, nbytes) in largest_first(totals_by_type(file.tensors.values())):
        rows.append((type_.name, f"{count:,}", f"{8 * nbytes / weights:.4g}" if weights else "", nbytes))
        fields = [(part.removeprefix(f"{type_} "), n) for part, n in counts.items() if part.startswith(f"{type_} ")]
        rows += [(f"  {field}", "", "", n) for field, n in fields if everything and len(fields) > 1]
    rows += [(part, "", "", n) for part, n in counts.items() if n and part in (*file.regions, GAPS)]
    shares = ((*texts, f"{nbytes:,}", f"{100 * nbytes / file.nbytes:.2f} %") for *texts, nbytes in rows)
    return [("part", "tensors", "bits per weight", "bytes", "share"), *shares]


def _tensor_rows(file: File, tensors: Iterable[Tensor]) -> list[str]:
    """Returns a table with a row per tensor."""
    rows: list[tuple[str, ...]] = [("file", "tensor", "type", "dims", "bytes", "at byte", "missing")]
    for tensor in tensors:
        dims, size, position = str(list(tensor.dims)), f"{tensor.nbytes:,}", f"{tensor.position:,}"
        rows.append(
            (safe(Path(tensor.file).name), safe(tensor.name), tensor.type.name, dims, size, position, missing_bytes([tensor]))
        )
    rows, right = without_empty_column([row if len(file.shards) > 1 else row[1:] for row in rows], 3)
    return align(rows, right)


def _importance_matrix() -> type[ImportanceMatrix]:
    from glft_schema.weights.importance import ImportanceMatrix

    return ImportanceMatrix


def _importance_in(file: File) -> ImportanceMatrix | str | None:
    """Returns the importance matrix in a GGUF file, or its error as text; None for other files."""
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


def _size(path: Input) -> int:
    with closing(open_source(path)) as source:
        return source.size


def _old_matrix_as_data(path: Input, matrix: ImportanceMatrix) -> dict[str, Any]:
    about = {"file": str(path), "format": OLD_NAME, "bytes": _size(path), "datasets": list(matrix.datasets)}
    return {**about, "chunks": matrix.chunk_count, "statistics": _statistics_as_data(matrix)}


def _old_matrix_in_lines(path: Input, matrix: ImportanceMatrix) -> list[str]:
    text = "".join(f" of {safe(text)}" for text in matrix.datasets)
    size = f"{_size(path):,} bytes, {len(matrix.columns)} matrices"
    return [f"{path}: {OLD_NAME}, {size}, {matrix.chunk_count} chunks{text}", "", *_statistics_in_lines(matrix)]


def _statistics_as_data(matrix: ImportanceMatrix) -> list[dict[str, Any]]:
    return [{name: as_json_value(value) for name, value in row._asdict().items()} for row in matrix.statistics()]


def _statistics_in_lines(matrix: ImportanceMatrix) -> list[str]:
    rows = [("tensor", *(head for head, _, _ in STATISTICS))]
    for row in matrix.statistics():
        numbers = ((getattr(row, name), form) for _, name, form in STATISTICS)
        rows.append((safe(row.tensor), *("-" if number is None else format(number, form) for number, form in numbers)))
    return align(rows, right=len(STATISTICS))


def _with_meaning(file: File, key: str, longest: int) -> str:
    """Returns a metadata value as text, with the name of an enumerated value."""
    named = file.format.meaning(key, file.metadata[key])
    text = _as_text(file.metadata.stored_value(key), longest)
    return f"{text} ({named})" if named else text


def _as_text(typed: Typed, longest: int = TEXT) -> str:
    """Returns a value as text; numbers have the digits of their stored type."""
    value = typed.value
    if not typed.is_array:
        return safe(value, longest) if isinstance(value, str) else str(typed.plain() if typed.type == "bool" else value)
    elements = typed._replace(value=value[:FIRST]).elements()
    first = ", ".join(quote(one.value, 40) if isinstance(one.value, str) else _as_text(one) for one in elements)
    return f"{len(value):,}: [{first}, ...]" if len(value) > FIRST else f"[{first}]"
