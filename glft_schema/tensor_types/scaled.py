"""What the formulas of quantized types give: codes, and the scales that make weights of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from glft_schema.lazy import torch


class Scaled(NamedTuple):
    """Weights as ``codes * scales + offsets``, computed in float32 in that order.

    Formulas stop here, so that the weights are computed where they are to stand, and in one place for all types. Where there
    are offsets, codes and scales have so few bits that their product is exact: what adds to it without rounding it first gives
    the same.

    Attributes:
        codes: [rows, n], of any dtype whose numbers float32 holds.
        scales: [rows, groups]: one for each n / groups neighbours.
        offsets: as `scales`; None adds nothing.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None

    def weights(self) -> torch.Tensor:
        """Returns the weights, float32 [rows, n]."""
        return self._scale(self.codes.to(torch.float32, copy=True))

    def write(self, out: torch.Tensor) -> None:
        """Writes the weights into `out`, of any shape of as many numbers in C order, and any float dtype."""
        if out.dtype == torch.float32:
            self._scale(out.view(self.codes.shape).copy_(self.codes))
        else:
            out.copy_(self.weights().view(out.shape))

    def _scale(self, weights: torch.Tensor) -> torch.Tensor:
        """Makes weights of codes in place."""
        groups = weights.view(*self.scales.shape, -1)
        groups.mul_(self.scales.to(torch.float32).unsqueeze(-1))
        if self.offsets is not None:
            groups.add_(self.offsets.to(torch.float32).unsqueeze(-1))
        return weights


# The fields of a payload or block as keywords, each [rows, numbers] -> what its weights are, [rows, n].
Formula = Callable[..., "torch.Tensor | Scaled"]
# Numbers [rows, n] -> the fields of a payload or block by name, each [rows, numbers].
Encoder = Callable[["torch.Tensor"], Mapping[str, "torch.Tensor"]]
