"""Quantizes a model to a GGUF file by a recipe, as llama-quantize does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.display import Part, Progress, Results, bytes_by_type, format_count, records_table, size_text, with_display
from glft_schema.errors import OptionError, quote, safe
from glft_schema.families.page import BLOCK_COUNT
from glft_schema.files.shards import shard_path
from glft_schema.formats.gguf_names import scale_of
from glft_schema.formats.registry import WITH_TYPES, format_with, refuse_ending
from glft_schema.lazy import outside_graphs
from glft_schema.quantizer.choosing import RecipeTypes, patterns_of
from glft_schema.quantizer.prepared_model import IN_FLOAT32, prepare
from glft_schema.quantizer.pruning import renumber
from glft_schema.quantizer.recipe_files import read_recipe
from glft_schema.quantizer.recipe_rules import ModelFacts, Recipe
from glft_schema.quantizer.recipes import recipe_named
from glft_schema.storage.atomic import new_files
from glft_schema.storage.locations import is_remote, shown
from glft_schema.storage.source import StrPath
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.convert import check_ranks, plan_conversion
from glft_schema.weights.importance import ImportanceMatrix
from glft_schema.weights.patterns import first_names
from glft_schema.weights.payloads import PlannedPayload, WrittenTensor
from glft_schema.weights.save import FilePlan, Writer, Writing
from glft_schema.weights.schemes import Schemes
from glft_schema.weights.similar_keys import warn_of_typos
from glft_schema.weights.tensor_scales import with_search


@with_display
@dataclass(frozen=True)
class Quantized(Sequence[WrittenTensor]):
    """The result of quantizing a model, or of a dry run: a sequence of its tensors.

    Attributes:
        recipe: the recipe.
        tensors: in the order of the file.
        weights: number of weights.
        notes: options without effect, and in a dry run the reasons for refusing the job.
        refused: these reasons alone.
        family: of the Hugging Face folder that was mapped to GGUF, or None.
        converter: llama.cpp's converter that mapped the folder, or None.
    """

    recipe: Recipe
    tensors: Results[WrittenTensor]
    weights: int
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    family: str | None = None
    converter: str | None = None

    def __getitem__(self, index: Any) -> Any:
        return self.tensors[index]

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits of all payloads divided by the number of weights."""
        return 8 * self.nbytes / max(self.weights, 1)

    def _display(self) -> Iterator[Part]:
        size = f"{size_text(self.nbytes)}, {self.bits_per_weight:.2f} bits per weight"
        yield f"{self.recipe.name}, {format_count(self.tensors, 'tensor')}, {size}"
        yield from (safe(note, 200) for note in self.notes[:5])
        yield bytes_by_type((tensor.type, tensor.nbytes) for tensor in self.tensors)
        yield records_table("tensors", self.tensors)


@dataclass(frozen=True)
class Quantizing:
    """Options of a quantized model: arguments of `quantize`."""

    recipe: Recipe
    importance: StrPath | ImportanceMatrix | Mapping[str, Any] | None = None
    imatrix_keys: bool = True
    include_weights: str | Iterable[str] = ()
    exclude_weights: str | Iterable[str] = ()
    tensor_types: Schemes = ()
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    leave_output_tensor: bool = False
    pure: bool = False
    prune_layers: Iterable[int] = ()
    allow_requantize: bool = False
    search: bool = False
    keep_split: bool = False
    override: Mapping[str, Any] | None = None
    rules: str | Iterable[str] | None = None
    dry_run: bool = False
    progress: Progress | None = None


@outside_graphs
def quantize(
    source: StrPath | Checkpoint,
    out: StrPath,
    recipe: StrPath | int | Recipe,
    *,
    importance: StrPath | ImportanceMatrix | Mapping[str, Any] | None = None,
    imatrix_keys: bool = True,
    include_weights: str | Iterable[str] = (),
    exclude_weights: str | Iterable[str] = (),
    tensor_types: Schemes = (),
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    leave_output_tensor: bool = False,
    pure: bool = False,
    prune_layers: Iterable[int] = (),
    allow_requantize: bool = False,
    search: bool = False,
    keep_split: bool = False,
    like: StrPath | None = None,
    override: Mapping[str, Any] | None = None,
    rules: str | Iterable[str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    converter: StrPath | None = None,
    trust_remote_code: bool = False,
    ranks: Writer | None = None,
) -> Quantized:
    """Quantizes a model to a GGUF file by one of llama-quantize's file types.

    The file is byte for byte what llama.cpp's ``llama_model_quantize`` writes, except that an
    alignment other than 32 is kept. Arguments have the names of llama-quantize's options.

    Args:
        source: the model: a GGUF file, a set, a Hugging Face folder of a known family, or any
            checkpoint with the metadata of a GGUF model (see `like`).
        out: the file to write.
        recipe: a file type such as ``Q4_K_M``, its code, the path of a recipe file, a `Recipe`, or
            ``COPY``, with which all tensors keep their types.
        importance: an importance matrix, its file, or float32 [columns] by tensor.
        imatrix_keys: add the keys ``quantize.imatrix.*``, which record the source of the matrix.
        include_weights: use importance only for tensors whose name contains one of these texts.
        exclude_weights: do not use importance for tensors whose name contains one of these texts.
        tensor_types: regular expressions of C++ (ECMAScript) with types. The first one found in a
            name overrides the recipe. No effect if the recipe's main type is a float type.
        output_tensor_type: type of ``output.weight``, or of the tied token embedding.
        token_embedding_type: type of the token embedding.
        leave_output_tensor: keep the type of ``output.weight``.
        pure: ignore the recipe's rules, and use its default type.
        prune_layers: numbers of layers to omit. The others are renumbered; importance belongs to
            the old names, all other options to the new ones.
        allow_requantize: also convert tensors that are quantized already.
        search: as for `save_file`; llama-quantize has no such option.
        keep_split: write a set of files, split like the source's set. `out` is then the prefix of
            the file names, with or without ``.gguf``. None of the files may exist.
        like: a GGUF model whose names and metadata the new file gets; see `open_with_metadata`.
        override: metadata to replace or add; an int is stored as uint32, a float as float32.
        rules: the rule sets that the file must satisfy, as for `convert`.
        dry_run: return the result without writing. If the job would be refused for its types, the
            result's `notes` have the reasons.
        progress: called after each tensor with its name and the share written, from 0 to 1.
        converter: llama.cpp's converter, as for `convert`.
        trust_remote_code: as for `convert`.
        ranks: processes that write the file together; see `glft_schema.distributed.together`.

    Returns:
        The tensors, with their types and sizes.

    Raises:
        OptionError: if a file type, a type, a pattern or a line of a recipe file is invalid; if
            `out` has another format's ending, the importance matrix is not of this model, or a file
            of a set exists.
        SchemeError: if the source lacks a key that recipes need, a type cannot store a tensor or
            requires an importance matrix, a line of a recipe file matches no tensor, or tensors are
            quantized already, unless `allow_requantize`.
        FormatError, TensorError, OSError: as `convert`.
    """
    refuse_ending(out, WITH_TYPES, "quantize writes")
    recipe = as_recipe(recipe)
    mapping = IN_FLOAT32._replace(path=converter, trust_remote_code=trust_remote_code)
    with open_with_metadata(source, (), WITH_TYPES, like, mapping) as checkpoint:
        check_ranks(checkpoint, ranks)
        job = Quantizing(
            recipe,
            importance,
            imatrix_keys,
            include_weights,
            exclude_weights,
            tensor_types,
            output_tensor_type,
            token_embedding_type,
            leave_output_tensor,
            pure,
            prune_layers,
            allow_requantize,
            search,
            keep_split,
            override,
            rules,
            dry_run,
            progress,
        )
        plans, result = plan_quantization(checkpoint, out, job)
        if dry_run:
            return result
        with new_files([*plans] if keep_split else ()) as created:
            written: list[WrittenTensor] = []
            for path, plan in plans.items():
                written += plan.write(path, ranks)
                created.append(path)
        return replace(result, tensors=Results(written, "tensor"))


def plan_quantization(checkpoint: Checkpoint, out: StrPath, job: Quantizing) -> tuple[dict[StrPath, FilePlan], Quantized]:
    """Plans the files that `quantize` writes from an open checkpoint, and the result, which has
    tensors only in a dry run. Errors and warnings are those of `quantize`.

    Args:
        checkpoint: the source.
        out: the file to write, or the prefix of a set.
        job: how the model is to be quantized.

    Returns:
        The plans, by path; none for a dry run.
    """
    model = prepare(checkpoint, job.importance, job.include_weights, job.exclude_weights)
    names, layers = renumber(model.tensors, job.prune_layers)
    stored = {new: model.tensors[name] for name, new in names.items()}
    added = model.new_entries(job.recipe, job.override, imatrix_keys=job.imatrix_keys)
    entries = model.entries(added)
    facts = ModelFacts.of(entries, stored, model.has_importance)
    if len(names) < len(model.tensors):
        entries = entries.without(key := f"{facts.architecture}.{BLOCK_COUNT}") | {key: Typed(layers, "uint32")}
    chooser = RecipeTypes(
        job.recipe,
        facts,
        model.used.name,
        patterns=patterns_of(job.tensor_types),
        output_type=job.output_tensor_type,
        embedding_type=job.token_embedding_type,
        keep_output=job.leave_output_tensor,
        pure=job.pure,
        allow_requantize=job.allow_requantize,
        in_order=job.keep_split,
        keep_floats=model.keeps_floats,
        dry_run=job.dry_run,
    )
    groups = _files_of_set(checkpoint) if job.keep_split else [[*names]]
    groups = [group for files in groups if (group := [names[name] for name in files if name in names])]
    choices = chooser.choose({name: stored[name] for group in groups for name in group}, WITH_TYPES.types)
    notes, refused = _notes(chooser, [*stored]), tuple(chooser.problems.values())
    weights = sum(tensor.numel for tensor in stored.values())
    if job.search:
        stored, choices = with_search(stored, choices, entries, WITH_TYPES.types)
        beside = {name: [name, scale_of(name)] if choice.scale else [name] for name, choice in choices.items()}
        groups = [[part for name in group for part in beside[name]] for group in groups]
    planned = (PlannedPayload(name, stored[name], choice).report() for name, choice in choices.items() if job.dry_run)
    reports = Results(planned, "tensor")
    result = Quantized(job.recipe, reports, weights, tuple(notes), refused, checkpoint.family, checkpoint.converter)
    if job.dry_run:
        return {}, result
    warn_of_typos((key for key in added if key not in checkpoint.metadata), entries)
    paths, metadata = _parts(out, entries, groups) if job.keep_split else ([out], [entries])
    plans = dict[StrPath, FilePlan]()
    for number, (path, group) in enumerate(zip(paths, groups, strict=True)):
        part: dict[str, Any] = {name: stored[name] for name in group}
        chosen = {name: choice for name, choice in choices.items() if name in part}
        writing = Writing(rules=job.rules, progress=_share_of(job.progress, number, len(paths)) if job.progress else None)
        source = checkpoint._replace(tensors=part, metadata=metadata[number])
        plans[path] = plan_conversion(source, WITH_TYPES, writing, choices=chosen)
    return plans, result


def _notes(chooser: RecipeTypes, names: list[str]) -> list[str]:
    """Returns what a user should know about the types that were chosen for tensors."""
    notes = [f"would be refused: {problem}" for problem in chooser.problems.values()]
    notes += [f"no tensor gets its type by the pattern {quote(pattern)}" for pattern in chooser.find_unused(names)]
    if bare := chooser.without:
        notes.append(f"without importance, which {chooser.matrix} lacks: {format_count(bare, 'tensor')}: {first_names(bare)}")
    return notes


def as_recipe(recipe: StrPath | int | Recipe) -> Recipe:
    """Returns a recipe by name, code or path. Raises OptionError if there is none."""
    if isinstance(recipe, Recipe):
        return recipe
    try:
        return recipe_named(recipe)
    except OptionError:
        if isinstance(recipe, (str, os.PathLike)) and format_with(recipe):
            problem = f"expected a file type or a recipe file after the output, found the weights file {quote(shown(recipe))}"
            raise OptionError(problem) from None
        if isinstance(recipe, os.PathLike) or (isinstance(recipe, str) and (is_remote(recipe) or os.path.isfile(recipe))):
            return read_recipe(recipe)
        raise


def _parts(out: StrPath, entries: TypedMetadata, groups: list[list[str]]) -> tuple[list[StrPath], list[TypedMetadata]]:
    """Returns path and metadata of each file of a set; the first has all keys."""
    keys, count, ending = WITH_TYPES.shard_keys, len(groups), WITH_TYPES.endings[0]
    assert keys is not None
    paths: list[StrPath] = [shard_path(os.fspath(out).removesuffix(ending), number, count, ending) for number in range(count)]
    others = [WITH_TYPES.metadata.metadata({})] * (count - 1)
    tensors = sum(map(len, groups))
    return paths, [of_file | keys.entries(number, count, tensors) for number, of_file in enumerate([entries, *others])]


def _share_of(progress: Progress, number: int, count: int) -> Progress:
    """Returns a callback that reports the progress of one file as a share of all files."""
    return lambda name, share: progress(name, (number + share) / count)


def _files_of_set(checkpoint: Checkpoint) -> list[list[str]]:
    """Returns each file's tensor names by offset. Raises OptionError if there is no set."""
    shards = checkpoint.file.shards if checkpoint.file else ()
    if len(shards) < 2:
        raise OptionError("keep_split (--keep-split) requires a set of GGUF files as the source")
    return [sorted(shard.tensors, key=lambda name: shard.tensors[name].offset) for shard in shards]
