"""Quantizes models by recipes, such as llama-quantize's, and plans mixes of types."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.quantizer.plan import Candidate, Mix, Plan, TensorPlan
    from glft_schema.quantizer.quantize import Quantized
    from glft_schema.quantizer.recipe_rules import Recipe

__all__ = [
    "Candidate",
    "Mix",
    "Plan",
    "Quantized",
    "Recipe",
    "TensorPlan",
]

LATER = {
    "quantizer.plan": "Candidate Mix Plan TensorPlan",
    "quantizer.quantize": "Quantized",
    "quantizer.recipe_rules": "Recipe",
}
__getattr__, __dir__ = on_first_use(globals(), LATER)
