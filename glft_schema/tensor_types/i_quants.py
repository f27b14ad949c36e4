"""ggml's i-quants: super-blocks of 256 weights, cut into short vectors that are entries of a fixed grid.

Source: the block structs and grids of ggml-common.h and the formulas of ggml-quants.c, both of llama.cpp; checked against them
bit by bit.
"""

from __future__ import annotations

from glft_schema.codec.numbers import f16, u8, u16, u32
from glft_schema.codec.structs import Struct
from glft_schema.lazy import torch
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.encoders.i_quants import to_iq1_m, to_iq1_s, to_iq2_s, to_iq2_xs, to_iq2_xxs, to_iq3_s, to_iq3_xxs
from glft_schema.tensor_types.engine.bits import by_words, fields, from_fields, looked_up, once, signed, unpack, words
from glft_schema.tensor_types.engine.scaled import Scaled
from glft_schema.tensor_types.grids import cached_on_device, grid


def entries(name: str, index: torch.Tensor) -> torch.Tensor:
    """Returns the grid's entries for indices [blocks, vectors], as int8 [blocks, vectors, values]."""
    return looked_up(grid(name, index.device), index)


def pairs_of_entries(name: str, index: torch.Tensor) -> torch.Tensor:
    """Returns entries of four values, none below 0, two beside each other: indices [blocks, 2 k] -> integers [blocks, k, 8]."""
    device = index.device
    words_ = cached_on_device(f"{name} as words", device, lambda: grid(name, device).view(torch.int32).squeeze(1))
    if by_words(index):
        return entries(name, index).view(len(index), -1, 8)
    low, high = (words_[index[:, half::2].to(torch.int32)].unsqueeze(2) for half in range(2))
    place = torch.arange(8, dtype=torch.int32, device=device)
    return torch.where(place < 4, low, high) >> 8 * (place & 3) & 255


def signs(bits: torch.Tensor) -> torch.Tensor:
    """Returns -1 where a bit is set and 1 where not: sign bytes [blocks, vectors] -> int8 [blocks, 8 vectors]."""
    return 1 - signed(unpack(once(bits.to(torch.uint8)), 1, 2) << 1)


def even_signs(seven: torch.Tensor) -> torch.Tensor:
    """Completes seven sign bits by an eighth that makes their number even."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    return seven | ((parity ^ parity >> 1) & 1) << 7


def sevens(word: torch.Tensor) -> torch.Tensor:
    """Takes four sign bytes from the low 28 bits of each word: int64 [blocks, k] -> [blocks, 4 k]."""
    return even_signs(fields(word, 7, 4, 2).flatten(1))


def nibbles(scales: torch.Tensor) -> torch.Tensor:
    """u8 [blocks, k] -> [blocks, 2 k], the low nibble of each byte first."""
    return unpack(scales, 4, 2).flatten(1)


def iq2_xxs(d: torch.Tensor, qs: torch.Tensor) -> Scaled:
    """d * (scale + 1/2) / 4 * entry, signed: per 32 weights four indices of a byte, then 4 x 7 sign bits and a 4-bit scale."""
    pairs = qs.reshape(qs.shape[0], 8, 8)
    index, word = pairs[:, :, :4].flatten(1), words(pairs[:, :, 4:].flatten(1), 4)
    factor = d.to(torch.float32) * (0.5 + (word >> 28).to(torch.float32)) * 0.25
    return Scaled(entries("iq2_xxs", index) * signs(sevens(word)), factor)


def iq2_xs(d: torch.Tensor, qs: torch.Tensor, scales: torch.Tensor) -> Scaled:
    """d * (scale + 1/2) / 4 * entry, signed: per 8 weights a 9-bit index and 7 sign bits, per 16 weights a 4-bit scale."""
    word = words(qs, 2)
    factor = d.to(torch.float32) * (0.5 + nibbles(scales).to(torch.float32)) * 0.25
    return Scaled(entries("iq2_xs", word & 511) * signs(even_signs(word >> 9)), factor)


def iq2_s(d: torch.Tensor, qs: torch.Tensor, sign_bits: torch.Tensor, qh: torch.Tensor, scales: torch.Tensor) -> Scaled:
    """d * (scale + 1/2) / 4 * entry, signed: per 8 weights a 10-bit index, two bits of it in qh, and a sign byte."""
    high = unpack(qh, 2, 2).flatten(1).to(torch.int32)
    factor = d.to(torch.float32) * (0.5 + nibbles(scales).to(torch.float32)) * 0.25
    return Scaled(entries("iq2_s", qs | high << 8) * signs(sign_bits), factor)


def iq3_xxs(d: torch.Tensor, qs: torch.Tensor, scales_and_signs: torch.Tensor) -> Scaled:
    """d * (scale + 1/2) / 2 * entry, signed: per 4 weights an index, per 32 weights 4 x 7 sign bits and a 4-bit scale."""
    word = words(scales_and_signs, 4)
    factor = d.to(torch.float32) * (0.5 + (word >> 28).to(torch.float32)) * 0.5
    return Scaled(pairs_of_entries("iq3_xxs", qs) * signs(sevens(word)), factor)


def iq3_s(d: torch.Tensor, qs: torch.Tensor, qh: torch.Tensor, sign_bits: torch.Tensor, scales: torch.Tensor) -> Scaled:
    """d * (1 + 2 scale) * entry, signed: per 4 weights a 9-bit index, one bit of it in qh, per 64 weights two 4-bit scales."""
    high = unpack(qh, 1, 2).flatten(1).to(torch.int32)
    factor = d.to(torch.float32) * (1 + 2 * nibbles(scales).to(torch.float32))
    return Scaled(pairs_of_entries("iq3_s", qs | high << 8) * signs(sign_bits), factor)


def shifted_entries(index: torch.Tensor) -> torch.Tensor:
    """Returns the entries of an i1-quant, int8 [blocks, vectors, 8], shifted by 1/8: in eighths, so that they stay integers.

    Bit 11 of an index [blocks, vectors] says that the shift is downwards.
    """

    def make() -> torch.Tensor:
        eighths = grid("iq1_s", index.device) << 3
        return torch.cat((eighths + 1, eighths - 1))

    return looked_up(cached_on_device("iq1_s in eighths", index.device, make), index)


def iq1_s(d: torch.Tensor, qs: torch.Tensor, qh: torch.Tensor) -> Scaled:
    """d * (2 scale + 1) * (entry +- 1/8): per 32 weights a word of 4 x 3 high index bits, a 3-bit scale, the shift's sign."""
    word = words(qh, 2)
    high = (fields(word, 3, 4, 2) | (word >> 12 & 8).unsqueeze(2)).flatten(1)
    factor = d.to(torch.float32) * (2 * (word >> 12 & 7).to(torch.float32) + 1)
    return Scaled(shifted_entries(qs | high << 8), factor * 0.125)


def top_nibbles(scales: torch.Tensor) -> torch.Tensor:
    """Takes the float16 that the top nibbles of four words make: u8 [blocks, 8] -> [blocks, 1]."""
    bits = from_fields(words(scales, 2) >> 12, 4, 1)
    return bits.to(torch.int32).to(torch.int16).view(torch.float16).unsqueeze(1)


def iq1_m(qs: torch.Tensor, qh: torch.Tensor, scales: torch.Tensor) -> Scaled:
    """d * (2 scale + 1) * (entry +- 1/8): per 8 weights a nibble of three high index bits and the shift's sign.

    Four words hold sixteen 3-bit scales in their low 12 bits, and in their top nibbles, lowest first, the float16 d.
    """
    word, d = words(scales, 2), top_nibbles(scales).to(torch.float32)
    factor = once(d) * (2 * fields(word, 3, 4, 2).flatten(1).to(torch.float32) + 1)
    return Scaled(shifted_entries(once(qs | nibbles(qh).to(torch.int16) << 8)), factor * 0.125)


# fmt: off
IQ2_XXS = block_type("IQ2_XXS", 16, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "qs"     / u32[16] * "per 32 weights: a word of four indices, then a word of 4 x 7 sign bits and a 4-bit scale",
), iq2_xxs, searches=True, weighted=to_iq2_xxs)

IQ2_XS = block_type("IQ2_XS", 17, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "qs"     / u16[32] * "per 8 weights a word: 9 bits of index, 7 sign bits",
    "scales" / u8[8]   * "a nibble for 16 weights each",
), iq2_xs, searches=True, weighted=to_iq2_xs)

IQ3_XXS = block_type("IQ3_XXS", 18, 256, Struct(
    "d"                / f16[1] * "scale of the scales",
    "qs"               / u8[64] * "an index for 4 weights each",
    "scales_and_signs" / u32[8] * "per 32 weights a word: 4 x 7 sign bits and a 4-bit scale",
), iq3_xxs, to_iq3_xxs, searches=True, weighted=to_iq3_xxs)

IQ1_S = block_type("IQ1_S", 19, 256, Struct(
    "d"      / f16[1]  * "scale of the scales",
    "qs"     / u8[32]  * "the low eight bits of an index for 8 weights each",
    "qh"     / u16[8]  * "per 32 weights a word: 4 x 3 high bits of indices, a 3-bit scale, the sign of the shift",
), iq1_s, searches=True, weighted=to_iq1_s)

IQ3_S = block_type("IQ3_S", 21, 256, Struct(
    "d"         / f16[1]  * "scale of the scales",
    "qs"        / u8[64]  * "the low eight bits of an index for 4 weights each",
    "qh"        / u8[8]   * "the high bits of eight indices each",
    "sign_bits" / u8[32]  * "the signs of 8 weights each",
    "scales"    / u8[4]   * "a nibble for 32 weights each",
), iq3_s, to_iq3_s, searches=True, weighted=to_iq3_s)

IQ2_S = block_type("IQ2_S", 22, 256, Struct(
    "d"         / f16[1]  * "scale of the scales",
    "qs"        / u8[32]  * "the low eight bits of an index for 8 weights each",
    "sign_bits" / u8[32]  * "the signs of 8 weights each",
    "qh"        / u8[8]   * "the high two bits of four indices each",
    "scales"    / u8[8]   * "a nibble for 16 weights each",
), iq2_s, to_iq2_s, searches=True, weighted=to_iq2_s)

IQ1_M = block_type("IQ1_M", 29, 256, Struct(
    "qs"     / u8[32]  * "the low eight bits of an index for 8 weights each",
    "qh"     / u8[16]  * "a nibble for 8 weights each: three high bits of the index, the sign of the shift",
    "scales" / u16[4]  * "four words: sixteen 3-bit scales in the low 12 bits, the float16 d in the high 4",
), iq1_m, to_iq1_m, searches=True, weighted=to_iq1_m, scales={"scales": top_nibbles})
# fmt: on
