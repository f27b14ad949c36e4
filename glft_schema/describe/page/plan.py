"""A plan as an HTML page: a chart of error against bits per weight, and tables.

`plan.html.jinja` is the structure, `page.css` the style.
"""

from __future__ import annotations

from glft_schema.describe.page.frame import render, visible
from glft_schema.display import size_text
from glft_schema.quantizer.plan import Mix, Plan
from glft_schema.quantizer.plan_picture import MIX

NARROW = 360  # width of the chart on phones, in pixels


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
        "planned": planned,
        "mix": mix,
        "pictures": {"wide": planned.picture(mix), "narrow": planned.picture(mix, NARROW)},
        "recipes": [(name, *_numbers(one)) for name, one in sorted(mixes.items(), key=lambda item: item[1].nbytes)],
        "left_out": {why: [name for name, one in planned.left_out.items() if one == why] for why in planned.left_out.values()},
        "types": [_type_row(planned, name, one) for name, one in planned.compare(mix)],
        "rows": [(tensor.name, {one.type: one for one in tensor.candidates}) for tensor in planned.tensors],
    }
    return render("plan.html.jinja", texts, None, ())


def _numbers(mix: Mix) -> tuple[str, str, str]:
    return size_text(mix.size), f"{mix.bits_per_weight:.2f}", f"{mix.snr:.1f}"


def _type_row(planned: Plan, name: str, one: Mix) -> tuple[str, ...]:
    rest = f" of {len(planned.tensors)}" if len(one.chosen) < len(planned.tensors) else ""
    return visible(name), f"{len(one.chosen)}{rest}", *_numbers(one)
