"""Provenance: whether the payloads of a file are the encodings of a base model's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from glft_schema.checks.compare import errors_data
from glft_schema.codec.context import LITTLE
from glft_schema.codec.typed_text import as_json_value
from glft_schema.display import align, percent
from glft_schema.errors import TensorError, safe
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.storage.source import BytesSource, StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.differences import NumberErrors, errors_of
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.tensors.tensor import PayloadLocation, Tensor
from glft_schema.weights.checkpoints import Weights, open_beside, open_entries
from glft_schema.weights.importance import with_importance
from glft_schema.weights.in_memory import in_memory
from glft_schema.weights.patterns import leave_out
from glft_schema.weights.payloads import PlannedPayload
from glft_schema.weights.schemes import TypeChoice

COPIED, EXACT, UNKNOWN, DIFFERS, EXTRA, MISSING = "copied", "exact", "unknown", "differs", "extra", "missing"
VERDICTS = (COPIED, EXACT, UNKNOWN, DIFFERS, EXTRA, MISSING)
WITHOUT_IMPORTANCE = "the encoder may have used an importance matrix"


class Derivation(NamedTuple):
    """A tensor of a file, checked against the base that the file is said to be made from.

    Attributes:
        name: of the tensor.
        type: its type in the file; None if missing.
        verdict: ``copied`` if the base has its bytes; ``exact`` if encoding the base's tensor gives
            its bytes; ``differs`` if not; ``unknown`` if it cannot be decided; ``extra`` if only
            the file, ``missing`` if only the base has it.
        problem: why the bytes differ or could not be compared, or an empty string.
        differing: the share of bytes that differ from the encoding, from 0 to 1, or None.
        from_encoding: errors of the tensor against the encoding, if bytes differ.
        from_base: errors of the tensor against the base, if bytes differ.
        encoding: errors of the encoding against the base, if bytes differ.
    """

    name: str
    type: TensorType | None
    verdict: str
    problem: str = ""
    differing: float | None = None
    from_encoding: NumberErrors | None = None
    from_base: NumberErrors | None = None
    encoding: NumberErrors | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether the tensor is the base's, copied or encoded."""
        return self.verdict in (COPIED, EXACT)

    def is_within(self, tolerance: float | None) -> bool:
        """Whether the tensor is confirmed, or no weight differs by more from the encoding."""
        errors = self.from_encoding
        is_close = tolerance is not None and errors is not None and not errors.unlike and errors.largest <= tolerance
        return self.is_confirmed or is_close

    def data(self) -> dict[str, Any]:
        """Returns the tensor for JSON."""
        known = {"name": self.name, "type": self.type and self.type.name, "verdict": self.verdict, "problem": self.problem}
        shares = {} if self.differing is None else {"differing": self.differing}
        errors = {"from_encoding": self.from_encoding, "from_base": self.from_base, "encoding": self.encoding}
        return known | shares | {name: errors_data(one) for name, one in errors.items() if one}


class DerivationReport(NamedTuple):
    """The result of `check_derivation` for a file.

    Attributes:
        file: its name.
        base: the name of the base.
        importance: the name of the importance matrix, or None.
        tolerance: the largest difference of a weight that is accepted, or None.
        tensors: all tensors.
    """

    file: str
    base: str
    importance: str | None
    tolerance: float | None
    tensors: list[Derivation]

    @property
    def holds(self) -> bool:
        """Whether all tensors are the base's."""
        return all(one.is_within(self.tolerance) for one in self.tensors)

    def lines(self) -> list[str]:
        """Returns a summary, a table of the tensors that are not the base's, and advice."""
        counts = Counter(one.verdict for one in self.tensors)
        unconfirmed = [one for one in self.tensors if not one.is_within(self.tolerance)]
        close = sum(one.is_within(self.tolerance) and not one.is_confirmed for one in self.tensors)
        parts = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        parts += f" ({close} within {self.tolerance:g})" if close else ""
        verdict = "is not confirmed to derive" if unconfirmed else "derives"
        lines = [f"{safe(self.file)} {verdict} from {self.base}: {parts or 'no tensors'}"]
        if unconfirmed:
            head = ("tensor", "type", "verdict", "problem", "other bytes", "from encoding", "from BASE", "encoding from BASE")
            rows = [
                (safe(d.name), str(d.type or ""), d.verdict, d.problem, percent(d.differing), *map(_relative, d[-3:]))
                for d in unconfirmed
            ]
            lines += align([head, *rows], right=4)
        if any(one.problem == WITHOUT_IMPORTANCE for one in unconfirmed):
            lines.append("give the importance matrix with --imatrix to check tensors that may have used one")
        return lines

    def data(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        tolerance = None if self.tolerance is None else as_json_value(self.tolerance)
        about = {"base": self.base, "imatrix": self.importance, "tolerance": tolerance}
        counts = dict(Counter(one.verdict for one in self.tensors))
        return {**about, "counts": counts, "tensors": [one.data() for one in self.tensors]}


def _relative(errors: NumberErrors | None) -> str:
    return percent(errors.relative if errors else None)


def check_derivation(
    file: File | StrPath, base: Weights, *, importance: Mapping[str, Any] | None = None, exclude: Iterable[str] = ()
) -> Iterator[Derivation]:
    """Encodes each tensor of `base` with its type in `file`, and compares the bytes.

    Without an importance matrix, a tensor that differs is ``unknown`` if the encoder of its type
    can use one. Big-endian payloads are compared in little-endian order. Peak memory is a few
    copies of the largest tensor in float32.

    Args:
        file: an open file or a path.
        base: a path as for `open_checkpoint`, an open `File`, or tensors by name. A Hugging Face
            folder is mapped to GGUF if the file is GGUF.
        importance: the importance matrix that `file` was made with; see
            `glft_schema.read_importance`.
        exclude: names or fnmatch patterns of tensors to ignore in both.

    Returns:
        An iterator of the tensors in file order, followed by those that the file lacks.

    Raises:
        OptionError: if the importance covers none of the base's tensors.
        TensorError: if an importance does not fit its tensor, or an entry of the base is not a
            tensor.
        SchemeError: if a pattern matches no tensor of either.
        FormatError, OSError: if a file cannot be read.
    """
    file = as_file(file)
    entries = open_beside(open_entries(base), base, file).tensors
    kept = leave_out({**entries, **file.tensors}, exclude)
    tensors = in_memory({name: tensor for name, tensor in entries.items() if name in kept})
    weighted = with_importance(tensors, importance)
    return _derivations({name: file.tensors[name] for name in file.tensors if name in kept}, weighted, importance is not None)


def _derivations(tensors: Mapping[str, Tensor], base: Mapping[str, StoredTensor], has_importance: bool) -> Iterator[Derivation]:
    for name, tensor in tensors.items():
        if name not in base:
            yield Derivation(name, tensor.type, EXTRA, "only in the file")
        elif base[name].shape != tensor.shape:
            problem = f"expected shape {list(base[name].shape)}, found {list(tensor.shape)}"
            yield Derivation(name, tensor.type, DIFFERS, problem)
        else:
            yield _derivation(tensor, base[name], has_importance)
    for name in base:
        if name not in tensors:
            yield Derivation(name, None, MISSING, "not in the file")


def _derivation(tensor: Tensor, base: StoredTensor, has_importance: bool) -> Derivation:
    type_ = tensor.type
    payload = PlannedPayload(tensor.name, base, TypeChoice(type_))
    if type_.bytes_only and payload.copy_of is None:
        return Derivation(tensor.name, type_, UNKNOWN, type_.bytes_only)
    is_unknown = type_.takes_importance and not has_importance and payload.copy_of is None
    try:
        encoded = payload.to_bytes()
        stored = b"".join(tensor.pieces(LITTLE))
    except TensorError as error:
        is_unknown = is_unknown or not type_.has_encoder or (type_.needs_importance and base.importance is None)
        return Derivation(tensor.name, type_, UNKNOWN if is_unknown else DIFFERS, error.problem)
    if stored == encoded:
        return Derivation(tensor.name, type_, EXACT if payload.copy_of is None else COPIED)
    if len(stored) != len(encoded):  # of an unknown type
        return Derivation(tensor.name, type_, DIFFERS, f"expected {len(encoded):,} bytes, found {len(stored):,}")
    found, expected = (np.frombuffer(part, np.uint8) for part in (stored, encoded))
    differing = float((found != expected).mean())
    verdict, problem = (UNKNOWN, WITHOUT_IMPORTANCE) if is_unknown else (DIFFERS, "other bytes")
    if type_.bytes_only:
        return Derivation(tensor.name, type_, verdict, problem, differing)
    source = BytesSource(encoded)
    honest = Tensor(tensor.name, tensor.dims, PayloadLocation(0, len(encoded), type_, tensor.shape), source, 0).array()
    own, reference = tensor.array(), base.values()
    errors = errors_of(own, honest), errors_of(own, reference), errors_of(honest, reference)
    return Derivation(tensor.name, type_, verdict, problem, differing, *errors)
