"""Plans a quantization: the error of each type for each tensor, and the best mix for a size.

A type's error for a tensor is measured: some rows are encoded, decoded and compared with the
source. The error is the noise-to-signal ratio ``sum(w * (x - y)^2) / sum(w * x^2)``, w being the
importance of a column, or 1. Mixes are compared by the mean of this ratio over all weights. A ratio
does not change with the scale of a tensor, for which the model's other tensors compensate; a sum of
squares would give most bits to tensors with large weights. Each ratio counts by the tensor's number
of weights, so tensors with equal ratios get equal types, whatever their size.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from glft_schema.display import (
    Chart,
    Part,
    Progress,
    Results,
    bytes_by_type,
    format_count,
    records_table,
    size_text,
    with_display,
)
from glft_schema.errors import OptionError, QuantizationWarning, TensorError
from glft_schema.formats.file_types import MOSTLY
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.lazy import outside_graphs
from glft_schema.quantizer.choosing import RecipeTypes
from glft_schema.quantizer.plan_picture import MIX, WIDTH, Point, picture
from glft_schema.quantizer.prepared_model import IN_FLOAT32, PreparedModel, prepare
from glft_schema.quantizer.recipe_rules import ModelFacts, Recipe
from glft_schema.quantizer.recipes import RECIPES, is_kept
from glft_schema.storage.dtypes import FLOAT32, Array, is_float
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.chunks import importance_rows
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensor_types.workers import in_one_thread
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.fallback_types import divides, fallback
from glft_schema.weights.importance import ImportanceMatrix
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.requantizing import note_on_errors
from glft_schema.weights.schemes import type_named

TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "f16")
BY_IMPORTANCE = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")  # only for tensors that have one
ROWS = 64  # rows measured per tensor, by default
MOST_UNITS = 1 << 16  # maximum number of size units in the search for a mix
POINTS = 256  # of the curve of best mixes
GOLDEN = (math.sqrt(5) - 1) / 2


@with_display
class Candidate(NamedTuple):
    """A type for a tensor.

    Attributes:
        type: the type.
        nbytes: bytes of the tensor's payload.
        error: noise-to-signal ratio, weighted by importance.
    """

    type: TensorType
    nbytes: int
    error: float

    @property
    def snr(self) -> float:
        """The signal-to-noise ratio in dB; infinite without errors."""
        return _snr(self.error)


def _snr(error: float) -> float:
    return -10 * math.log10(error) if error else math.inf


@with_display
class TensorPlan(NamedTuple):
    """The types that a tensor can have.

    Attributes:
        name: of the tensor.
        weights: number of weights.
        rows: number of rows that were measured.
        candidates: sorted by size.
    """

    name: str
    weights: int
    rows: int
    candidates: tuple[Candidate, ...]


@with_display
@dataclass(frozen=True)
class Mix:
    """A type for each tensor.

    Attributes:
        chosen: by name of the tensor.
        nbytes: bytes of all payloads.
        bits_per_weight: of all payloads.
        error: mean noise-to-signal ratio over the weights of these tensors.
        size: bytes of the file.
    """

    chosen: Mapping[str, Candidate]
    nbytes: int
    bits_per_weight: float
    error: float
    size: int

    @property
    def snr(self) -> float:
        """The error as a signal-to-noise ratio in dB; infinite without errors."""
        return _snr(self.error)

    @property
    def recipe(self) -> Recipe:
        """The mix as a recipe for `quantize`. Its default is the main type with the most bytes."""
        nbytes = Counter[str]()
        for candidate in self.chosen.values():
            nbytes[candidate.type.scheme] += candidate.nbytes
        default = max((scheme for scheme in nbytes if scheme in MOSTLY), key=nbytes.__getitem__, default="f16")
        tensors = {name: candidate.type.scheme for name, candidate in self.chosen.items()}
        return Recipe("mix", MOSTLY[default], default, tensors=tensors)

    def _display(self) -> Iterator[Part]:
        ratio = f"{self.bits_per_weight:.2f} bits per weight, signal-to-noise ratio {self.snr:.1f} dB"
        yield f"{format_count(self.chosen, 'tensor')}, {ratio}, {size_text(self.size)}"
        yield bytes_by_type((one.type, one.nbytes) for one in self.chosen.values())
        chosen = self.chosen.items()
        rows = [{"tensor": name, "type": one.type, "bytes": one.nbytes, "SNR in dB": one.snr} for name, one in chosen]
        yield records_table("tensors", rows)


@with_display
@dataclass(frozen=True)
class Plan:
    """The measured errors of a model's tensors.

    Attributes:
        tensors: those that llama-quantize quantizes.
        kept_bytes: bytes of all other tensors.
        weights: number of weights of all tensors.
        other_bytes: bytes of the file outside payloads, without the padding after `tensors`.
        recipes: mixes of llama-quantize's file types by name, if all of their types were measured.
        left_out: why `recipes` lacks a file type, by name.
        quantized_before: the types of tensors of the source that are quantized already, by name.
        alignment: payloads are padded to multiples of it.
    """

    tensors: Sequence[TensorPlan]
    kept_bytes: int
    weights: int
    other_bytes: int
    recipes: Mapping[str, Mix] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    quantized_before: Mapping[str, TensorType] = field(default_factory=dict)
    alignment: int = 1

    @property
    def warning(self) -> str:
        """A sentence if the source is quantized already, otherwise empty."""
        return note_on_errors(self.quantized_before)

    def _display(self) -> Iterator[Part]:
        choice = f"{format_count(self.tensors, 'tensor')} and {format_count(self.by_type, 'type')} to choose from"
        yield "; ".join(filter(None, (self.warning, choice)))
        if self.tensors:
            yield Chart(self.picture())
        types = [
            {"type": name, "tensors": len(mix.chosen), "bits per weight": mix.bits_per_weight, "SNR in dB": mix.snr}
            for name, mix in self.compare()
        ]
        yield records_table("one type for all tensors that can have it", types)

    @cached_property
    def by_type(self) -> dict[TensorType, Mix]:
        """For each type, the mix of the tensors that can have it, without the other tensors."""
        types = {candidate.type: None for tensor in self.tensors for candidate in tensor.candidates}
        mixes = {
            type_: self.only({tensor.name: c for tensor in self.tensors for c in tensor.candidates if c.type == type_})
            for type_ in types
        }
        return dict(sorted(mixes.items(), key=lambda item: item[1].bits_per_weight))

    def compare(self, mix: Mix | None = None) -> list[tuple[str, Mix]]:
        """Returns the mixes of `by_type` and a mix, sorted by bits per weight. Types that some
        tensors cannot have come last, because their totals cover fewer tensors."""
        rows = [(type_.name, one) for type_, one in self.by_type.items()]
        rows += [(MIX, self.only(mix.chosen))] if mix else []
        return sorted(rows, key=lambda row: (len(row[1].chosen) < len(self.tensors), row[1].bits_per_weight))

    def only(self, chosen: Mapping[str, Candidate]) -> Mix:
        """Returns types of some tensors as a mix of these tensors alone."""
        weights = sum(tensor.weights for tensor in self.tensors if tensor.name in chosen)
        nbytes = sum(candidate.nbytes for candidate in chosen.values())
        return Mix(chosen, nbytes, 8 * nbytes / max(weights, 1), self._error(chosen), nbytes)

    @cached_property
    def best(self) -> list[tuple[float, float]]:
        """Bits per weight and error of at most `POINTS` + 1 best mixes, from the smallest on."""
        *_, unit, least, _ = self._search(sum(tensor.candidates[-1].nbytes for tensor in self.tensors), 1)
        nbytes, weights = self.smallest.nbytes, max(sum(tensor.weights for tensor in self.tensors), 1)
        units = [*range(0, len(least) - 1, -(-len(least) // POINTS)), len(least) - 1]
        return [(8 * (nbytes + unit * i) / max(self.weights, 1), float(least[i]) / weights) for i in units]

    def picture(self, mix: Mix | None = None, width: int = WIDTH) -> str:
        """Returns an SVG of `width` pixels: best mixes, recipes of quantized types, and a mix."""
        quantizing = {name: one for name, one in self.recipes.items() if not all(c.type.exact for c in one.chosen.values())}
        mixes = {**({MIX: mix} if mix else {}), **quantizing}
        dots = [Point(name, one.bits_per_weight, one.snr) for name, one in mixes.items()]
        return picture([Point("best mix", bits, _snr(error)) for bits, error in self.best], dots, width)

    @property
    def smallest(self) -> Mix:
        """The smallest mix."""
        return self.mix_of({tensor.name: tensor.candidates[0] for tensor in self.tensors})

    def mix(self, *, size: int | None = None, bpw: float | None = None) -> Mix:
        """Returns the mix with the least error within a size limit.

        Solves a multiple-choice knapsack by dynamic programming. The unit is the greatest common
        divisor of all differences in size, so the result is the optimum. If that makes more than
        `MOST_UNITS`, sizes are rounded up to a larger unit, and the result is no worse than the
        optimum for a limit that is smaller by one unit per tensor plus one, and no worse than any
        recipe that fits. What is left goes to better types of single tensors.

        Args:
            size: maximum size of the file in bytes.
            bpw: maximum bits per weight of all payloads, including tensors that keep their type.

        Raises:
            OptionError: unless exactly one limit is given, or if it is below the smallest mix or
                not finite.
        """
        if (size is None) == (bpw is None):
            raise OptionError("expected exactly one of size and bpw (--size, --bpw)")
        if bpw is not None and not math.isfinite(bpw):
            raise OptionError(f"expected a finite number of bits per weight, found {bpw}")
        smallest = self.smallest
        payloads = math.floor(round((bpw or 0) * self.weights / 8, 3)) if size is None else size - self.other_bytes
        most, step = payloads - self.kept_bytes, 1 if size is None else self.alignment
        room = most - _padded(smallest.chosen.values(), step)
        if room < 0:
            limit = f"{size:,} bytes" if size is not None else f"{bpw:g} bits per weight"
            least = f"{smallest.size:,} bytes, {_up(smallest.bits_per_weight):.2f} bits per weight"
            raise OptionError(f"expected at least the size of the smallest mix ({least}), found {limit}")
        fitting = [one.chosen for one in self.recipes.values() if _padded(one.chosen.values(), step) <= most]
        chosen = min([self._best(room, step), *fitting], key=self._error)
        return self.mix_of(self._filled(chosen, most - _padded(chosen.values(), step), step))

    def _filled(self, mix: Mapping[str, Candidate], room: int, step: int) -> dict[str, Candidate]:
        """Returns a mix with better types of single tensors in `room` more bytes, by their gain."""
        chosen, left = dict(mix), -1
        options = [(one.error - mix[tensor.name].error, tensor, one) for tensor in self.tensors for one in tensor.candidates]
        options = sorted(options, key=lambda option: option[0] * option[1].weights)
        while left != room:
            left = room
            for _, tensor, one in options:
                now = chosen[tensor.name]
                cost = _padded([one], step) - _padded([now], step)
                if one.error < now.error and cost <= room:
                    chosen[tensor.name], room = one, room - cost
        return chosen

    def _best(self, room: int, step: int) -> dict[str, Candidate]:
        """Returns the types with the least error in `room` bytes above the smallest mix."""
        options, units, _, least, picks = self._search(room, step)
        chosen, count = [], len(least) - 1
        for useful, cost, pick in zip(reversed(options), reversed(units), reversed(picks), strict=True):
            index = pick[count]
            chosen.append(useful[index])
            count -= cost[index]
        return {tensor.name: one for tensor, one in zip(self.tensors, reversed(chosen), strict=True)}

    def _search(self, room: int, step: int) -> tuple[list[list[Candidate]], list[list[int]], int, np.ndarray, list[np.ndarray]]:
        """Finds the least errors in up to `room` bytes above the smallest mix, of payloads that are
        padded to multiples of `step`.

        Returns:
            The candidates of each tensor, their costs in units, the bytes of a unit, the least
            error of all weights by units of room, and the candidate of each tensor by units of the
            room that it shares with the tensors before it.
        """
        options = [_useful(tensor) for tensor in self.tensors]
        costs = [[_padded([one], step) - _padded(useful[:1], step) for one in useful] for useful in options]
        most = min(room, sum(cost[-1] for cost in costs))
        unit = max(math.gcd(*(one for cost in costs for one in cost)), -(-most // MOST_UNITS), 1)
        units = [[-(-one // unit) for one in cost] for cost in costs]
        count = min(room // unit, sum(cost[-1] for cost in units))
        least = np.zeros(count + 1)
        picks = []
        for tensor, useful, cost in zip(self.tensors, options, units, strict=True):
            errors, pick = np.full(count + 1, np.inf), np.zeros(count + 1, np.uint8)
            for index, one in enumerate(useful):
                if cost[index] > count:
                    break
                found, target = least[: count + 1 - cost[index]] + tensor.weights * one.error, errors[cost[index] :]
                better = found < target
                target[better], pick[cost[index] :][better] = found[better], index
            least = errors
            picks.append(pick)
        return options, units, unit, least, picks

    def mix_of(self, chosen: Mapping[str, Candidate]) -> Mix:
        """Returns a type for each tensor as a mix."""
        nbytes = self.kept_bytes + sum(candidate.nbytes for candidate in chosen.values())
        size = self.other_bytes + self.kept_bytes + _padded(chosen.values(), self.alignment)
        return Mix(chosen, nbytes, 8 * nbytes / max(self.weights, 1), self._error(chosen), size)

    def _error(self, chosen: Mapping[str, Candidate]) -> float:
        weights = {tensor.name: tensor.weights for tensor in self.tensors if tensor.name in chosen}
        return sum(weights[name] * chosen[name].error for name in weights) / max(sum(weights.values()), 1)


@outside_graphs
def plan(
    source: StrPath | Checkpoint,
    *,
    importance: StrPath | ImportanceMatrix | Mapping[str, Any] | None = None,
    types: Iterable[str] | None = None,
    rows: int = ROWS,
    allow_requantize: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Measures the error of types for each tensor that llama-quantize quantizes.

    The tensors are read one at a time. All types are compared on the same rows, which are spread
    evenly over a tensor. A type is not a candidate for a tensor if its blocks do not divide the
    rows, it cannot hold the weights, or it requires an importance that the tensor lacks. A tensor
    without candidates gets the fallback types that `quantize` would give it.

    Args:
        source: the model, as for `quantize`.
        importance: an importance matrix, its file, or float32 [columns] by tensor. It weights the
            errors, and the encoders use it; give the same one to `quantize`.
        types: names of types; by default all k-quants and legacy types, ``iq4_nl``, ``iq4_xs`` and
            ``f16``, and for tensors with an importance the types of 1 to 3 bits.
        rows: number of rows to measure in each tensor, over all matrices of a stack together.
        allow_requantize: also plan tensors that are quantized already.
        progress: called after each tensor with its name and the share that is done, from 0 to 1.

    Raises:
        OptionError: if `rows` is below 1. Other errors as `quantize`.
        TensorError: if none of the types can hold a tensor.
    """
    if rows < 1:
        raise OptionError(f"expected at least 1 row to measure, found {rows}")
    asked = None if types is None else [type_named(name, WITH_TYPES.types) for name in types]
    with open_with_metadata(source, (), WITH_TYPES, None, IN_FLOAT32) as checkpoint:
        return _measure(prepare(checkpoint, importance), asked, rows, allow_requantize, progress)


def _measure(
    model: PreparedModel, asked: list[TensorType] | None, rows: int, allow_requantize: bool, progress: Progress | None
) -> Plan:
    """Returns the plan of a model. The arguments are those of `plan`."""
    table, tensors = WITH_TYPES.types, model.tensors
    facts = ModelFacts.of(model.checkpoint.metadata, tensors, model.has_importance)
    chooser = RecipeTypes(
        Recipe("", 0, "f16"),
        facts,
        allow_requantize=allow_requantize,
        in_order=True,
        keep_floats=model.keeps_floats,
    )
    choices = chooser.choose(tensors, table)
    kept = [name for name, tensor in tensors.items() if is_kept(name, len(tensor.shape), facts) or not is_float(tensor.dtype)]
    sizes = [PlannedPayload(name, tensors[name], choices[name]).nbytes for name in kept]
    plans, done = list[TensorPlan](), 0
    total = sum(tensor.numel for name, tensor in tensors.items() if name not in kept)

    def measure(name: str) -> None:
        plans.append(_plan_tensor(name, tensors[name], _types_for(tensors[name], asked), rows))

    for name in (name for name in tensors if name not in kept):
        in_one_thread(partial(measure, name))
        done += tensors[name].numel
        if progress:
            progress(name, done / max(total, 1))
    weights = sum(tensor.numel for tensor in tensors.values())
    start, alignment = _head(model)
    padding = sum(-nbytes % alignment for nbytes in sizes)
    measured = Plan(Results(plans, "tensor"), sum(sizes), weights, start + padding, {}, {}, chooser.again, alignment)
    return _with_recipes(measured, chooser, tensors)


def _with_recipes(planned: Plan, chooser: RecipeTypes, tensors: Mapping[str, StoredTensor]) -> Plan:
    """Adds the mix of each recipe, or the reason why it has none."""
    candidates = {tensor.name: {one.type: one for one in tensor.candidates} for tensor in planned.tensors}
    mixes, left_out = dict[str, Mix](), dict[str, str]()
    for recipe in RECIPES:
        of_recipe = replace(chooser, recipe=recipe, in_order=False, dry_run=True, problems={}, again={})
        choices = of_recipe.choose(tensors, WITH_TYPES.types)
        missing = dict.fromkeys(
            choices[name].type.scheme for name, types in candidates.items() if choices[name].type not in types
        )
        if of_recipe.problems:
            left_out[recipe.name] = "requires an importance matrix (--imatrix)"
        elif missing:
            left_out[recipe.name] = f"not measured: {', '.join(missing)}"
        elif candidates:
            mixes[recipe.name] = planned.mix_of({name: types[choices[name].type] for name, types in candidates.items()})
    return replace(planned, recipes=mixes, left_out=left_out)


def _types_for(tensor: StoredTensor, asked: list[TensorType] | None) -> list[TensorType]:
    """Returns the types that the rows and the importance of a tensor allow."""
    table, has_importance = WITH_TYPES.types, tensor.importance is not None
    if asked is None:
        asked = [table[name] for name in (*TYPES, *(BY_IMPORTANCE if has_importance else ()))]
    possible = [type_ for type_ in asked if divides(type_, tensor.shape) and (has_importance or not type_.needs_importance)]
    return possible or [smaller for type_ in asked if (smaller := fallback(type_, tensor.shape, table))]


def _plan_tensor(name: str, tensor: StoredTensor, types: Iterable[TensorType], rows: int) -> TensorPlan:
    """Measures the types of a tensor. Raises TensorError if none can hold it."""
    sample, importance = _sample(name, tensor, rows)
    weights = np.float64(1) if importance is None else importance[:, None].astype(np.float64)
    with np.errstate(all="ignore"):
        energy = float((weights * np.square(sample, dtype=np.float64)).sum())
    candidates, refusals = [], ["no type was asked for"]
    for type_ in dict.fromkeys(types):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", QuantizationWarning)  # lost weights count as errors
                fields = type_.encode(sample, name, importance=importance)
        except TensorError as error:
            refusals.append(f"{type_.scheme}: {error.problem}")
            continue
        decoded = type_.decode(fields, math.prod(sample.shape[1:]), dtype=FLOAT32).reshape(sample.shape)
        with np.errstate(all="ignore"):
            noise = float((weights * np.square(np.subtract(decoded, sample, dtype=np.float64))).sum())
        ratio = noise / energy if energy else float(noise > 0)
        if not math.isfinite(ratio):
            refusals.append(f"{type_.scheme}: expected finite weights")
            continue
        candidates.append(Candidate(type_, type_.nbytes(tensor.shape), ratio))
    if not candidates:
        raise TensorError(f"none of the types can hold it; {refusals[-1]}", name)
    ordered = tuple(sorted(candidates, key=lambda candidate: (candidate.nbytes, candidate.error)))
    return TensorPlan(name, tensor.numel, sample.shape[0] * sample.shape[1], ordered)


def _sample(name: str, tensor: StoredTensor, rows: int) -> tuple[Array, Array | None]:
    """Returns rows of a tensor, [matrices, rows, in], and their importance, [1 or matrices, in]."""
    stacks = tensor.shape[0] if len(tensor.shape) > 2 else 1
    count = math.prod(tensor.shape[:-1]) // max(stacks, 1)
    numbers = tensor.values().reshape(stacks, count, tensor.shape[-1])
    sample = float32_of(numbers[:, spread_rows(count, -(-rows // max(stacks, 1)))])
    importance = None
    if tensor.importance is not None:
        importance = importance_rows(tensor.importance, tensor.shape, name)
    return sample, importance


def spread_rows(count: int, limit: int) -> list[int]:
    """Returns at most `limit` of `count` row numbers, one from each of `limit` equal parts.

    The position within a part varies, so that the rows do not all belong to the same dim of their
    attention heads.
    """
    if count <= limit:
        return list(range(count))
    return sorted({int((part + part * GOLDEN % 1) * count / limit) for part in range(limit)})


def _head(model: PreparedModel) -> tuple[int, int]:
    """Returns the bytes of a file before its payloads, and its alignment."""
    types = WITH_TYPES.types
    rows = [
        {"name": name, "dims": WITH_TYPES.dims_of(tensor.shape), "dtype": types["f16"], "offset": 0}
        for name, tensor in model.tensors.items()
    ]
    regions = {"header": {}, "metadata": model.entries(model.new_entries(Recipe("", 0, "f16"))), WITH_TYPES.table: rows}
    head, built = WITH_TYPES.build(regions)
    alignment = int(built.get("alignment", 1))
    return len(head) + -len(head) % alignment, alignment


def _padded(candidates: Iterable[Candidate], step: int) -> int:
    """Returns the bytes of payloads that are padded to multiples of `step`."""
    return sum(-(-candidate.nbytes // step) * step for candidate in candidates)


def _useful(tensor: TensorPlan) -> list[Candidate]:
    """Returns the candidates that have less error than all smaller ones."""
    useful = list[Candidate]()
    for candidate in tensor.candidates:
        if not useful or candidate.error < useful[-1].error:
            useful.append(candidate)
    return useful


def _up(number: float) -> float:
    """Rounds up to hundredths."""
    return math.ceil(100 * number) / 100
