"""Chooses types by a recipe and the options of llama-quantize."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from glft_schema.codec.type_codes import TypeTable
from glft_schema.errors import SchemeError, quote
from glft_schema.quantizer.ecmascript import compile_pattern, encode
from glft_schema.quantizer.recipe_rules import BLOCK, ModelFacts, Recipe, TensorFacts, TensorRole
from glft_schema.quantizer.recipes import is_kept
from glft_schema.storage.dtypes import is_float
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.fallback_types import divides, fallback
from glft_schema.weights.patterns import names_matching
from glft_schema.weights.requantizing import refusal
from glft_schema.weights.schemes import MEASURE, TypeChoice, as_pairs, choose_type, type_named

FLOATS = ("f32", "f16", "bf16")
Patterns = Sequence[tuple[str, re.Pattern[bytes], str]]  # text, compiled, type
SECOND_EMBEDDING = "per_layer_token_embd.weight"  # here patterns override `embedding_type`


@dataclass(frozen=True)
class RecipeTypes:
    """Chooses types by a recipe and the options of llama-quantize. See `quantize`.

    Attributes:
        recipe: the recipe.
        model: facts of the model.
        matrix: name of the importance matrix, or empty.
        patterns: see `patterns_of`.
        output_type, embedding_type: for ``output.weight`` and for token embeddings, or None.
        keep_output: whether ``output.weight`` keeps its type.
        pure: whether to ignore the recipe's rules.
        allow_requantize: whether quantized tensors may be quantized again.
        in_order: whether tensors keep their order, instead of llama.cpp's loading order.
        keep_floats: whether float tensors that the recipe leaves alone keep their type; otherwise
            they become F32.
        dry_run: whether to collect `problems` instead of raising errors.
        problems: in a dry run, the reasons for refusal, at most one for each type and one for
            `again`.
        again: the types of tensors that are quantized already, by name.
        without: tensors that the matrix lacks, except those that llama-imatrix never measures.
    """

    recipe: Recipe
    model: ModelFacts
    matrix: str = ""
    patterns: Patterns = ()
    output_type: str | None = None
    embedding_type: str | None = None
    keep_output: bool = False
    pure: bool = False
    allow_requantize: bool = False
    in_order: bool = False
    keep_floats: bool = True
    dry_run: bool = False
    problems: dict[str, str] = field(default_factory=dict)
    again: dict[str, TensorType] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)

    def choose(self, tensors: Mapping[str, StoredTensor], types: TypeTable[TensorType]) -> dict[str, TypeChoice]:
        """Returns a type for each tensor, in the order of llama.cpp's loader unless `in_order`.

        Raises:
            SchemeError: if a line of a recipe file matches no tensor, a type cannot store a tensor
                or requires an importance matrix, or a quantized tensor would be quantized again.
        """
        counts: Counter[TensorRole] = Counter()
        named = {name: type_ for key, type_ in self.recipe.tensors.items() for name in names_matching(key, tensors)}
        names = tensors if self.in_order else sorted(tensors, key=loading_order)
        choices = {name: self._choose(name, tensors[name], types, counts, named.get(name)) for name in names}
        if self.again and not self.allow_requantize:
            self._refuse("again", refusal(self.again))
        return choices

    def find_unused(self, names: Sequence[str]) -> list[str]:
        """Returns the patterns that match no name, or all if the recipe ignores patterns."""
        is_ignored, encoded = self.recipe.default in FLOATS, [encode(name) for name in names]
        return [text for text, pattern, _ in self.patterns if is_ignored or not any(map(pattern.search, encoded))]

    def _choose(
        self, name: str, tensor: StoredTensor, types: TypeTable[TensorType], counts: Counter[TensorRole], named: str | None
    ) -> TypeChoice:
        """Returns the type of a tensor; `named` is its type in the recipe file, or None."""
        kept = choose_type(name, tensor, types)
        has_floats = is_float(tensor.dtype)
        is_copied = self.recipe.only_copy or not has_floats
        if is_copied or is_kept(name, len(tensor.shape), self.model, keep_output=self.keep_output):
            type_ = kept.type if self.keep_floats or is_copied else types["f32"]
            asked = types[named] if named and types[named] != type_ else None
            return TypeChoice(type_, f"not {asked.scheme}: llama-quantize keeps its type" if asked else kept.note, asked)
        asked = self._type_of(name, tensor, types, counts, named)
        type_, note = asked, ""
        if not divides(type_, tensor.shape):
            note = f"not {type_.scheme}: {type_.refusal((1, *tensor.shape[-1:]))}"
            type_ = fallback(type_, tensor.shape, types) or types["f16"]
        if type_ != kept.type:
            self._check(name, tensor, type_)
        return TypeChoice(type_, note, asked)

    def _check(self, name: str, tensor: StoredTensor, type_: TensorType) -> None:
        """Raises SchemeError if a tensor cannot get a type; in a dry run, adds to `problems`."""
        is_head = TensorRole.of(name) in (TensorRole.OUTPUT, TensorRole.EMBEDDING)
        needs_importance = type_.needs_importance or (type_.scheme in self.recipe.needs_importance and not is_head)
        problem = ""
        if not type_.takes(tensor.dtype):
            problem = f"tensor {quote(name)} cannot be stored as {type_.scheme}: {type_.dtype_refusal(tensor.dtype)}"
        elif needs_importance and tensor.importance is None:
            found = f"requires an importance matrix, found none{MEASURE}"
            if self.matrix:
                way_out = "measure it, or give it another type (--tensor-type)"
                found = f"requires its importance, which {self.matrix} lacks: {way_out}"
            problem = f"{type_.scheme}, for tensor {quote(name)}, {found}"
        elif tensor.quantized:
            self.again[name] = tensor.quantized
        if self.matrix and type_.takes_importance and tensor.importance is None and not is_head:
            self.without.append(name)
        if problem:
            self._refuse(type_.scheme, problem)

    def _refuse(self, kind: str, problem: str) -> None:
        """Raises SchemeError; in a dry run, adds to `problems`."""
        if not self.dry_run:
            raise SchemeError(problem)
        self.problems.setdefault(kind, problem)

    def _type_of(
        self, name: str, tensor: StoredTensor, types: TypeTable[TensorType], counts: Counter[TensorRole], named: str | None
    ) -> TensorType:
        """Returns the requested type, before fallbacks. Updates `counts` of tensors by role."""
        role, default = TensorRole.of(name), self.recipe.default
        by_pattern = next((type_ for _, pattern, type_ in self.patterns if pattern.search(encode(name))), None)
        given = {TensorRole.EMBEDDING: self.embedding_type, TensorRole.OUTPUT: self.output_type}.get(role)
        if given is not None and not (name == SECOND_EMBEDDING and by_pattern):
            return type_named(given, types)
        if by_pattern and default not in FLOATS:
            return type_named(by_pattern, types)
        if named:
            return types[named]
        if self.pure or default in FLOATS:
            return types[default]
        if role is TensorRole.EMBEDDING and self.model.tied:
            if self.output_type is not None:
                return type_named(self.output_type, types)
            role = TensorRole.OUTPUT
        matrices = tensor.shape[-3] if len(tensor.shape) > 2 else 1
        facts = TensorFacts(name, role, counts[role], matrices, default, divides(types[default], tensor.shape), self.model)
        counts[role] += 1
        return types[self.recipe.type_of(facts)]


def patterns_of(tensor_types: Mapping[str, str] | Sequence[tuple[str, str]]) -> Patterns:
    """Returns regular expressions with types. Raises OptionError for anything else."""
    return [(pattern, compile_pattern(pattern), type_) for pattern, type_ in as_pairs(tensor_types)]


def loading_order(name: str) -> tuple[int, bytes]:
    """Returns the sort key of llama.cpp's loader: the layer, then the name."""
    match = BLOCK.match(name)
    return int(match[1]) if match else -1, encode(name)
