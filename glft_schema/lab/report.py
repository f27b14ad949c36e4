"""The lab's README.md and chart, rendered from the manifest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import jinja2

from glft_schema.storage.atomic import atomic_write

WIDTH, LEFT, BAR = 900, 120, 600  # SVG units: width of the chart, start of bars, longest bar

CONTAINER = ("header", "metadata", "descriptors", "gaps")  # regions without weights

# Parts of a bar: label, colour, and the suffixes of the keys of `byte_counts` that it sums.
PARTS = (
    ("float32 weights", "#8c959f", ("F32 weights",)),
    ("codes", "#0969da", ("codes", "nibbles")),
    ("scales", "#bf8700", ("scales",)),
    ("container", "#cf222e", CONTAINER),
)


def write_report(out: Path, manifest: Mapping[str, Any]) -> None:
    """Writes ``README.md`` and ``bytes.svg`` to the directory `out`."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("glft_schema.lab"),
        autoescape=jinja2.select_autoescape(["svg.jinja"]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    q8, q4 = manifest["files"]["q8_per_channel"], manifest["files"]["q4_per_group_64"]
    readme = templates.get_template("README.md.jinja").render(
        manifest=manifest,
        path=lambda name, ending="": shlex.quote(f"{out}{ending}{f'/{name}' if name else ''}"),
        q8=q8,
        q4=q4,
        worst=lambda errors: f"{max(errors.values()):g}",
        exact=max(*q8["tensor_errors"].values(), *q4["tensor_errors"].values()) == 0,
        largest_error=lambda measured: f"{max(worst for worst, _ in measured['quantization_errors'].values()):.3g}",
        mean_error=lambda measured: f"{max(mean for _, mean in measured['quantization_errors'].values()):.3g}",
        no_layer_differs=not any(any(measured["layer_errors"].values()) for measured in (q8, q4)),
        kept=q4["kept"],
        kept_kinds=", ".join(f"`{kind}`" for kind in dict.fromkeys(re.sub(r"\b\d+\b", "N", name) for name in q4["kept"])),
        needed={
            scheme: _layers_to_quantize(measured, manifest["limits"]["saving"][scheme])
            for scheme, measured in manifest["files"].items()
        },
        codes_alone=manifest["parameters"] // 2,
        parts={label: (_bytes(q8["bytes"], endings), _bytes(q4["bytes"], endings)) for label, _, endings in PARTS},
        regions=CONTAINER,
    )
    starts = accumulate((40 + 8 * len(label) for label, *_ in PARTS), initial=LEFT)
    legend = [{"label": label, "colour": colour, "x": x} for (label, colour, _), x in zip(PARTS, starts, strict=False)]
    chart = templates.get_template("bytes.svg.jinja").render(width=WIDTH, bars=_bars(manifest), legend=legend)
    for name, text in (("README.md", readme), ("bytes.svg", chart)):
        with atomic_write(out / name) as stream:
            stream.write(text.encode())


def _layers_to_quantize(measured: Mapping[str, Any], least: float) -> str:
    """Returns which layers must be quantized to reach the saving, as the end of a sentence."""
    labels = []
    for label, saving in measured["widening"].items():
        labels.append(label)
        if saving >= least:
            return f"requires that these are quantized: {', '.join(labels)}"
    return "is not reached"


def _bytes(counts: Mapping[str, int], endings: tuple[str, ...]) -> int:
    return sum(count for key, count in counts.items() if key.endswith(endings))


def _bars(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    whole, weights = manifest["torch_save_bytes"], 4 * manifest["parameters"]
    bars = [("torch.save", {"F32 weights": weights, "header": whole - weights})]
    bars += [(scheme[:2], measured["bytes"]) for scheme, measured in manifest["files"].items()]
    drawn = []
    for label, counts in bars:
        x, parts = float(LEFT), []
        for part, colour, endings in PARTS:
            nbytes = _bytes(counts, endings)
            parts.append({"label": part, "colour": colour, "x": x, "width": BAR * nbytes / whole, "nbytes": nbytes})
            x += BAR * nbytes / whole
        drawn.append({"label": label, "parts": parts, "nbytes": sum(counts.values()), "end": x})
    return drawn
