"""Pictures that show which bits of a payload belong to which weights. The declaration has the
offsets of a block's fields; only the formula knows how codes are packed into them. So each bit of a
row is flipped in turn, the row is dequantized, and the weights that change are those that the bit
belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

import numpy as np

from glft_schema.storage.dtypes import Array
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.conversions import widen

QUIET = 8  # payloads in a row without a new weight end the search: one payload may hide a change
CONTEXTS = 64  # payloads in which all values of a byte are tried, if its bits interact
SEED = 7
PERIODS = (1, 2, 4, 8, 16, 32)  # bytes after which a pattern may repeat
CELLS = range(3, 10)  # bit widths to try, in characters: the first that fits the labels is used
AT_ONCE = 1 << 17  # weights dequantized at once


@lru_cache
def weights_of_bits(type_: TensorType, count: int) -> list[tuple[int, ...]]:
    """Returns the weights that depend on each bit of the payload of a row of `count` weights.

    Bit ``8 i + b`` is bit ``b`` of byte ``i``, 0 being the lowest.
    """
    nbytes = type_.nbytes([1, count])
    generator = np.random.default_rng(SEED)
    touched = np.zeros((8 * nbytes, count), bool)
    quiet = 0
    while quiet < QUIET:
        known = np.count_nonzero(touched)
        touched |= _flip_bits(type_, _random(nbytes, generator), count)
        quiet = quiet + 1 if np.count_nonzero(touched) == known else 0
    for group in _independent(np.flatnonzero(_interact(touched.reshape(nbytes, 8, count))).tolist(), touched):
        for _ in range(CONTEXTS):
            _all_values(type_, _random(nbytes, generator), group, touched)
    return [tuple(np.flatnonzero(row).tolist()) for row in touched]


def _random(nbytes: int, generator: np.random.Generator) -> Array:
    return generator.integers(0, 256, nbytes, np.uint8)


def _flip_bits(type_: TensorType, payload: Array, count: int) -> Array:
    """Returns bool [bits, weights]: the weights that change if a bit of `payload` is flipped."""
    changes, nbits = [], 8 * len(payload)
    before = _dequantize(type_, payload[None], count)
    for start in range(0, nbits, step := max(AT_ONCE // count, 1)):
        bits = np.arange(start, min(start + step, nbits))
        payloads = np.tile(payload, (len(bits), 1))
        payloads[np.arange(len(bits)), bits // 8] ^= (1 << bits % 8).astype(np.uint8)
        changes.append(_dequantize(type_, payloads, count) != before)
    return np.concatenate(changes)


def _interact(bits: Array) -> Array:
    """Returns for each byte of bool [bytes, 8, weights] whether its bits seem to share some weights
    but not all.

    This is so if the byte is an index into a table: the effect of one bit depends on the others.
    """
    floats = bits.astype(np.float32)
    common = floats @ floats.swapaxes(1, 2)  # the number of weights that two bits share
    sizes = common.diagonal(0, 1, 2)[:, None]
    alike = (common == sizes) & (common == sizes.swapaxes(1, 2))
    return np.asarray((~alike & ((common > 0) | (sizes == 0))).any((1, 2)))


def _independent(indices: Iterable[int], touched: Array) -> list[list[int]]:
    """Returns groups of bytes that share no weight and so can be varied together."""
    groups: list[tuple[list[int], Array]] = []
    for i in indices:
        weights = np.asarray(touched[8 * i : 8 * i + 8].any(0))
        for k, (group, taken) in enumerate(groups):
            if not bool((taken & weights).any()):
                groups[k] = ([*group, i], taken | weights)
                break
        else:
            groups.append(([i], weights))
    return [group for group, _ in groups]


def _all_values(type_: TensorType, payload: Array, group: list[int], touched: Array) -> None:
    """Adds to `touched` the weights that a bit changes, over all values of the bytes in `group`."""
    payloads = np.tile(payload, (256, 1))
    payloads[:, group] = np.arange(256, dtype=np.uint8)[:, None]
    numbers = _dequantize(type_, payloads, count := touched.shape[1])
    changed = []
    for bit in range(8):
        pairs = numbers.reshape(128 >> bit, 2, 1 << bit, count)  # by the bits above, the bit, and the bits below
        changed.append((pairs[:, 0] != pairs[:, 1]).reshape(128, count).any(0))
    bits = touched.reshape(-1, 8, count)
    bits[group] |= np.stack(changed) & bits[group].any(1, keepdims=True)


def _dequantize(type_: TensorType, payloads: Array, count: int) -> Array:
    """Dequantizes payloads u8[payloads, nbytes] of one row each, and returns the bits of the
    numbers as unsigned integers [payloads, weights]."""
    numbers = widen(type_.decode(type_.unpack(payloads, count), count))
    return numbers.view(f"u{numbers.itemsize}")


def picture(bits: Sequence[tuple[int, ...]], fields: Mapping[int, str]) -> list[str]:
    """Returns a line for each byte, bit 7 on the left, bits labelled with their weights.

    Bytes that continue a pattern are omitted.

    Args:
        bits: the weights of each bit, from `weights_of_bits`.
        fields: the names of fields, by offset.
    """
    rows = [tuple(bits[8 * i : 8 * i + 8]) for i in range(len(bits) // 8)]
    runs = {i: _runs(row) for i, row in enumerate(rows)}
    periods = [_period(rows, i) if 0 < i < len(rows) - 1 and i not in fields else 0 for i in range(len(rows))]
    shown = [i for i, period in enumerate(periods) if not period]
    cell = next((cell for cell in CELLS if all(_fits(run, cell) for i in shown for run in runs[i])), CELLS[-1])
    width = max((len(name) for name in fields.values()), default=0)
    lines = [" " * (width + 8) + " ".join(f"{bit:^{cell}}" for bit in range(7, -1, -1)).rstrip()]
    by = 0
    for i, period in enumerate(periods):
        if not period:
            lines.append(f"{fields.get(i, ''):<{width}} {i:>5} |{'|'.join(_cell(run, cell) for run in runs[i])}|")
            by = 0
        elif not (by and _follows(rows, i, by)):
            lines.append(" " * (width + 3) + ("..." if period == 1 else f"... by {period}"))
            by = period
    return lines


def _period(rows: Sequence[tuple[tuple[int, ...], ...]], i: int) -> int:
    """Returns the period of the pattern that row `i` continues, or 0 if it continues none."""
    return next((period for period in PERIODS if _follows(rows, i, period)), 0)


def _follows(rows: Sequence[tuple[tuple[int, ...], ...]], i: int, period: int) -> bool:
    """Tells whether the weights of three rows, `period` apart up to `i`, grow in equal steps."""
    if i < 2 * period:
        return False
    for one, two, three in zip(rows[i - 2 * period], rows[i - period], rows[i], strict=True):
        step = two[0] - one[0] if one and two else 0
        if two != tuple(weight + step for weight in one) or three != tuple(weight + step for weight in two):
            return False
    return True


def _runs(row: Sequence[tuple[int, ...]]) -> list[tuple[int, str]]:
    """Returns the bits of a byte, highest first, as lengths and labels of runs."""
    return [(len(list(run)), label) for label, run in groupby(map(_label, reversed(row)))]


def _fits(run: tuple[int, str], cell: int) -> bool:
    return len(run[1]) <= run[0] * (cell + 1) - 1


def _cell(run: tuple[int, str], cell: int) -> str:
    width = run[0] * (cell + 1) - 1
    return f"{run[1] if _fits(run, cell) else '*':^{width}}"


def _label(weights: tuple[int, ...]) -> str:
    """Returns weights as a label: ``3``, ``3,7``, ``3,5..11``, or the first and the last."""
    if not weights:
        return "-"
    first, last, count = weights[0], weights[-1], len(weights)
    if count == 1:
        return f"{first}"
    if count == 2 and last > first + 1:
        return f"{first},{last}"
    step = weights[1] - first
    if step > 1 and weights == tuple(range(first, last + 1, step)):
        return f"{first},{first + step}..{last}"
    return f"{first}-{last}"
