"""Picture of a plan: signal-to-noise ratio over bits per weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN = 960, 460, 48  # pixels
LINE, LETTER = 14, 8.3  # height of a label's line and width of a letter, in pixels
STEPS = 1, 2, 5, 10, 20  # between ticks
STRIPS = 60  # of the curve, each with a tooltip
MIX, COLOURS = "mix", ("crimson", "#2f7fd6")


class Point(NamedTuple):
    """A mix in the picture: its label, bits per weight, and signal-to-noise ratio in dB."""

    name: str
    bits: float
    snr: float

    @property
    def text(self) -> str:
        """The label and the numbers, for a tooltip."""
        return f"{self.name}: {self.bits:.2f} bits per weight, {self.snr:.1f} dB"


def picture(curve: Sequence[Point], dots: Sequence[Point], width: int = WIDTH) -> str:
    """Returns an SVG of `width` pixels with a curve, and dots with labels and tooltips.

    Points without a finite ratio are left out, as is the curve beyond the last dot.
    """
    dots = [point for point in dots if math.isfinite(point.snr)]
    end = max((point.bits for point in dots), default=math.inf)
    curve = [point for point in curve if math.isfinite(point.snr) and point.bits <= end]
    points = [*curve, *dots] or [Point("", 0, 0), Point("", 1, 10)]
    low, high = (edge(point.bits for point in points) for edge in (min, max))
    least, most = 10 * math.floor(min(point.snr for point in points) / 10), max(point.snr for point in points)
    right, bottom = width - MARGIN, HEIGHT - MARGIN

    def at(bits: float, snr: float) -> tuple[float, float]:
        x = MARGIN + (bits - low) / ((high - low) or 1) * (right - MARGIN)
        return x, bottom - (snr - least) / ((most - least) or 1) * (bottom - MARGIN)

    lines = [f'<svg viewBox="0 0 {width} {HEIGHT}" width="{width}" font-size="12" fill="currentColor" role="img">']
    lines.append(f'<path d="M{MARGIN} {MARGIN}V{bottom}H{right}" fill="none" stroke="currentColor"/>')
    for tick in _ticks(low, high, width // 90):
        lines.append(f'<text x="{at(tick, least)[0]:.1f}" y="{HEIGHT - 30}" text-anchor="middle">{tick}</text>')
    for tick in _ticks(least, most, 8):
        lines.append(f'<text x="{MARGIN - 8}" y="{at(low, tick)[1] + 4:.1f}" text-anchor="end">{tick}</text>')
    lines.append(f'<text x="{right}" y="{HEIGHT - 10}" text-anchor="end">bits per weight</text>')
    lines.append('<text x="8" y="14">signal-to-noise ratio in dB</text>')
    lines += _curve([(point, *at(point.bits, point.snr)) for point in curve], bottom)
    places = [at(point.bits, point.snr) for point in dots]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    taken += [(x - 2, y - 2, x + 2, y + 2) for x, y in (at(point.bits, point.snr) for point in curve)]
    for point, (x, y) in zip(dots, places, strict=True):
        label_x, label_y = _free_place(x, y, LETTER * len(point.name), width, taken)
        colour, radius = COLOURS[point.name != MIX], 3.5 + 2 * (point.name == MIX)
        middle = min(max(x, label_x), label_x + LETTER * len(point.name))
        lines.append(f'<path d="M{x:.1f} {y:.1f}L{middle:.1f} {label_y:.1f}" stroke="gray" stroke-width="0.5"/>')
        lines.append(f'<g fill="{colour}"><title>{escape(point.text)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')
        lines.append(f'<text x="{label_x:.1f}" y="{label_y:.1f}" dominant-baseline="middle">{escape(point.name)}</text></g>')
    return "\n".join([*lines, "</svg>"])


def _curve(places: Sequence[tuple[Point, float, float]], bottom: int) -> list[str]:
    """Returns a line through places, and strips below and above it with tooltips."""
    if not places:
        return []
    path = "L".join(f"{x:.1f} {y:.1f}" for _, x, y in places)
    lines = [f'<path d="M{path}" fill="none" stroke="currentColor" stroke-width="1.5"/>']
    chosen = places[:: max(len(places) // STRIPS, 1)]
    for (point, x, _), (_, end, _) in zip(chosen, [*chosen[1:], places[-1]], strict=True):
        box = f'x="{x:.1f}" y="{MARGIN}" width="{max(end - x, 0):.1f}" height="{bottom - MARGIN}"'
        lines.append(f'<rect {box} fill="none" pointer-events="all"><title>{escape(point.text)}</title></rect>')
    return lines


def _ticks(low: float, high: float, count: int) -> range:
    """Returns about `count` round numbers from `low` to `high`."""
    step = next((step for step in STEPS if (high - low) / step <= count), STEPS[-1])
    return range(step * math.ceil(low / step), math.floor(high) + 1, step)


def _free_place(
    x: float, y: float, length: float, width: int, taken: list[tuple[float, float, float, float]]
) -> tuple[float, float]:
    """Returns the left middle of a free place for a label near (x, y); adds its box to `taken`."""
    ways = [(side, step) for side in (1, -1, 0) for step in range(-15, 16)]
    for side, step in sorted(ways, key=lambda way: (abs(way[1]) + (way[0] != 1), way)):
        left, middle = x + (8 if side > 0 else -length / 2 if side == 0 else -8 - length), y + LINE * step
        box = left, middle - LINE / 2, left + length, middle + LINE / 2
        inside = left >= MARGIN and box[2] <= width and LINE < middle < HEIGHT - MARGIN
        if inside and all(box[2] <= a or box[0] >= c or box[3] <= b or box[1] >= d for a, b, c, d in taken):
            break
    taken.append(box)
    return left, middle
