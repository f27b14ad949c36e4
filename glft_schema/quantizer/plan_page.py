"""A plan as one HTML page: a picture of error against bits per weight, and its tables."""

from __future__ import annotations

from html import escape

from glft_schema.display import Listing
from glft_schema.errors import safe
from glft_schema.quantizer.plan import Mix, Plan
from glft_schema.quantizer.plan_picture import picture

STYLE = "body { font: 15px sans-serif; color-scheme: light dark } table { border-spacing: 1em 0.2em; margin: 2em 0 }"


def plan_page(planned: Plan, mix: Mix | None, title: str) -> str:
    """Returns the page. It needs no other file and runs no script."""
    points = [(type_.name, one) for type_, one in planned.by_type.items()] + ([("mix", mix)] if mix else [])
    rows = [(name, f"{len(one.chosen)}", f"{one.bits_per_weight:.2f}", f"{one.snr:.2f}") for name, one in points]
    tables = [Listing("types", ("dtype", "tensors", "bits per weight", "SNR in dB"), rows, right=3)]
    head = ("tensor", *(("mix",) if mix else ()), *(type_.name for type_ in planned.by_type))
    of_tensors = []
    for tensor in planned.tensors:
        found = {candidate.type: f"{candidate.snr:.1f}" for candidate in tensor.candidates}
        chosen = (mix.chosen[tensor.name].type.name,) if mix else ()
        of_tensors.append((safe(tensor.name), *chosen, *(found.get(type_, "") for type_ in planned.by_type)))
    tables.append(Listing("SNR in dB by tensor", head, of_tensors, right=len(planned.by_type)))
    body = [
        f"<h1>{escape(title)}</h1>",
        picture((name, one.bits_per_weight, one.snr) for name, one in points),
        *(table.html() for table in tables),
    ]
    opening = f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{escape(title)}</title>'
    return "\n".join([opening, f"<style>{STYLE}</style>", "</head>", "<body>", *body, "</body>", "</html>", ""])
