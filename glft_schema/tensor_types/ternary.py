"""ggml's ternary types: weights of -1, 0 and 1 times a float16 scale.

Sources: the block structs of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp;
checked bit by bit against both. The encoders are in `encoders.ternary`, the layouts of codes in
bytes in `engine.packing`.
"""

from __future__ import annotations

from glft_schema.codec.numbers import f16, u8
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.encoders.ternary import to_tq1_0, to_tq2_0
from glft_schema.tensor_types.engine.packing import less, planes, trits
from glft_schema.tensor_types.engine.scaled import Scaled
from glft_schema.tensor_types.tensor_type import Reserved, formula_of

# fmt: off
TQ1_0 = block_type("TQ1_0", 34, 256, Struct(
    "qs" / u8[48]  * "five base-3 digits a byte: weights 0..159 from 32 bytes, 160..239 from 16",
    "qh" / u8[4]   * "four base-3 digits a byte: weights 240..255",
    "d"  / f16[1]  * "scale",
), quantize=to_tq1_0, reserved=[
    Reserved("qs", "a byte that packs no five digits", lambda qs: not_packed(qs, 5)),
    Reserved("qh", "a byte that packs no four digits", lambda qh: not_packed(qh, 4)),
])

TQ2_0 = block_type("TQ2_0", 35, 256, Struct(
    "qs" / u8[64]  * "two bits per weight; code - 1",
    "d"  / f16[1]  * "scale",
), quantize=to_tq2_0, reserved=[Reserved("qs", "code 3, which is no digit", lambda qs: (qs & qs >> 1 & 0x55) != 0)])
# fmt: on


@formula_of(TQ1_0)
def tq1_0(qs: torch.Tensor, qh: torch.Tensor, d: torch.Tensor) -> Scaled:
    """d * (digit - 1): five digits a byte in qs, in runs of 32 and of 16 bytes, and four in qh."""
    digits = trits(qs, 5)
    parts = digits[:, :, :32], digits[:, :, 32:], trits(qh, 4)
    return Scaled(less(torch.cat([part.flatten(1) for part in parts], 1), 1), d)


@formula_of(TQ2_0)
def tq2_0(qs: torch.Tensor, d: torch.Tensor) -> Scaled:
    """d * (code - 1)."""
    return Scaled(less(planes(qs, 2), 1), d)


def not_packed(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Finds, in u8 [blocks, k], the bytes that `pack_trits` returns for no `count` digits."""
    numbers = torch.arange(0, 243, 3 ** (5 - count), device=packed.device)
    return ~torch.isin(packed, ((numbers * 256 + 242) // 243).to(torch.uint8))
