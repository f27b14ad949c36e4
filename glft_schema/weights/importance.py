"""Importance matrices from llama.cpp's ``llama-imatrix``: a weight for the errors of each column.

The effect of an error in a weight is proportional to the square of the activation that the weight
is multiplied by. ``llama-imatrix`` runs a model on a text and averages these squares for each
column of each matrix. Encoders that search for scales weight errors with the averages.

Two formats are read: GGUF files of type ``imatrix``, with two tensors for each matrix, and the
older format declared by `LegacyMatrix`. Source: tools/imatrix and tools/quantize of llama.cpp.
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
from glft_schema.formats.registry import find_format
from glft_schema.lazy import torch
from glft_schema.limits import current
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.file_source import open_source
from glft_schema.storage.source import Source, StrPath
from glft_schema.tensor_types.engine.chunks import spread_importance
from glft_schema.weights.stored_tensors import StoredTensor

SUMS, COUNTS = ".in_sum2", ".counts"  # suffixes of the two tensors of a matrix

# fmt: off
Entry = Struct(
    "name"  / Text(u32)                  * "of the matrix",
    "calls" / i32                        * "number of accumulations",
    "n"     / Count(u32, len_(this.sums)) * "number of columns, summed over a stack of matrices",
    "sums"  / Numbers(f32, this.n)       * "of squared activations",
    title="entry",
)

LegacyMatrix = Struct(
    "n"       / Count(u32, len_(this.entries)) * "number of matrices",
    "entries" / Table(this.n, Entry)           * "followed by a call count and the name of the text, both ignored",
    title="old importance matrix",
)
# fmt: on


def read_importance(path: StrPath) -> dict[str, torch.Tensor]:
    """Reads an importance matrix.

    Returns:
        float32 [columns] by name of the matrix. For stacked matrices [matrices, columns], or one
        row of all columns if the file does not separate them.

    Raises:
        FormatError: if the file is not a valid importance matrix.
        OSError: from the system.
    """
    source = open_source(path, mmap=False)
    try:
        is_weights_file = find_format(source) is not None
        importance = _read_gguf(path) if is_weights_file else _read_legacy(source)
        if not importance:
            raise FormatError("expected the importance of at least one matrix, found none")
    except FormatError as error:
        error.file = error.file or source.name
        raise
    finally:
        source.close()
    return importance


def _read_legacy(source: Source) -> dict[str, torch.Tensor]:
    with our_errors():
        entries = LegacyMatrix._parse(Cursor(source), new_context(True, limits=current()), "(parsing)").entries
    means: dict[str, torch.Tensor] = {}
    for number, entry in enumerate(entries):
        if entry.name in means:
            raise FormatError(f"expected unique names, found {shown(entry.name)} twice", f"entries -> {number} -> name")
        sums = entry.sums.array() if isinstance(entry.sums, StoredNumbers) else entry.sums
        means[entry.name] = _mean(torch.from_numpy(np.array(sums, np.float32)), torch.tensor([float(entry.calls)]))
    return means


def _read_gguf(path: StrPath) -> dict[str, torch.Tensor]:
    with open(path) as file:
        kind = file.metadata.get("general.type")
        if kind != "imatrix":
            raise FormatError(f"expected 'imatrix', found {shown(kind)}", "metadata -> general.type")
        means = {}
        tensors = file.tensors
        for name in tensors:
            matrix = name.removesuffix(SUMS)
            if matrix == name:
                continue
            if matrix + COUNTS not in tensors:
                raise FormatError(f"expected a matching tensor {shown(matrix + COUNTS)}, found none", tensor=name)
            sums, counts = (tensors[matrix + suffix].dequantize().flatten() for suffix in (SUMS, COUNTS))
            if not counts.numel() or sums.numel() % counts.numel():
                problem = f"expected a multiple of {counts.numel()} sums (the number of matrices), found {sums.numel()}"
                raise FormatError(problem, tensor=name)
            means[matrix] = _mean(sums, counts)
        return means


def _mean(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the mean squares of one or several matrices; 1 if the count is 0."""
    rows, counts = sums.reshape(counts.numel(), -1), counts.unsqueeze(1)
    means = torch.where(counts > 0, rows / counts, 1.0)
    return means if len(means) > 1 else means.squeeze(0)


def with_importance(tensors: Mapping[str, StoredTensor], importance: Mapping[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """Returns the tensors with their importance, if they have one.

    Raises:
        OptionError: if none of the tensors has one.
        TensorError: if an importance does not fit its tensor.
    """
    if not isinstance(importance, Mapping):
        raise OptionError(f"expected a mapping of tensor names to importance tensors, found {shown(importance)}")
    if importance and not importance.keys() & tensors.keys():
        tensors_in_it = "1 other tensor" if len(importance) == 1 else f"{len(importance)} other tensors"
        others = f"it has {tensors_in_it}, such as {shown(next(iter(importance)))}"
        raise OptionError(f"the importance matrix covers none of these tensors ({others})")
    weighted = dict(tensors)
    for name in tensors.keys() & importance.keys():
        spread_importance(importance[name], tensors[name].shape, name)
        weighted[name] = replace(tensors[name], importance=importance[name])
    return weighted
