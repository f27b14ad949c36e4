"""Measurements of models on texts in torch: perplexity, predictions and importance."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.models.activations import measure_importance
    from glft_schema.models.predictions import Perplexity, Predictions, compare_each, compare_predictions, perplexity

__all__ = [
    "Perplexity",
    "Predictions",
    "compare_each",
    "compare_predictions",
    "measure_importance",
    "perplexity",
]

LATER = {
    "models.activations": "measure_importance",
    "models.predictions": "Perplexity Predictions compare_each compare_predictions perplexity",
}
__getattr__, __dir__ = on_first_use(globals(), LATER)
