"""How much an error in each column of a matrix matters: what llama.cpp's ``llama-imatrix`` measures, an importance matrix.

A weight's error counts as often as large numbers are multiplied with it. So a model is run on a text, and for each column of
each matrix the squares of what it is multiplied with are averaged. Encoders that search for scales then weigh errors with that.

Two forms of such files are read: GGUF files of the type ``imatrix``, with two tensors for each matrix; and what was written
before them, which `Old` declares. Source: tools/imatrix and tools/quantize of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from construct import len_, this

from glft_schema.codec.arrays import Numbers, StoredNumbers
from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.numbers import f32, i32, u32
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.tables import Table
from glft_schema.codec.text import Text
from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.files.container import open
from glft_schema.formats.registry import format_with
from glft_schema.lazy import torch
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.file_source import open_source
from glft_schema.storage.source import Source, StrPath
from glft_schema.tensor_types.engine.chunks import spread_importance
from glft_schema.weights.stored_tensors import StoredTensor

SUMS, COUNTS = ".in_sum2", ".counts"  # what follows a matrix's name in those of its two tensors

# fmt: off
Entry = Struct(
    "name"  / Text(u32)                  * "of the matrix",
    "calls" / i32                        * "how often the squares were added up",
    "n"     / Count(u32, len_(this.sums)) * "columns, of a stack of matrices those of all",
    "sums"  / Numbers(f32, this.n)       * "of the squares",
    title="entry",
)

Old = Struct(
    "n"       / Count(u32, len_(this.entries)) * "number of matrices",
    "entries" / Table(this.n, Entry)           * "one after another; then what is not needed: calls and the text's name",
    title="old importance matrix",
)
# fmt: on


def read_importance(path: StrPath) -> dict[str, torch.Tensor]:
    """Reads an importance matrix.

    Returns:
        By the name of a matrix, float32 [columns]; of a stack of matrices [matrices, columns], or all in one row where the file
        does not tell these apart.

    Raises:
        FormatError: for a file that is none, or a bad one.
        OSError: from the system.
    """
    source = open_source(path, mmap=False)
    try:
        is_weights_file = format_with(bytes(source.read(0, min(4, source.size)))) is not None
        found = _of_weights_file(path) if is_weights_file else _of_old(source)
        if not found:
            raise FormatError("expected the importance of at least one matrix, found none")
    except FormatError as error:
        error.file = error.file or source.name
        raise
    finally:
        source.close()
    return found


def _of_old(source: Source) -> dict[str, torch.Tensor]:
    with our_errors():
        entries = Old._parse(Cursor(source), new_context(True, limits=current()), "(parsing)").entries
    found: dict[str, torch.Tensor] = {}
    for number, entry in enumerate(entries):
        if entry.name in found:
            raise FormatError(f"expected each name once, found {shown(entry.name)} twice", f"entries -> {number} -> name")
        sums = entry.sums.array() if isinstance(entry.sums, StoredNumbers) else entry.sums
        found[entry.name] = _mean(torch.from_numpy(np.array(sums, np.float32)), torch.tensor([float(entry.calls)]))
    return found


def _of_weights_file(path: StrPath) -> dict[str, torch.Tensor]:
    with open(path) as file:
        kind = file.metadata.get("general.type")
        if kind != "imatrix":
            raise FormatError(f"expected 'imatrix', found {shown(kind)}", "metadata -> general.type")
        found = {}
        tensors = file.tensors
        for name in tensors:
            matrix = name.removesuffix(SUMS)
            if matrix == name:
                continue
            if matrix + COUNTS not in tensors:
                raise FormatError(f"expected a tensor {shown(matrix + COUNTS)} beside it, found none", tensor=name)
            sums, counts = (tensors[matrix + part].dequantize().flatten() for part in (SUMS, COUNTS))
            if not counts.numel() or sums.numel() % counts.numel():
                expected = f"expected as many sums for each of {counts.numel()} matrices, found {sums.numel()}"
                raise FormatError(expected, tensor=name)
            found[matrix] = _mean(sums, counts)
        return found


def _mean(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the mean squares of one or several matrices; where nothing was counted, all columns matter the same."""
    rows, counts = sums.reshape(counts.numel(), -1), counts.unsqueeze(1)
    means = torch.where(counts > 0, rows / counts, 1.0)
    return means if len(means) > 1 else means.squeeze(0)


def with_importance(tensors: Mapping[str, StoredTensor], importance: Mapping[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """Returns the tensors with their importance, those that have one.

    Raises:
        OptionError: where none has.
        TensorError: for an importance that is none.
    """
    if not isinstance(importance, Mapping):
        raise OptionError(f"expected the importance of tensors by name, found {shown(importance)}")
    if importance and not importance.keys() & tensors.keys():
        other = shown(next(iter(importance)))
        raise OptionError(f"expected an importance of these tensors, found that of {len(importance)} others such as {other}")
    weighed = dict(tensors)
    for name in tensors.keys() & importance.keys():
        spread_importance(importance[name], tensors[name].shape, name)
        weighed[name] = replace(tensors[name], importance=importance[name])
    return weighed
