"""The result of a quantized type's formula: codes, scales and additive offsets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from glft_schema.lazy import torch
from glft_schema.tensor_types.engine.bits import by_words, once


class Scaled(NamedTuple):
    """Weights as ``codes * scales + offsets``, computed in float32 in that order.

    Formulas return codes and scales, so that one implementation computes the weights of all types
    in their destination. If there are offsets, the product of code and scale is exact, so that a
    fused multiply-add gives the same result.

    Attributes:
        codes: [rows, ...], n per row in any dims, of any dtype whose numbers float32 holds. Keep
            the dims in which codes were unpacked: a compiler turns each into a plain loop.
        scales: [rows, groups], one for each n / groups neighbours.
        offsets: like `scales`; None adds nothing.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None

    @property
    def shape(self) -> list[int]:
        """The shape of the codes; a dim in which a group ends is split there."""
        return self._sizes()

    def _sizes(self) -> list[int]:  # torch 2.6 traces methods of a tuple but not its properties
        sizes = self.codes.shape[1:]
        ends = {math.prod(sizes[dim:]) for dim in range(len(sizes) + 1)} | {math.prod(sizes) // self.scales.shape[1]}
        return [len(self.codes), *reversed([outer // inner for inner, outer in pairwise(sorted(ends))])]

    @property
    def is_paired(self) -> bool:
        """Whether the innermost dim of the codes is two neighbours of one byte and one scale."""
        *others, last = self.codes.shape[1:]
        return last == 2 and math.prod(others) % self.scales.shape[1] == 0

    def weights(self) -> torch.Tensor:
        """Returns the weights, float32 of `shape`."""
        if by_words(self.codes):
            return self._scale(self.codes.to(torch.float32, copy=True)).view(self._sizes())
        weights = self.codes.reshape(self._sizes()).to(torch.float32) * self._of_groups(self.scales)
        return weights if self.offsets is None else weights + self._of_groups(self.offsets)

    def pairs(self) -> torch.Tensor:
        """Returns the weights, if `is_paired`, as int64 of two float32 each, in memory order:
        [rows, n / 2] in any dims.

        A compiler would write float32 one by one.
        """
        parts = [Scaled(self.codes[..., which], self.scales, self.offsets).weights() for which in range(2)]
        first, second = [part.view(torch.int32).to(torch.int64) for part in parts]
        return first & 0xFFFFFFFF | second << 32

    def write(self, out: torch.Tensor) -> None:
        """Writes the weights into `out`, of any shape and float dtype, or int64 for `pairs`."""
        if out.dtype == torch.int64:
            if not by_words(out):
                out.copy_(self.pairs().view(out.shape))
                return
            out = out.view(torch.float32)
        if out.dtype == torch.float32 and by_words(out):
            self._scale(out.view(self.codes.shape).copy_(self.codes))
        else:
            out.copy_(self.weights().view(out.shape))

    def _scale(self, weights: torch.Tensor) -> torch.Tensor:
        """Turns codes into weights in place."""
        groups = weights.view(*self.scales.shape, -1)
        groups.mul_(self.scales.to(torch.float32).unsqueeze(-1))
        if self.offsets is not None:
            groups.add_(self.offsets.to(torch.float32).unsqueeze(-1))
        return weights

    def _of_groups(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns scales or offsets with as many dims as `shape`."""
        numbers = once(numbers)
        shape, group = self._sizes(), math.prod(self.codes.shape[1:]) // numbers.shape[1]
        outer = next(dims for dims in range(1, len(shape) + 1) if math.prod(shape[dims:]) == group)
        return numbers.to(torch.float32).view(*shape[:outer], *[1] * (len(shape) - outer))


# The fields of a payload or block as keywords, each [rows, numbers] -> its weights, [rows, n].
Formula = Callable[..., "torch.Tensor | Scaled"]
# Numbers [rows, n], and by keyword their importance if the encoder has such a parameter -> the
# fields of a payload or block by name, each [rows, numbers].
Encoder = Callable[..., Mapping[str, "torch.Tensor"]]

Fields = Mapping[str, "torch.Tensor"]
