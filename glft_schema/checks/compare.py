"""Comparison of two checkpoints of any formats: their metadata, and their tensors one by one."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from glft_schema.codec.context import LITTLE
from glft_schema.codec.typed_text import STRING, entry_data, texts_of_change, to_text
from glft_schema.codec.typed_values import Typed
from glft_schema.display import VALUE, Part, Progress, Results, chart, format_count, percent, records_table, with_display
from glft_schema.errors import TensorError, safe
from glft_schema.formats.registry import FORMATS, WITH_TYPES
from glft_schema.lazy import outside_graphs
from glft_schema.storage.dtypes import FLOAT64, name_of
from glft_schema.storage.tensor_bytes import array_bytes
from glft_schema.tensor_types.chunks import CHUNK, slices
from glft_schema.tensor_types.conversions import convert
from glft_schema.tensor_types.differences import NumberErrors, errors_of
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.weights.checkpoints import Checkpoint, Weights, open_beside, open_entries
from glft_schema.weights.convert import as_typed, has_types
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.patterns import leave_out

SHOWN = 50  # characters of a value in a row
SAME, CHANGED, RETYPED, RESHAPED, RENAMED = "same", "changed", "retyped", "reshaped", "renamed"
ADDED, REMOVED = "added", "removed"
STATES = (SAME, CHANGED, RETYPED, RESHAPED, RENAMED, ADDED, REMOVED)

# The least signal-to-noise ratio of two encodings of the same weights, in dB. Ternary encodings of
# random weights reach 1.9, all others more; for unrelated weights the ratio is below 0.
SAME_WEIGHTS = 1.0


@with_display
class MetadataChange(NamedTuple):
    """A metadata entry that differs.

    Attributes:
        key: its key.
        before: the value in the first checkpoint, as `Typed` if it is typed; None if added.
        after: the value in the second checkpoint; None if removed.
    """

    key: str
    before: Typed | str | None
    after: Typed | str | None

    @property
    def state(self) -> str:
        """``changed``, ``added`` or ``removed``."""
        return ADDED if self.before is None else REMOVED if self.after is None else CHANGED


@with_display
class TensorVersion(NamedTuple):
    """A tensor of one of the two checkpoints.

    Attributes:
        name: of the tensor.
        type: name of its type.
        shape: its sizes in torch's order.
        nbytes: of its payload.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int


@with_display
class TensorComparison(NamedTuple):
    """A tensor of two checkpoints.

    Attributes:
        state: ``same`` if the stored bytes, type and shape are equal; ``changed`` if only the bytes
            differ; ``retyped``, ``reshaped``, ``renamed``, ``added`` or ``removed``. A renamed
            tensor has the same bytes, or the same values in another type.
        before: the tensor in the first checkpoint, or None.
        after: the tensor in the second checkpoint, or None.
        errors: of the second against the first, if values were compared.
        problem: why values could not be compared, or an empty string.
    """

    state: str
    before: TensorVersion | None
    after: TensorVersion | None
    errors: NumberErrors | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """The name in the second checkpoint, or in the first if the second lacks the tensor."""
        version = self.after or self.before
        assert version is not None
        return version.name

    @property
    def has_same_values(self) -> bool:
        """Whether all values are equal, whatever the name and type."""
        return self.state == SAME or (self.errors is not None and self.errors.is_none)


@with_display
@dataclass(frozen=True)
class Comparison:
    """The differences between two checkpoints.

    Attributes:
        metadata: the entries that differ.
        entries: number of metadata keys in either.
        tensors: all tensors, in the order of the second checkpoint; then those that it lacks.
    """

    metadata: Results[MetadataChange]
    entries: int
    tensors: Results[TensorComparison]

    @property
    def is_same(self) -> bool:
        """Whether neither metadata nor tensors differ. The order of both is ignored."""
        return not self.metadata and all(tensor.state == SAME for tensor in self.tensors)

    @property
    def versions(self) -> tuple[list[TensorVersion], list[TensorVersion]]:
        """The tensors of the first checkpoint, and those of the second."""
        return [one.before for one in self.tensors if one.before], [one.after for one in self.tensors if one.after]

    @property
    def may_be_same(self) -> bool:
        """Whether all tensors in both can be the same weights, in the same or other types."""
        return all(one.has_same_values or _may_be_same(one) for one in self.tensors if one.before and one.after)

    @property
    def not_compared(self) -> int:
        """Number of tensors without a counterpart, or with values that cannot be compared."""
        pairs = ((one.before and one.after, one.problem or (one.errors and one.errors.unlike)) for one in self.tensors)
        return sum(not both or bool(problem) for both, problem in pairs)

    @property
    def is_apart(self) -> bool:
        """Whether no tensor can be compared, although there are some."""
        return self.not_compared == len(self.tensors) > 0

    @cached_property
    def errors(self) -> NumberErrors:
        """The combined errors of all tensors whose values differ."""
        total = NumberErrors()
        for tensor in self.tensors:
            if tensor.errors and not tensor.has_same_values:
                total.include(tensor.errors)
        return total

    @property
    def summary(self) -> list[str]:
        """Returns the differences as sentences: weights, tensors by state and type, metadata."""
        return [self._weights(), *([self._tensors()] if self.tensors else []), self._metadata()]

    @property
    def differing(self) -> Results[TensorComparison]:
        """The differing tensors: those without errors or renamed, then by error, largest first."""

        def order(one: TensorComparison) -> float:
            return one.errors.snr if one.errors and one.state != RENAMED else -math.inf

        return Results(sorted((tensor for tensor in self.tensors if tensor.state != SAME), key=order), "tensor")

    def metadata_rows(self) -> list[tuple[str, ...]]:
        """Returns a header and a row for each entry that differs; nothing if none does."""
        rows = [(safe(c.key), c.state, *texts_of_change(c.before, c.after, SHOWN)) for c in self.metadata]
        return [("key", "metadata", "in A", "in B"), *rows] if rows else []

    def tensor_rows(self) -> list[tuple[str, ...]]:
        """Returns a header and a row for each tensor that differs; nothing if none does."""
        head = ("tensor", "state", "A to B", "RMSE", "relative", "SNR", "cosine", "worst row", "its error")
        rows = [(safe(t.name), t.state, _change_text(t), *_errors_texts(t)) for t in self.differing]
        return [head, *rows] if rows else []

    def data(self) -> dict[str, Any]:
        """Returns the comparison for JSON; equal entries and tensors are only counted."""
        return {
            "same": self.is_same,
            "summary": self.summary,
            "metadata": [
                {"key": c.key, "state": c.state, "a": _value_data(c.before), "b": _value_data(c.after)} for c in self.metadata
            ],
            "same_metadata": self.entries - len(self.metadata),
            "tensors": [
                {
                    "name": t.name,
                    "state": t.state,
                    "a": _version_data(t.before),
                    "b": _version_data(t.after),
                    **({"errors": errors_data(t.errors)} if t.errors else {}),
                    **({"problem": t.problem} if t.problem else {}),
                }
                for t in self.differing
            ],
            "same_tensors": len(self.tensors) - len(self.differing),
            "errors": errors_data(self.errors),
        }

    def _display(self) -> Iterator[Part]:
        yield "; ".join(self.summary)
        errors = [(tensor.name, tensor.errors.relative) for tensor in self.tensors if tensor.errors]
        if bars := [(f"{safe(name)} {error:.4g}", error) for name, error in errors if math.isfinite(error)]:
            yield chart("relative error by tensor, in order", bars, columns=True)
        rows = [
            {"tensor": one.name, "state": one.state, "A": _type(one.before), "B": _type(one.after), "problem": one.problem}
            | {"SNR": f"{one.errors.snr:.1f} dB" if one.errors else ""}
            for one in self.differing
        ]
        yield records_table("tensors that differ, largest error first", rows)
        changes = [MetadataChange(c.key, *texts_of_change(c.before, c.after, VALUE)) for c in self.metadata]
        yield records_table("metadata that differ", changes)

    def _weights(self) -> str:
        states = Counter(tensor.state for tensor in self.tensors)
        sides = [(states[state], side) for side, state in (("A", REMOVED), ("B", ADDED)) if states[state]]
        missing = ", ".join(f"{count:,} only in {side}" for count, side in sides)
        missing = missing.replace(" only", " tensor is only" if missing.startswith("1 ") else " tensors are only", 1)
        common = [tensor for tensor in self.tensors if tensor.before and tensor.after]
        if not common:
            return f"A and B have no tensor in common: {missing}" if missing else "A and B have no tensors"
        subject = f"{missing}; the tensors in both" if missing else "A and B"
        apart = [tensor for tensor in common if not tensor.has_same_values]
        if not apart:
            is_retyped = any(tensor.before.type != tensor.after.type for tensor in common if tensor.before and tensor.after)
            kinds = {"in other types": is_retyped, "under other names": states[RENAMED], "in other bytes": states[CHANGED]}
            return f"{subject} hold the same weights{' and'.join(f' {kind}' for kind, holds in kinds.items() if holds)}"
        counted = sum(tensor.errors is not None for tensor in apart)
        errors, parts = self.errors, []
        if counted and (errors.squares or not errors.unlike):
            parts.append(f"signal-to-noise ratio {errors.snr:.1f} dB over {counted} of {len(common)} tensors")
        if errors.unlike:
            parts.append(format_count(errors.unlike, "NaN or infinity differs", "NaN or infinities differ"))
        ratio = ": " + ", ".join(parts) if parts else ""
        return f"{subject} hold {'the same weights, quantized differently' if self.may_be_same else 'different weights'}{ratio}"

    def _tensors(self) -> str:
        states = Counter(tensor.state for tensor in self.tensors)
        types = Counter(
            f"{tensor.before.type} to {tensor.after.type}"
            for tensor in self.tensors
            if tensor.before and tensor.after and tensor.before.type != tensor.after.type
        )
        pairs = f" ({', '.join(f'{types[pair]} {pair}' for pair in types)})" if types else ""
        counts = ", ".join(f"{states[state]} {state}{pairs if state == RETYPED else ''}" for state in STATES if states[state])
        return f"tensors: {counts}"

    def _metadata(self) -> str:
        states = Counter(change.state for change in self.metadata)
        counts = [f"{states[state]} {state}" for state in (CHANGED, ADDED, REMOVED) if states[state]]
        return f"metadata: {', '.join([f'{self.entries - len(self.metadata)} same', *counts])}"


def _change_text(tensor: TensorComparison) -> str:
    """Describes the change of a tensor: name, type, shape, non-finite numbers, and problem."""
    if not (tensor.before and tensor.after):
        version = tensor.before or tensor.after
        return f"{version.type} {list(version.shape)}" if version else ""
    before, after = tensor.before, tensor.after
    parts = [f"from {safe(before.name)}"] if before.name != after.name else []
    parts += [f"{before.type} to {after.type}"] if before.type != after.type else [after.type]
    parts += [f"{list(before.shape)} to {list(after.shape)}"] if before.shape != after.shape else []
    parts += [f"{tensor.errors.unlike} NaN or infinities"] if tensor.errors and tensor.errors.unlike else []
    return ", ".join([*parts, *([tensor.problem] if tensor.problem else [])])


def _errors_texts(tensor: TensorComparison) -> tuple[str, ...]:
    errors = tensor.errors
    if errors is None:
        return ("",) * 6
    if errors.is_none:
        return ("equal", *("",) * 5)
    row = str(list(errors.worst_row)) if errors.worst_row else ""  # none of a vector
    worst = percent(errors.worst_row_error) if errors.worst_row is not None else ""
    return f"{errors.rmse:.3g}", percent(errors.relative), f"{errors.snr:.1f} dB", f"{errors.cosine:.6f}", row, worst


def _value_data(value: Typed | str | None) -> Any:
    return entry_data(value.type, value.value) if isinstance(value, Typed) else value


def _version_data(version: TensorVersion | None) -> dict[str, Any] | None:
    return version and {"name": version.name, "type": version.type, "shape": list(version.shape), "bytes": version.nbytes}


def errors_data(errors: NumberErrors) -> dict[str, Any]:
    """Returns error measures as JSON data; None for NaN and infinite measures."""
    names = ("rmse", "relative", "snr", "cosine", "largest", *(["worst_row_error"] if errors.worst_row is not None else []))
    measures = {name: value if math.isfinite(value := getattr(errors, name)) else None for name in names}
    row = {} if errors.worst_row is None else {"worst_row": list(errors.worst_row)}
    return {"count": errors.count, "unlike": errors.unlike, **measures, **row}


def size_of(versions: Iterable[TensorVersion]) -> tuple[int, float]:
    """Returns the bytes of the payloads of a checkpoint's tensors, and their bits per weight."""
    sizes = [(version.nbytes, math.prod(version.shape)) for version in versions]
    nbytes, weights = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0)
    return nbytes, 8 * nbytes / max(weights, 1)


def _type(version: TensorVersion | None) -> str:
    return f"{version.type} {list(version.shape)}" if version else ""


def _may_be_same(tensor: TensorComparison) -> bool:
    """Returns whether a tensor's values can be the same weights in another type."""
    errors = tensor.errors
    return tensor.state == RETYPED and errors is not None and not errors.unlike and errors.snr >= SAME_WEIGHTS


@outside_graphs
def compare(one: Weights, other: Weights, *, exclude: Iterable[str] = (), progress: Progress | None = None) -> Comparison:
    """Compares the metadata and tensors of two checkpoints, one tensor at a time.

    Tensors are compared by name. Tensors that only one side has count as renamed if type, shape and
    bytes are equal, or shape and values. The values of tensors that differ are compared in float64.
    Peak memory is a few copies of the largest tensor in float32.

    Args:
        one: the first: a path as for `open_checkpoint`, an open `File`, or tensors by name. A
            Hugging Face folder is mapped to GGUF if the other is a GGUF file.
        other: the second.
        exclude: names or fnmatch patterns of tensors to ignore in both.
        progress: called after each tensor with its name and the share that is done, from 0 to 1.

    Raises:
        OSError: if a file cannot be opened.
        FormatError: if it is not a checkpoint, cannot be mapped, or was truncated meanwhile.
        TensorError: if an entry is not a tensor.
        SchemeError: if a pattern matches no tensor of either.
    """
    before, after = open_entries(one), open_entries(other)
    before, after = open_beside(before, one, after.file), open_beside(after, other, before.file)
    kept = leave_out({**before.tensors, **after.tensors}, exclude)
    first, second = (
        in_memory({name: tensor for name, tensor in side.tensors.items() if name in kept}) for side in (before, after)
    )
    metadata, entries = _compare_metadata(before, after)
    return Comparison(metadata, entries, _compare_tensors(first, second, progress or (lambda name, done: None)))


def _compare_metadata(before: Checkpoint, after: Checkpoint) -> tuple[Results[MetadataChange], int]:
    one, other = _entries(before), _entries(after)
    keys = {**one, **other}
    changes = (
        MetadataChange(key, _short_value(one.get(key)), _short_value(other.get(key)))
        for key in keys
        if _text(one.get(key)) != _text(other.get(key))
    )
    return Results(changes, "change"), len(keys)


def _entries(checkpoint: Checkpoint) -> dict[str, Typed | str]:
    """Returns metadata as typed values, or else as text."""
    entries = checkpoint.own_metadata
    if has_types(entries):
        typed = as_typed(entries, {}, WITH_TYPES.metadata)
        return {key: typed.stored_value(key) for key in typed}
    return dict(entries)


def _text(value: Typed | str | None) -> str | None:
    """Returns a text that is equal for values of equal type and bits. Text counts as a string."""
    return f"{STRING} {json.dumps(value)}" if isinstance(value, str) else value and to_text(value)


def _short_value(value: Typed | str | None) -> Typed | str | None:
    return Typed(value.plain(), value.type) if isinstance(value, Typed) else value


def _compare_tensors(
    first: Mapping[str, StoredTensor], second: Mapping[str, StoredTensor], progress: Progress
) -> Results[TensorComparison]:
    renamed = _find_renames(
        {name: tensor for name, tensor in first.items() if name not in second},
        {name: tensor for name, tensor in second.items() if name not in first},
    )
    total, done, results = sum(tensor.numel for tensor in second.values()) or 1, 0, Results[TensorComparison](noun="tensor")
    for name, tensor in second.items():
        after = _version(name, tensor)
        if name in first:
            results.append(_compare(_version(name, first[name]), first[name], after, tensor))
        elif name in renamed:
            old = renamed[name]
            results.append(TensorComparison(RENAMED, _version(old, first[old]), after, NumberErrors()))
        else:
            results.append(TensorComparison(ADDED, None, after))
        done += tensor.numel
        progress(name, done / total)
    gone = first.keys() - second.keys() - set(renamed.values())
    results += [TensorComparison(REMOVED, _version(name, first[name]), None) for name in first if name in gone]
    return results


def _compare(before: TensorVersion, one: StoredTensor, after: TensorVersion, other: StoredTensor) -> TensorComparison:
    state = RESHAPED if before.shape != after.shape else RETYPED if before.type != after.type else CHANGED
    if state == CHANGED and _digest(one) == _digest(other):
        return TensorComparison(SAME, before, after)
    if state == RESHAPED:
        return TensorComparison(state, before, after, problem="values of different shapes are not compared")
    try:
        if "c" in (one.dtype.kind, other.dtype.kind):
            raise TensorError("complex values are not compared", after.name)
        return TensorComparison(state, before, after, errors_of(other.values(), one.values()))
    except TensorError as error:
        return TensorComparison(state, before, after, problem=error.problem)


def _version(name: str, tensor: StoredTensor) -> TensorVersion:
    nbytes = tensor.file_tensor.nbytes if tensor.file_tensor else tensor.numel * tensor.dtype.itemsize
    return TensorVersion(name, _type_name(tensor), tuple(tensor.shape), nbytes)


def _type_name(tensor: StoredTensor) -> str:
    if tensor.file_tensor:
        return tensor.file_tensor.type.name
    dtype = name_of(tensor.dtype)
    return next((type_.name for format in FORMATS for type_ in format.types if type_.exact == dtype), dtype)


def _digest(tensor: StoredTensor) -> bytes:
    """Returns the SHA-256 of the payload in little-endian order, as files store it."""
    sha256, stored = hashlib.sha256(), tensor.file_tensor
    if stored is None:
        sha256.update(array_bytes(tensor.values()))
    else:
        for piece in stored.pieces(None if stored.type.bytes_only else LITTLE):
            sha256.update(piece)
    return sha256.digest()


def _values(tensor: StoredTensor) -> bytes | None:
    """Returns the SHA-256 of the values as float64; None for complex values and unknown types."""
    if tensor.dtype.kind == "c" or (tensor.file_tensor and tensor.file_tensor.type.bytes_only):
        return None
    sha256, numbers = hashlib.sha256(), tensor.values().reshape(-1)
    for part in slices(tensor.numel, CHUNK):
        sha256.update(array_bytes(convert(numbers[part], FLOAT64)))
    return sha256.digest()


def _find_renames(first: Mapping[str, StoredTensor], second: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Returns new names -> old names of tensors with equal bytes, then with equal values.

    If several tensors are equal, they are paired in their order.
    """
    pairs: dict[str, str] = {}

    def pair(key_of: Any) -> None:
        olds: dict[Hashable, list[str]] = {}
        shapes = {tensor.shape for name, tensor in second.items() if name not in pairs}
        taken = set(pairs.values())
        for name, tensor in first.items():
            if name not in taken and tensor.shape in shapes and (key := key_of(tensor)) is not None:
                olds.setdefault(key, []).append(name)
        shapes = {first[names[0]].shape for names in olds.values()}
        for name, tensor in second.items():
            if name not in pairs and tensor.shape in shapes and (names := olds.get(key_of(tensor))):
                pairs[name] = names.pop(0)

    pair(lambda tensor: (_type_name(tensor), tensor.shape, _digest(tensor)))
    pair(lambda tensor: (values := _values(tensor)) and (tensor.shape, values))
    return pairs
