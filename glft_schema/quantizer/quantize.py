"""Quantizes a model to a GGUF file by a recipe, as llama-quantize does."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.type_codes import TypeTable
from glft_schema.codec.typed_values import Typed
from glft_schema.display import Progress
from glft_schema.errors import OptionError, SchemeError, shown
from glft_schema.files.shards import shard_path
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.lazy import torch
from glft_schema.quantizer.recipe_files import read_recipe
from glft_schema.quantizer.recipes import is_kept, recipe_named
from glft_schema.quantizer.rules import BLOCK, Model, Place, Recipe, Role
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.convert import as_typed, convert
from glft_schema.weights.file_types import divides, fallback
from glft_schema.weights.importance import ImportanceMatrix, with_importance
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.payloads import PlannedPayload, WrittenTensor
from glft_schema.weights.schemes import Choice, Chosen, choose_type, type_named
from glft_schema.weights.similar_keys import warn_of_slips
from glft_schema.weights.stored_tensors import StoredTensor

FLOATS = ("f32", "f16", "bf16")
QUANTIZATION_VERSION, FILE_TYPE = "general.quantization_version", "general.file_type"
VERSION = 2  # of ggml's blocks
MATRIX_KEYS = "quantize.imatrix."
LONGEST = 127  # bytes of a text that llama-quantize adds


@dataclass(frozen=True)
class Quantized:
    """What `quantize` has written, or would write.

    Attributes:
        recipe: the recipe.
        tensors: in the order of the file.
        weights: number of weights.
    """

    recipe: Recipe
    tensors: list[WrittenTensor]
    weights: int

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits of all payloads by number of weights."""
        return 8 * self.nbytes / max(self.weights, 1)


@dataclass(frozen=True)
class RecipeTypes:
    """Chooses types by a recipe and the options of llama-quantize. See `quantize`."""

    recipe: Recipe
    model: Model
    patterns: Sequence[tuple[re.Pattern[str], str]] = ()
    output_type: str | None = None
    embedding_type: str | None = None
    keep_output: bool = False
    pure: bool = False
    allow_requantize: bool = False
    in_order: bool = False  # whether tensors keep their order
    keep_floats: bool = True  # of tensors that the recipe leaves alone; otherwise they become F32

    def choose(self, tensors: Mapping[str, StoredTensor], types: TypeTable[TensorType]) -> dict[str, Choice]:
        """Returns a type for each tensor, in the order of llama.cpp's loader.

        Raises:
            SchemeError: if a line of a recipe file matches no tensor, a type requires an importance
                matrix, or a quantized tensor would be quantized again.
        """
        counts: Counter[Role] = Counter()
        named = {name: type_ for key, type_ in self.recipe.tensors.items() for name in names_matching(key, tensors)}
        names = tensors if self.in_order else sorted(tensors, key=_loading_order)
        return {name: self._choose(name, tensors[name], types, counts, named.get(name)) for name in names}

    def _choose(
        self, name: str, tensor: StoredTensor, types: TypeTable[TensorType], counts: Counter[Role], named: str | None
    ) -> Choice:
        """Returns the type of a tensor; `named` is the one that a recipe file names."""
        kept = choose_type(name, tensor, types)
        floating = tensor.dtype.is_floating_point
        if is_kept(name, len(tensor.shape), self.model, keep_output=self.keep_output) or not floating:
            return kept if self.keep_floats or not floating else Choice(types["f32"])
        type_, note = types[named] if named else self._type_of(name, tensor, types, counts), ""
        if type_ == kept.type:
            return Choice(type_)
        if not divides(type_, tensor.shape) and (smaller := fallback(type_, tensor.shape, types)):
            type_, note = smaller, f"not {type_.scheme}: {type_.refusal((1, *tensor.shape[-1:]))}"
        stored, is_head = tensor.file_tensor, Role.of(name) in (Role.OUTPUT, Role.EMBEDDING)
        needs = type_.needs_importance or (type_.scheme in self.recipe.needs_importance and not is_head)
        if needs and tensor.importance is None:
            raise SchemeError(f"{type_.scheme}, for tensor {shown(name)}, requires an importance matrix, found none")
        if stored is not None and stored.dtype.exact is None and stored.dtype != type_ and not self.allow_requantize:
            problem = f"tensor {shown(name)} is quantized already, as {stored.dtype.scheme}"
            raise SchemeError(f"{problem}; allow_requantize (--allow-requantize) makes it {type_.scheme}")
        return Choice(type_, note)

    def _type_of(self, name: str, tensor: StoredTensor, types: TypeTable[TensorType], counts: Counter[Role]) -> TensorType:
        """Returns the type that is asked for. Advances `counts`, of earlier tensors by role."""
        role, default = Role.of(name), self.recipe.default
        given = {Role.EMBEDDING: self.embedding_type, Role.OUTPUT: self.output_type}.get(role)
        if given is not None:
            return type_named(given, types)
        if default in FLOATS:
            return types[default]
        for pattern, type_ in self.patterns:
            if pattern.search(name):
                return type_named(type_, types)
        if self.pure:
            return types[default]
        if role is Role.EMBEDDING and self.model.tied:
            if self.output_type is not None:
                return type_named(self.output_type, types)
            role = Role.OUTPUT
        matrices = tensor.shape[-3] if len(tensor.shape) > 2 else 1
        place = Place(name, role, counts[role], matrices, default, divides(types[default], tensor.shape), self.model)
        counts[role] += 1
        return types[self.recipe.type_of(place)]


class Prepared(NamedTuple):
    """A model to quantize.

    Attributes:
        checkpoint: the model.
        tensors: without leading dims of one, with their importance.
        has_importance: whether a tensor has one.
        matrix_entries: metadata that names the importance matrix.
    """

    checkpoint: Checkpoint
    tensors: dict[str, StoredTensor]
    has_importance: bool
    matrix_entries: list[tuple[str, Any]]

    @property
    def keeps_floats(self) -> bool:
        """Whether float tensors that a recipe leaves alone keep their type."""
        return self.checkpoint.file is not None and self.checkpoint.file.format is WITH_TYPES

    def added(self, recipe: Recipe, override: Mapping[str, Any] | None = None, *, imatrix_keys: bool = True) -> dict[str, Any]:
        """Returns the entries that the new file gets."""
        added: dict[str, Any] = {QUANTIZATION_VERSION: Typed(VERSION, "uint32"), FILE_TYPE: Typed(recipe.code, "uint32")}
        for key, value in [*(override or {}).items(), *(self.matrix_entries if imatrix_keys else ())]:
            added.pop(key, None)  # llama.cpp moves a key that it sets to the end
            added[key] = Typed(value, "uint32") if type(value) is int else value
        return added

    def entries(self, added: Mapping[str, Any]) -> TypedMetadata:
        """Returns the metadata with entries at its end."""
        entries = as_typed(self.checkpoint.own_metadata, {}, WITH_TYPES.metadata)
        return entries.without(*(key for key in added if key in entries)).with_texts(added)


def prepared(
    source: StrPath | Checkpoint, importance: Any = None, include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> Prepared:
    """Opens a model as `quantize` does, whose arguments these are."""
    checkpoint = source if isinstance(source, Checkpoint) else open_with_metadata(source, target=WITH_TYPES)
    tensors = {name: _without_leading_ones(tensor) for name, tensor in checkpoint.tensors.items()}
    matrix = _matrix(importance)
    columns = _selected(matrix.importance() if isinstance(matrix, ImportanceMatrix) else matrix, include, exclude)
    columns = {name: column for name, column in columns.items() if not _misfits_embedding(name, column, tensors)}
    entries = _matrix_entries(matrix, importance, columns)
    return Prepared(checkpoint, with_importance(tensors, columns), bool(columns), entries)


def quantize(
    source: StrPath | Checkpoint,
    out: StrPath,
    recipe: StrPath | int | Recipe,
    *,
    importance: StrPath | ImportanceMatrix | Mapping[str, torch.Tensor] | None = None,
    imatrix_keys: bool = True,
    include_weights: Iterable[str] = (),
    exclude_weights: Iterable[str] = (),
    tensor_types: Iterable[tuple[str, str]] = (),
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    leave_output_tensor: bool = False,
    pure: bool = False,
    allow_requantize: bool = False,
    keep_split: bool = False,
    override: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Quantized:
    """Quantizes a model to a GGUF file by one of llama-quantize's file types.

    The file has the bytes of the one that llama.cpp's ``llama_model_quantize`` writes, except that
    it keeps an alignment other than 32. Options have the names of llama-quantize's.

    Args:
        source: the model, a GGUF file or a set, or a Hugging Face folder of a known family; or any
            checkpoint with a GGUF file's metadata.
        out: the file to write.
        recipe: a file type such as ``Q4_K_M``, its code, the path of a recipe file, or a `Recipe`.
        importance: an importance matrix, its file, or float32 [columns] by tensor.
        imatrix_keys: add the keys ``quantize.imatrix.*``, which tell where the matrix is from.
        include_weights: use the importance of tensors only whose name contains one of these texts.
        exclude_weights: use no importance of tensors whose name contains one of these texts.
        tensor_types: pairs of a regular expression and a type. The first that is found in a name
            wins over the recipe. Only for recipes with a quantized default.
        output_tensor_type: type of ``output.weight``, or of the tied token embedding.
        token_embedding_type: type of the token embedding.
        leave_output_tensor: keep the type of ``output.weight``.
        pure: give all tensors the recipe's default type.
        allow_requantize: also convert tensors that are quantized already.
        keep_split: write a set, with the tensors of each file of the source's set.
            `out` is then the prefix of the file names, with or without ``.gguf``.
        override: metadata to replace or add; an int is stored as uint32, a float as float32.
        dry_run: only return what would be written.
        progress: called after each tensor with its name and the share written, from 0 to 1.

    Returns:
        Types and sizes.

    Raises:
        OptionError: if a file type, type or pattern is unknown or invalid, or a line of a file.
        SchemeError: if the source lacks a key that recipes need, a type requires an importance
            matrix, or the source is quantized already.
        FormatError, TensorError, OSError: as `convert`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else _recipe(recipe)
    model = prepared(source, importance, include_weights, exclude_weights)
    checkpoint, stored = model.checkpoint, model.tensors
    added = model.added(recipe, override, imatrix_keys=imatrix_keys)
    plain = {key: value.value if isinstance(value, Typed) else value for key, value in added.items()}
    chooser = RecipeTypes(
        recipe,
        Model.of({**checkpoint.metadata, **plain}, stored, model.has_importance),
        patterns=[_pattern(*pair) for pair in tensor_types],
        output_type=output_tensor_type,
        embedding_type=token_embedding_type,
        keep_output=leave_output_tensor,
        pure=pure,
        allow_requantize=allow_requantize,
        in_order=keep_split,
        keep_floats=model.keeps_floats,
    )
    weights = sum(tensor.numel for tensor in stored.values())
    groups = _files_of_set(checkpoint) if keep_split else [[*stored]]
    choices = chooser.choose({name: stored[name] for group in groups for name in group}, WITH_TYPES.types)
    if dry_run:
        planned = [PlannedPayload(name, stored[name], choice).written() for name, choice in choices.items()]
        return Quantized(recipe, planned, weights)
    entries = model.entries(added)
    warn_of_slips((key for key in added if key not in checkpoint.metadata), entries, stacklevel=3)
    written: list[WrittenTensor] = []
    for path, group, metadata in zip(*_parts(out, entries, groups, keep_split), strict=True):
        chosen = Chosen({name: choice for name, choice in choices.items() if name in group})
        part = checkpoint._replace(tensors={name: stored[name] for name in group}, metadata=metadata)
        written += convert(part, path, schemes=chosen, format=WITH_TYPES.name, progress=progress, measure=False)
    return Quantized(recipe, written, weights)


def _recipe(recipe: StrPath | int) -> Recipe:
    """Returns the recipe of a name, a code or a file."""
    is_file = isinstance(recipe, os.PathLike) or (isinstance(recipe, str) and os.path.exists(recipe))
    return read_recipe(recipe) if is_file else recipe_named(recipe)  # type: ignore[arg-type]


def _parts(
    out: StrPath, entries: TypedMetadata, groups: list[list[str]], keep_split: bool
) -> tuple[list[StrPath], list[list[str]], list[TypedMetadata]]:
    """Returns path, names of tensors and metadata of each file to write; the first has all keys."""
    keys, count = WITH_TYPES.shard_keys, len(groups)
    if not keep_split or keys is None:
        return [out], groups, [entries]
    ending, tensors = WITH_TYPES.endings[0], sum(map(len, groups))
    paths: list[StrPath] = [shard_path(os.fspath(out).removesuffix(ending), number, count, ending) for number in range(count)]
    others = [WITH_TYPES.metadata.metadata({})] * (count - 1)
    numbered = [of_file | keys.entries(number, count, tensors) for number, of_file in enumerate([entries, *others])]
    return paths, groups, numbered


def _files_of_set(checkpoint: Checkpoint) -> list[list[str]]:
    """Returns the names of the tensors of each file, by offset. Raises OptionError for one file."""
    shards = checkpoint.file.shards if checkpoint.file else ()
    if len(shards) < 2:
        raise OptionError("expected a file of a set for keep_split (--keep-split), found a single file")
    return [sorted(shard.tensors, key=lambda name: shard.tensors[name].offset) for shard in shards]


def _loading_order(name: str) -> tuple[int, bytes]:
    """Returns the sort key of llama.cpp's loader: the layer, then the name."""
    found = BLOCK.match(name)
    return int(found[1]) if found else -1, name.encode("utf-8", "surrogateescape")


def _without_leading_ones(tensor: StoredTensor) -> StoredTensor:
    """Returns a tensor without leading dims of one, which llama.cpp drops."""
    ones = next((i for i, size in enumerate(tensor.shape[:-1]) if size != 1), max(len(tensor.shape) - 1, 0))
    if not ones:
        return tensor
    shape, load = tensor.shape[ones:], tensor.load
    return replace(tensor, shape=shape, load=lambda: load().reshape(shape))


def _pattern(pattern: str, type_: str) -> tuple[re.Pattern[str], str]:
    try:
        return re.compile(pattern), type_
    except re.error as error:
        raise OptionError(f"expected a regular expression, found {shown(pattern)}: {error}") from None


def _matrix(importance: object) -> Any:
    """Returns an importance matrix or a mapping; opens a file."""
    if importance is None:
        return {}
    return ImportanceMatrix.open(importance) if isinstance(importance, (str, os.PathLike)) else importance


def _selected(columns: Mapping[str, torch.Tensor], include: Iterable[str], exclude: Iterable[str]) -> dict[str, torch.Tensor]:
    include, exclude = list(include), list(exclude)
    if include and exclude:
        raise OptionError("expected include_weights or exclude_weights (--include-weights, --exclude-weights), found both")
    return {
        name: column
        for name, column in columns.items()
        if not any(part in name for part in exclude) and (not include or any(part in name for part in include))
    }


def _misfits_embedding(name: str, column: torch.Tensor, tensors: Mapping[str, StoredTensor]) -> bool:
    """Returns whether `column` is of a token embedding of another width, to be skipped."""
    return Role.of(name) is Role.EMBEDDING and name in tensors and column.numel() != math.prod(tensors[name].shape[-1:])


def _matrix_entries(matrix: Any, importance: object, columns: Mapping[str, torch.Tensor]) -> list[tuple[str, Any]]:
    """Returns the entries that llama-quantize adds if there is an importance matrix."""
    if not columns or not isinstance(matrix, ImportanceMatrix):
        return []
    entries: list[tuple[str, Any]] = []
    if isinstance(importance, (str, os.PathLike)):
        entries.append((MATRIX_KEYS + "file", _cut(os.fspath(importance))))
    if matrix.datasets:
        entries.append((MATRIX_KEYS + "dataset", _cut(matrix.datasets[0])))
    entries.append((MATRIX_KEYS + "entries_count", len(columns)))
    if matrix.chunk_count > 0:
        entries.append((MATRIX_KEYS + "chunks_count", matrix.chunk_count))
    return entries


def _cut(text: str) -> str:
    return os.fsencode(text)[:LONGEST].decode("utf-8", "surrogateescape")
