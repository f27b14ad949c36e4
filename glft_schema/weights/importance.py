"""Importance matrices from llama.cpp's ``llama-imatrix``: a weight for the errors of each column.

The effect of an error in a weight is proportional to the square of the activation that the weight
is multiplied by. ``llama-imatrix`` runs a model on a text and sums these squares for each column
of each matrix. Encoders that search for scales weight errors with the averages.

Two forms are read and written: GGUF files of type ``imatrix``, and ``imatrix.dat``, declared in
`glft_schema.formats.imatrix`. Source: tools/imatrix/imatrix.cpp and tools/quantize of llama.cpp,
b6000 to b7000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.typed_values import Typed
from glft_schema.display import with_display
from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.files.container import Container, open
from glft_schema.files.file import File
from glft_schema.formats.imatrix import KIND, OldImatrix
from glft_schema.formats.registry import find_format
from glft_schema.lazy import outside_graphs
from glft_schema.limits import current
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.dtypes import Array
from glft_schema.storage.opening import open_source
from glft_schema.storage.source import Source, StrPath, path_text
from glft_schema.storage.torch_tensors import array_of
from glft_schema.tensor_types.chunks import importance_rows
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.importance_statistics import ColumnStatistics, column_statistics

SUMS, COUNTS = ".in_sum2", ".counts"  # suffixes of the two tensors of a matrix
DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
TOKENS = 512  # in a chunk, by default as for llama-imatrix
OLD_ENDING, GGUF_ENDING = ".dat", ".gguf"


@with_display
class ColumnSums(NamedTuple):
    """Measured sums and counts of a matrix, or of a stack of matrices.

    Attributes:
        sums: of the squared activations, float32 [matrices, columns].
        counts: of the activations, int64 [matrices]; 0 for an expert that was never used.
    """

    sums: Array
    counts: Array

    @property
    def means(self) -> Array:
        """The mean squares, float32 [columns] or [matrices, columns]; 1 if the count is 0."""
        counts = self.counts[:, None].astype(np.float32)
        with np.errstate(all="ignore"):
            means = np.divide(self.sums, counts, out=np.ones_like(self.sums), where=counts > 0)
        return means if len(means) > 1 else means[0]


@with_display
@dataclass(frozen=True)
class ImportanceMatrix:
    """An importance matrix, with the counts that merging it with others requires.

    Attributes:
        columns: sums and counts by name of the matrix. Torch tensors are converted to arrays.
        datasets: the texts that it was measured on.
        chunk_count: the number of chunks.
        chunk_size: tokens in a chunk.

    Raises:
        OptionError: if sums or counts have other shapes.
    """

    columns: Mapping[str, ColumnSums]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = TOKENS

    def __post_init__(self) -> None:
        columns = {name: ColumnSums(*(np.asarray(array_of(part)) for part in pair)) for name, pair in self.columns.items()}
        for name, (sums, counts) in columns.items():
            if sums.ndim != 2 or counts.shape not in ((1,), sums.shape[:1]):
                found = f"{list(sums.shape)} and {list(counts.shape)}"
                raise OptionError(f"{quote(name)}: expected sums [matrices, columns] and a count of each matrix, found {found}")
        object.__setattr__(self, "columns", columns)

    @classmethod
    def open(cls, path: StrPath, *, chunk_size: int = TOKENS) -> ImportanceMatrix:
        """Reads an importance matrix in either form.

        Args:
            path: the file.
            chunk_size: tokens in a chunk, which ``.dat`` does not state. It matters for merging.

        Raises:
            FormatError: if the file is not a valid importance matrix.
            OptionError: if the chunk size is below 1.
            OSError: from the system.
        """
        if chunk_size < 1:
            raise OptionError(f"expected a chunk size of at least 1 token, found {chunk_size}")
        source = open_source(path, mmap=False)
        try:
            if find_format(source) is None:
                return _of_old_file(source, chunk_size)
            with open(source) as file:
                return cls.of_file(file)
        except FormatError as error:
            error.file = error.file or source.name
            raise
        finally:
            source.close()

    @classmethod
    def of_file(cls, file: File) -> ImportanceMatrix:
        """Reads the GGUF form. Raises FormatError if the file is not one."""
        kind = file.metadata.get("general.type")
        if kind != KIND:
            raise FormatError(f"expected {KIND!r}, found {quote(kind)}", "metadata -> general.type")
        columns = {}
        for name in file.tensors:
            matrix = name.removesuffix(SUMS)
            if matrix == name:
                continue
            if matrix + COUNTS not in file.tensors:
                raise FormatError(f"expected a matching tensor {quote(matrix + COUNTS)}, found none", tensor=name)
            sums, counts = (file.tensors[matrix + suffix].numpy().reshape(-1) for suffix in (SUMS, COUNTS))
            if not counts.size or sums.size % counts.size:
                problem = f"expected a multiple of {counts.size} sums (the number of matrices), found {sums.size}"
                raise FormatError(problem, tensor=name)
            with np.errstate(invalid="ignore"):  # NaN
                columns[matrix] = ColumnSums(sums.copy().reshape(counts.size, -1), np.rint(counts).astype(np.int64))
        if not columns:
            raise FormatError("expected the importance of at least one matrix, found none")
        texts = file.metadata.get(DATASETS, ())
        size, count = (_integer(file.metadata.get(key)) for key in (CHUNK_SIZE, CHUNK_COUNT))
        return cls(columns, tuple(texts) if isinstance(texts, list) else (), count, size or TOKENS)

    def save(self, path: StrPath) -> list[str]:
        """Writes the file in the form that the path's ending selects. Matrices keep their order.

        ``.gguf`` holds everything. ``.dat`` loses the counts of experts, the chunk size, matrices
        without data, and all datasets but the last. A ``.dat`` converted to GGUF and back has the
        same bytes, unless it has an entry with 0 calls, lacks the last two fields, or has bytes
        after them. (``llama-imatrix`` rounds twice to float32, so its last bits may differ.)

        Returns:
            The matrices without data, which ``.dat`` lacks.

        Raises:
            OptionError: if the ending is neither, or no matrix is left.
            FormatError: if a number or a name does not fit. GGUF limits names of matrices to 55
                bytes.
            OSError: from the system.
        """
        ending = check_ending(path)
        unused = [name for name, (_, counts) in self.columns.items() if not counts.any()]
        if not self.columns.keys() - (unused if ending == OLD_ENDING else []):
            raise OptionError("expected a matrix with data, found none")
        if ending == GGUF_ENDING:
            Container.build_file(self._gguf(), path, rules=("spec", "ggml"))
            return []
        entries = [self._old_entry(name) for name in self.columns if name not in unused]
        dataset = self.datasets[-1] if self.datasets else ""
        with our_errors():
            stored = OldImatrix.build({"entries": entries, "chunks": self.chunk_count, "dataset": dataset})
        with atomic_write(path) as stream:
            stream.write(stored)
        return unused

    def _gguf(self) -> dict[str, Any]:
        """Returns the regions of the GGUF form. Trailing dims of 1 are omitted, as in ggml."""
        tensors = {}
        for name, (sums, counts) in self.columns.items():
            tensors[name + SUMS] = sums if len(sums) > 1 else sums[0]
            tensors[name + COUNTS] = counts.astype(np.float32).reshape((-1, 1) if len(counts) > 1 else -1)
        return {
            "format": "GGUF",
            "metadata": {
                "general.type": KIND,
                DATASETS: Typed(list(self.datasets), "array[string]"),
                CHUNK_COUNT: Typed(self.chunk_count, "uint32"),
                CHUNK_SIZE: Typed(self.chunk_size, "uint32"),
            },
            "tensor_infos": [
                {"name": name, "dims": list(tensor.shape)[::-1], "dtype": "F32"} for name, tensor in tensors.items()
            ],
            "data": {name: {"weights": tensor} for name, tensor in tensors.items()},
        }

    def _old_entry(self, name: str) -> dict[str, Any]:
        sums, counts = self.columns[name]
        calls = -(-int(counts.max()) // self.chunk_size)
        scaled = np.full(sums.shape, float(calls))
        used = counts != 0
        with np.errstate(all="ignore"):
            scaled[used] = sums[used].astype(np.float64) * calls / counts[used, None]  # exact for one count of whole chunks
            return {"name": name, "calls": calls, "sums": scaled.astype(np.float32).reshape(-1)}

    @classmethod
    def merge(cls, matrices: Iterable[ImportanceMatrix]) -> ImportanceMatrix:
        """Adds up sums, counts and chunks, as ``llama-imatrix --in-file`` does, and sorts by name.

        A single count of a stack applies to each of its matrices. The chunk size is taken from the
        first importance matrix.

        Raises:
            OptionError: if `matrices` is empty, or two have sums of different shapes for a name.
        """
        matrices = list(matrices)
        if not matrices:
            raise OptionError("expected at least one importance matrix, found none")
        columns: dict[str, ColumnSums] = {}
        for matrix in matrices:
            for name, added in matrix.columns.items():
                columns[name] = _add(columns[name], added, name) if name in columns else added
        size = matrices[0].chunk_size
        tokens = sum(matrix.chunk_count * matrix.chunk_size for matrix in matrices)
        datasets = tuple(text for matrix in matrices for text in matrix.datasets)
        return cls(dict(sorted(columns.items())), datasets, tokens // size, size)

    def importance(self) -> dict[str, Array]:
        """Returns the mean squares for `save_file` and `convert`, as `read_importance` does."""
        return {name: columns.means for name, columns in self.columns.items()}

    def statistics(self) -> list[ColumnStatistics]:
        """Returns the statistics of ``llama-imatrix --show-statistics``, in its order.

        Matrices without data are left out.
        """
        return column_statistics(self.columns)


def check_ending(path: StrPath) -> str:
    """Returns the extension, ``.dat`` or ``.gguf``. Raises OptionError for any other."""
    ending = Path(path_text(path)).suffix.lower()
    if ending not in (OLD_ENDING, GGUF_ENDING):
        raise OptionError(f"expected a file that ends in {GGUF_ENDING} or {OLD_ENDING}, found {str(path)!r}")
    return ending


@outside_graphs
def read_importance(path: StrPath) -> dict[str, Array]:
    """Reads an importance matrix.

    Returns:
        Mean squares by name of the matrix, float32 [columns]. For stacked matrices [matrices,
        columns], or one row of all columns if the file does not separate the matrices.

    Raises:
        FormatError: if the file is not a valid importance matrix.
        OSError: from the system.
    """
    return ImportanceMatrix.open(path).importance()


def _of_old_file(source: Source, chunk_size: int) -> ImportanceMatrix:
    with our_errors():
        parsed = OldImatrix._parse(Cursor(source), new_context(True, limits=current()), "(parsing)")
    columns = {}
    for entry in parsed.entries:
        # as llama-imatrix, which guesses the chunk size
        with np.errstate(all="ignore"):
            scaled = np.array(entry.sums[:], np.float32)[None] * np.float32(chunk_size)
        columns[entry.name] = ColumnSums(scaled, np.array([entry.calls * chunk_size]))
    chunks = max(entry.calls for entry in parsed.entries) if parsed.chunks is None else parsed.chunks
    return ImportanceMatrix(columns, (parsed.dataset,) if parsed.dataset else (), chunks, chunk_size)


def _integer(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _add(one: ColumnSums, other: ColumnSums, name: str) -> ColumnSums:
    """Returns the sum. A single count applies to each matrix of a stack."""
    stacks = {len(one.counts), len(other.counts)} - {1}
    if one.sums.size != other.sums.size or len(stacks) > 1:
        shapes = " and ".join(str(list(columns.sums.shape)) for columns in (one, other))
        raise OptionError(f"expected importance matrices of one model, found {shapes} sums for {quote(name)}")
    rows = max(stacks, default=1)
    with np.errstate(all="ignore"):
        return ColumnSums(one.sums.reshape(rows, -1) + other.sums.reshape(rows, -1), one.counts + other.counts)


def with_importance(tensors: Mapping[str, StoredTensor], importance: Mapping[str, Any] | None) -> dict[str, StoredTensor]:
    """Returns the tensors with their importance, if they have one.

    Raises:
        OptionError: if the importance matrix covers none of the tensors.
        TensorError: if an importance does not fit its tensor.
    """
    if importance is None:
        return dict(tensors)
    if not isinstance(importance, Mapping):
        raise OptionError(f"expected a mapping of tensor names to importance tensors, found {quote(importance)}")
    if importance and not importance.keys() & tensors.keys():
        tensors_in_it = "1 other tensor" if len(importance) == 1 else f"{len(importance)} other tensors"
        others = f"it has {tensors_in_it}, such as {quote(next(iter(importance)))}"
        raise OptionError(f"the importance matrix covers none of these tensors ({others}): measure one of this model")
    weighted = dict(tensors)
    for name in tensors.keys() & importance.keys():
        importance_rows(importance[name], tensors[name].shape, name)
        weighted[name] = replace(tensors[name], importance=array_of(importance[name]))
    return weighted
