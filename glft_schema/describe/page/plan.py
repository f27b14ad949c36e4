"""A plan as an HTML page: a chart of error against bits per weight, and tables.

`plan.html.jinja` is the structure, `page.css` the style.
"""

from __future__ import annotations

import math
from typing import Any

from glft_schema.describe.page.frame import render, visible
from glft_schema.display import format_count, size_text
from glft_schema.quantizer.plan import Candidate, Mix, Plan, TensorPlan
from glft_schema.quantizer.plan_picture import MIX

NARROW = 360  # width of the chart on phones, in pixels
STEP, STEPS = 5, 10  # dB per colour, number of colours


def plan_page(planned: Plan, mix: Mix | None, name: str) -> str:
    """Returns the page, which is self-contained.

    Args:
        planned: the plan.
        mix: the chosen mix, or None.
        name: the name of the model.
    """
    mixes = {**planned.recipes, **({MIX: mix} if mix else {})}
    texts = {
        "name": f"Plan of {visible(name)}",
        "headline": f"{format_count(planned.tensors, 'tensor')}, {planned.weights:,} weights",
        "tiles": mix and _tiles(mix),
        "pictures": {"wide": planned.picture(mix), "narrow": planned.picture(mix, NARROW)},
        "warning": planned.warning,
        "recipes": [(name, *_numbers(one)) for name, one in sorted(mixes.items(), key=lambda item: item[1].nbytes)],
        "left_out": {why: [name for name, one in planned.left_out.items() if one == why] for why in planned.left_out.values()},
        "types": [_type_row(planned, name, one) for name, one in planned.compare(mix)],
        "columns": [visible(type_.name) for type_ in planned.by_type],
        "rows": [_row(planned, tensor, mix.chosen[tensor.name] if mix else None) for tensor in planned.tensors],
        "step": STEP,
    }
    return render("plan.html.jinja", texts, None, ())


def _tiles(mix: Mix) -> list[tuple[str, str, str]]:
    return [
        ("Bits per weight", f"{mix.bits_per_weight:.2f}", "of all tensors"),
        ("Size", size_text(mix.size), "at most"),
        ("Signal-to-noise ratio", f"{mix.snr:.1f} dB", "of the tensors with a choice"),
    ]


def _numbers(mix: Mix) -> tuple[str, str, str]:
    return size_text(mix.size), f"{mix.bits_per_weight:.2f}", f"{mix.snr:.1f}"


def _type_row(planned: Plan, name: str, one: Mix) -> tuple[str, ...]:
    rest = f" of {len(planned.tensors)}" if len(one.chosen) < len(planned.tensors) else ""
    return visible(name), f"{len(one.chosen)}{rest}", *_numbers(one)


def _row(planned: Plan, tensor: TensorPlan, chosen: Candidate | None) -> dict[str, Any]:
    """Returns a tensor's cells: for each type text, class and tooltip."""
    by_type = {candidate.type: candidate for candidate in tensor.candidates}
    cells = []
    for type_ in planned.by_type:
        one = by_type.get(type_)
        if one is None:
            cells.append(("", "none", "not possible"))
            continue
        level = STEPS - 1 if math.isinf(one.snr) else min(max(int(one.snr // STEP), 0), STEPS - 1)
        text = "∞" if math.isinf(one.snr) else f"{one.snr:.0f}"
        tip = f"{type_.name}: {one.snr:.1f} dB, {size_text(one.nbytes)}"
        cells.append((text, f"level-{level}{' chosen' if one == chosen else ''}", visible(tip)))
    return {"name": visible(tensor.name), "chosen": chosen and visible(chosen.type.name), "cells": cells}
