"""Picture of a plan: signal-to-noise ratio over bits per weight."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

WIDTH, HEIGHT, MARGIN = 960, 480, 50  # pixels
LABEL = 60, 14  # width and height of a label
THIN = 'stroke="gray" stroke-width="0.5"'


def picture(points: Iterable[tuple[str, float, float]]) -> str:
    """Returns an SVG with a dot for each name, bits per weight and SNR in dB."""
    finite = [point for point in points if math.isfinite(point[2])]
    most_bits = math.ceil(max((bits for _, bits, _ in finite), default=1))
    ratios = [snr for *_, snr in finite]
    least, most = 10 * math.floor(min([0, *ratios]) / 10), 10 * math.ceil(max([10, *ratios]) / 10)

    def at(bits: float, snr: float) -> tuple[str, str]:
        x = MARGIN + bits / most_bits * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - (snr - least) / (most - least) * (HEIGHT - 2 * MARGIN)
        return f"{x:.1f}", f"{y:.1f}"

    left, bottom = at(0, least)
    right, top = at(most_bits, most)
    lines = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-size="12" fill="currentColor" role="img">']
    lines.append(f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor"/>')
    for tick in range(0, most_bits + 1, max(most_bits // 8, 1)):
        lines.append(f'<text x="{at(tick, least)[0]}" y="{HEIGHT - 32}" text-anchor="middle">{tick}</text>')
    for tick in range(least, most + 1, 10):
        lines.append(f'<text x="{MARGIN - 8}" y="{at(0, tick)[1]}" text-anchor="end">{tick}</text>')
    lines.append(f'<text x="{right}" y="{HEIGHT - 12}" text-anchor="end">bits per weight</text>')
    lines.append(f'<text x="8" y="{MARGIN - 24}">signal-to-noise ratio in dB</text>')
    placed: list[tuple[float, float]] = []
    dots = [at(bits, snr) for _, bits, snr in finite]
    for (name, *_), (x, y) in zip(finite, dots, strict=True):
        colour = ' fill="crimson"' if name == "mix" else ""
        label_x, label_y = _free_place(float(x) + 10, float(y), placed, [(float(x), float(y)) for x, y in dots])
        lines.append(f'<circle cx="{x}" cy="{y}" r="4"{colour}/><path d="M{x} {y}L{label_x:.1f} {label_y:.1f}" {THIN}/>')
        lines.append(f'<text x="{label_x:.1f}" y="{label_y:.1f}" dominant-baseline="middle">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"])


def _free_place(x: float, y: float, labels: list[tuple[float, float]], dots: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the left end of a free place for a label, near (x, y). Adds it to `labels`."""
    width, height = LABEL
    for step in range(2 * len(labels + dots) + 1):
        place = y + height * (step // 2 + step % 2) * (1 if step % 2 else -1)
        if all(abs(x - left) >= width or abs(place - at) >= height for left, at in labels) and not any(
            0 <= left - x < width and abs(place - at) < height for left, at in dots
        ):
            break
    labels.append((x, place))
    return x, place
