"""Recipes: the type of each tensor of a model, as a default and a list of rules.

A tensor's name determines its role. A rule gives the tensors of some roles a type if its condition
holds; the last rule that applies wins. Rules count the tensors of a role in the order of the new
file, by default the order of llama.cpp's loader.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from glft_schema.display import with_display
from glft_schema.errors import SchemeError, quote
from glft_schema.families.page import BLOCK_COUNT
from glft_schema.families.pages.every_model import SIZES
from glft_schema.formats.gguf_names import ARCHITECTURE, EMBEDDING, OUTPUT

BLOCK = re.compile(r"blk\.([0-9]{1,9})")  # as llama.cpp reads the name of a layer's tensor


class TensorRole(Enum):
    """The function of a tensor. Values are whole names (the first two) or parts; the first wins."""

    OUTPUT = OUTPUT
    EMBEDDING = f"{EMBEDDING} per_layer_token_embd.weight"
    ATTN_V = "attn_qkv.weight attn_kv_b.weight attn_v.weight"
    ATTN_K = "attn_k.weight"
    ATTN_Q = "attn_q.weight"
    ATTN_OUTPUT = "attn_output.weight"
    FFN_UP = "ffn_up"
    FFN_GATE = "ffn_gate"
    FFN_DOWN = "ffn_down"
    OTHER = ""

    @classmethod
    def of(cls, name: str) -> TensorRole:
        """Returns the role of a tensor by its name."""
        whole = next((role for role in (cls.OUTPUT, cls.EMBEDDING) if name in role.value.split()), None)
        parts = (role for role in list(cls)[2:] if any(part in name for part in role.value.split()))
        return whole or next(parts, cls.OTHER)

    def __str__(self) -> str:
        return self.name.lower()


FFN = (TensorRole.FFN_UP, TensorRole.FFN_GATE, TensorRole.FFN_DOWN)


@dataclass(frozen=True)
class _Numbers:
    """Numbers of a model, by keys of its metadata or as ``numbers["heads"]``, one of `SIZES`."""

    metadata: Mapping[str, Any]
    architecture: str

    def __getitem__(self, size: str) -> int:
        return SIZES[size].value(self)

    def number(self, key: str, default: int | None = 0) -> int:
        """Returns a key's integer, or its array's first. Raises SchemeError for another value."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        value = value[0] if isinstance(value, list) and value else value
        if type(value) is not int:
            raise SchemeError(f"expected an integer at the key {self.architecture}.{key}, found {quote(value)}")
        return value


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model that rules depend on.

    Attributes:
        architecture: ``general.architecture``.
        layers: number of blocks.
        heads, kv_heads: of the first layer.
        experts: number of experts, 0 for a dense model.
        v_like: number of tensors with the role `ATTN_V`.
        tied: whether the output uses the token embedding, because there is no ``output.weight``.
        has_importance: whether there is an importance matrix.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    experts: int
    v_like: int
    tied: bool
    has_importance: bool

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share a key and a value head; 0 if unknown."""
        return self.heads // self.kv_heads if self.kv_heads else 0

    @classmethod
    def of(cls, metadata: Mapping[str, Any], names: Mapping[str, object], has_importance: bool) -> ModelFacts:
        """Returns the facts of a model.

        Args:
            metadata: of a GGUF file.
            names: of its tensors.
            has_importance: whether there is an importance matrix.

        Raises:
            SchemeError: if a key is missing or not an integer.
        """
        architecture = metadata.get(ARCHITECTURE)
        if not isinstance(architecture, str):
            hint = "a recipe needs the keys of a model in GGUF; glft convert --scheme needs none"
            raise SchemeError(f"expected the key general.architecture, found none: {hint}")

        is_encoder = architecture == "clip"  # llama-quantize reads no other key of it
        numbers = _Numbers({} if is_encoder else metadata, architecture)
        return cls(
            architecture=architecture,
            layers=numbers.number(BLOCK_COUNT, 0 if is_encoder else None),
            heads=numbers["heads"],
            kv_heads=numbers["groups"],
            experts=numbers["experts"],
            v_like=sum(TensorRole.of(name) is TensorRole.ATTN_V for name in names),
            tied=OUTPUT not in names,
            has_importance=has_importance,
        )


@dataclass(frozen=True)
class TensorFacts:
    """Facts of a tensor that rules depend on.

    Attributes:
        name: of the tensor.
        role: of the tensor; `OUTPUT` for a tied token embedding.
        index: number of earlier tensors with this role.
        matrices: number of matrices in a stack of experts, otherwise 1.
        type: chosen by the rules so far.
        default_fits: whether the recipe's default type can store rows of this width.
        model: facts of its model.
    """

    name: str
    role: TensorRole
    index: int
    matrices: int
    type: str
    default_fits: bool
    model: ModelFacts

    @property
    def count(self) -> int:
        """Number of tensors with the role `ATTN_V`; for other roles, the number of layers."""
        return self.model.v_like if self.role is TensorRole.ATTN_V else self.model.layers

    @property
    def layer(self) -> int:
        """Layer number: `index`, or with experts, except for `ATTN_V`, the one in the name."""
        if self.role is TensorRole.ATTN_V or self.model.experts < 2:
            return self.index
        match = BLOCK.match(self.name)
        if not match or int(match[1]) >= self.count:
            expected = f"blk.N. with N below {self.count}"
            raise SchemeError(f"expected a name that begins with {expected}, found {quote(self.name)}")
        return int(match[1])


@dataclass(frozen=True)
class Condition:
    """A condition on a tensor, with its text. ``&``, ``|`` and ``~`` combine conditions."""

    text: str
    holds: Callable[[TensorFacts], bool]

    def __and__(self, other: Condition) -> Condition:
        return Condition(f"{self} and {other}", lambda at: self.holds(at) and other.holds(at))

    def __or__(self, other: Condition) -> Condition:
        return Condition(f"({self} or {other})", lambda at: self.holds(at) or other.holds(at))

    def __invert__(self) -> Condition:
        return Condition(f"not {self}", lambda at: not self.holds(at))

    def __str__(self) -> str:
        return self.text


ALWAYS = Condition("", lambda at: True)
MORE_BITS = Condition(
    "more_bits",
    lambda at: at.layer < at.count // 8 or at.layer >= 7 * at.count // 8 or (at.layer - at.count // 8) % 3 == 2,
)
MORE_BITS_TEXT = "the first n/8 layers, the last n/8, and every third one between; of 28: 0-2, 5, 8, 11, 14, 17, 20, 23-27"
MIDDLE = Condition("n/8 <= layer < 7n/8", lambda at: at.count // 8 <= at.layer < 7 * at.count // 8)
IMPORTANCE = Condition("imatrix", lambda at: at.model.has_importance)
STACKED = Condition("a stack of experts", lambda at: at.matrices > 1)
MISFIT = Condition("the default type does not divide the width", lambda at: not at.default_fits)


def first(count: int) -> Condition:
    return Condition(f"the first {count}", lambda at: at.index < count)


def early(part: int) -> Condition:
    return Condition(f"layer < n/{part}", lambda at: at.layer < at.count // part)


def early_by_count(part: int) -> Condition:
    """As `early`, but by `index`, also in models with experts."""
    return Condition(f"index < n/{part}", lambda at: at.index < at.count // part)


def heads_per_kv(least: int) -> Condition:
    return Condition(f"heads per KV head >= {least}", lambda at: at.model.heads_per_kv >= least)


def experts(count: int, compare: Callable[[int, int], bool] = operator.eq) -> Condition:
    sign = {operator.eq: "=", operator.ge: ">="}[compare]  # type: ignore[index]
    return Condition(f"experts {sign} {count}", lambda at: compare(at.model.experts, count))


def architecture(name: str) -> Condition:
    return Condition(name, lambda at: at.model.architecture == name)


def name_matches(*parts: str) -> Condition:
    return Condition(f"the name has one of {', '.join(parts)}", lambda at: any(part in at.name for part in parts))


def so_far(*types: str) -> Condition:
    return Condition(f"one of {', '.join(types)} so far", lambda at: at.type in types)


@dataclass(frozen=True)
class TypeRule:
    """Tensors of some roles get a type, if a condition holds."""

    roles: tuple[TensorRole, ...]
    type: str
    when: Condition = ALWAYS


def rule(roles: TensorRole | tuple[TensorRole, ...], type_: str, when: Condition = ALWAYS) -> TypeRule:
    return TypeRule(roles if isinstance(roles, tuple) else (roles,), type_, when)


@with_display
@dataclass(frozen=True)
class Recipe:
    """The types of a model's tensors.

    Attributes:
        name: of a file type, in upper case, or of a recipe file.
        code: for ``general.file_type``.
        default: type of tensors without a rule.
        rules: the last one that applies wins. Used only if the default is a quantized type.
        needs_importance: types that are refused without an importance matrix.
        tensors: types by name or fnmatch pattern, which override the rules; the last match wins.
        only_copy: whether all tensors keep their types.
    """

    name: str
    code: int
    default: str
    rules: tuple[TypeRule, ...] = ()
    needs_importance: frozenset[str] = frozenset()
    tensors: Mapping[str, str] = field(default_factory=dict)
    only_copy: bool = False

    def type_of(self, facts: TensorFacts) -> str:
        """Applies the rules to a tensor, whose facts must have the default type."""
        for rule_ in self.rules:
            if facts.role in rule_.roles and rule_.when.holds(facts):
                facts = replace(facts, type=rule_.type)
        return facts.type
