"""The schemes of the libraries that write composite weights.

Sources: the tensors that compressed-tensors 0.20, GPTQModel 7.7, AutoAWQ 0.2.9, mlx 0.32,
bitsandbytes 0.50, torchao 0.18, ModelOpt 0.47 and transformers 5.23 write, and the values that
these libraries compute from them; see docs/reference/composite-weights.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from construct import this

from glft_schema.codec.numbers import f32, i8, i32, i64, u8, u32
from glft_schema.codec.structs import Struct
from glft_schema.composites.as_ggml import NAN
from glft_schema.composites.nibbles import in_pairs, to_neighbours
from glft_schema.composites.weight import (
    BITS,
    COLUMNS,
    E4M3,
    E5M2,
    E8M0,
    GRID,
    GROUP,
    LENGTH,
    NUMBER,
    OUTER,
    ROWS,
    CompositeWeight,
    unpack,
    words_of,
)
from glft_schema.errors import alternatives, quote
from glft_schema.scalar.language import LookupTable
from glft_schema.storage.dtypes import FLOAT32, Array, is_float, words
from glft_schema.tensor_types.composite import FP4_VALUES, NF4_VALUES
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensor_types.ggml.fp4 import NVFP4 as BLOCKS
from glft_schema.tensor_types.small_floats import e8m0
from glft_schema.tensors.stored_tensor import StoredTensor

OF_TORCHAO = "._weight_"  # joins the names of a module and a part
WIDTHS = range(2, 9)  # bits of an integer code


class CodesOfRows(CompositeWeight):
    """A weight whose codes are stored row by row, with a grid of scales."""

    def solve(self) -> None:
        self.shape = self.tensors[self.codes_part].shape
        self.block = self.solve_block(self.scale)

    @property
    def codes_part(self) -> str:
        """The name of the part with the codes."""
        return next(iter(self.declared()))

    def codes(self, rows: range) -> Array:
        """Returns the codes of rows."""
        return words(self.of_rows(self.codes_part, rows))


class FP8(CodesOfRows):
    """Floats of eight bits with scales per tensor, row, group or block."""

    bits = 8
    title = "FP8"

    @property
    def type_name(self) -> str:  # type: ignore[override]
        """The type of the codes' dtype."""
        return "FP8_E5M2" if self.declared()[self.codes_part].number is E5M2 else "FP8_E4M3"


def fp8(library: str, scale: str, sentence: str, codes: str = "weight", joint: str = ".") -> list[type[CompositeWeight]]:
    """Declares a scheme of E4M3 codes, and one of E5M2 codes."""
    return [
        type(f"FP8With{scale}", (FP8,), {
            "library": library,
            "marks": (scale,),
            "joint": joint,
            "parts": Struct(codes / number[ROWS, COLUMNS] * f"{name} codes", scale / f32[GRID] * sentence),
            "__doc__": FP8.__doc__,
        })
        for name, number in (("E4M3", E4M3), ("E5M2", E5M2))
    ]  # fmt: skip


class MXFP8(FP8):
    """MXFP8: E4M3 codes with a power of two for each 32."""

    library, title = "compressed-tensors", "compressed-tensors MXFP8"
    parts = Struct(
        "weight" / E4M3[ROWS, COLUMNS] * "E4M3 codes",
        "weight_scale" / u8[ROWS, COLUMNS // GROUP] * "E8M0 scales: 2^(e - 127)",
    )
    block = (1, 32)

    @classmethod
    def fits(cls, tensors: Mapping[str, StoredTensor]) -> bool:
        return super().fits(tensors) and "weight_scale" in tensors and tensors["weight_scale"].dtype == u8.dtype

    def solve(self) -> None:
        self.shape = self.tensors[self.codes_part].shape

    def scales(self, rows: range) -> Array:
        return float32_of(e8m0(self.spread(self.scale, rows)))


class Int8(CodesOfRows):
    """Integers of eight bits, with or without zero points."""

    library, title = "compressed-tensors", "compressed-tensors W8A8"
    parts = Struct(
        "weight" / i8[ROWS, COLUMNS] * "signed codes",
        "weight_scale" / f32[GRID] * "scales",
        "weight_zero_point" / i8[GRID] * "zero points",
    )
    optional, marks = ("weight_zero_point",), ("weight_scale",)
    type_name, bits = "INT8", 8

    def zeros(self, rows: range) -> Array:
        """Returns the zero points of rows, i16."""
        part = [*self.declared()][2]
        found = self.spread(part, rows) if part in self.tensors else np.zeros((len(rows), self.columns // self.unit))
        return found.astype(np.int16)


class Int8OfTorchao(Int8):
    """Integers of up to eight bits of torchao, a byte each."""

    library = title = "torchao"
    joint = OF_TORCHAO
    parts = Struct(
        "qdata" / i8[ROWS, COLUMNS] * "signed codes",
        "scale" / f32[GRID] * "scales",
        "zero_point" / i8[GRID] * "zero points",
    )
    optional, marks = ("zero_point",), ("qdata",)


class Int8OfBitsandbytes(CodesOfRows):
    """LLM.int8: integers of eight bits with a scale per row, which is divided by 127."""

    library, title = "bitsandbytes", "bitsandbytes LLM.int8"
    parts = Struct(
        "weight" / i8[ROWS, COLUMNS] * "signed codes",
        "SCB" / f32[ROWS] * "127 times the scale of each row",
        "weight_format" / u8[NUMBER] * "layout of the codes: 0 for rows",
    )
    optional, marks = ("weight_format",), ("SCB",)
    type_name, bits = "INT8_ROW", 8

    def solve(self) -> None:
        self.shape, self.block = self.tensors["weight"].shape, (1, self.tensors["weight"].shape[-1])
        if "weight_format" in self.tensors and (found := int(self.array("weight_format").reshape(-1)[0])):
            raise self.refusal(f"expected weight_format 0, rows, found {found}")

    def scales(self, rows: range) -> Array:
        return float32_of(self.of_rows("SCB", rows))


class Integers(CompositeWeight):
    """Integers of 2 to 8 bits with zero points. Subclasses unpack codes and zero points."""

    @property
    def type_name(self) -> str:  # type: ignore[override]
        """The type: codes of four bits stay two a byte, unless each column has its own scale."""
        return "UINT4" if self.bits == 4 and self.unit % 2 == 0 else "UINT8"

    def stored_codes(self, codes: Array) -> Array:
        """Returns unpacked codes [rows, columns] as the type stores them."""
        return in_pairs(codes) if self.type_name == "UINT4" else codes

    def solve_order(self, part: str, groups: int) -> None:
        """Sets the group of each column, from a part, if the columns of a group are not
        neighbours."""
        if part in self.tensors:
            order = self.array(part).view(np.int32)
            if order.shape != (self.columns,):
                raise self.expect(part, f"{[self.columns]} for a weight {list(self.shape)}")
            if order.size and not 0 <= order.min() <= order.max() < groups:
                worst = int(order.max() if order.max() >= groups else order.min())
                raise self.refusal(f"expected groups of 0 to {groups - 1} in {part}, found {worst}")
            if not np.array_equal(order, np.arange(self.columns) // self.block[1]):
                self.order = order

    def solve_group(self, groups: int, part: str) -> None:
        """Sets the block for a number of groups per row. Raises TensorError if it contradicts the
        config."""
        group = self.facts.group if (self.facts.group or 0) > 0 else -(-self.columns // max(groups, 1))
        group = self.columns if self.facts.group == -1 else group
        if -(-self.columns // max(group or 1, 1)) != groups:
            of = f"{-(-self.columns // max(group or 1, 1))} groups of {group} for {self.columns} columns"
            raise self.expect(part, of)
        self.block = (1, group or 1)

    def solve_bits(self, found: float) -> None:
        """Sets the bits of a code. Raises TensorError unless they are 2 to 8, as in the config."""
        if found not in WIDTHS or (self.facts.bits or found) != found:
            expected = self.facts.bits or "2 to 8"
            raise self.refusal(f"expected codes of {expected} bits, found {found:g} by the shapes of {', '.join(self.tensors)}")
        self.bits = int(found)


class PackedIntegers(Integers):
    """Integers of 2 to 8 bits: a stream of bits per row, and zero points down the rows. Before
    version 0.18, no code crossed from a word to the next."""

    library = "compressed-tensors"
    parts = Struct(
        "weight_packed" / i32[ROWS, this._params.words] * "a stream of codes per row, the lowest bits first",
        "weight_scale" / f32[GRID] * "scales",
        "weight_shape" / i64[2] * "rows and columns",
        "weight_zero_point" / i32[this._params.zero_words, -(-COLUMNS // GROUP)] * "zero points, packed down the rows",
        "weight_g_idx" / i32[COLUMNS] * "the group of each column",
    )
    optional = ("weight_zero_point", "weight_g_idx")
    per_word = 0  # codes in each word, if none crosses from a word to the next

    @property
    def title(self) -> str:
        return f"{self.library} W{self.bits}A16"

    def solve(self) -> None:
        if self.tensors["weight_shape"].shape != (2,):
            raise self.expect("weight_shape", "[2]")
        rows, columns = (int(size) for size in self.array("weight_shape"))
        if min(rows, columns) < 1:
            raise self.refusal(f"expected positive sizes in weight_shape, found {[rows, columns]}")
        found = self.tensors["weight_packed"].shape
        if len(found) != 2 or found[0] != rows or columns > 32 * found[1]:
            raise self.expect("weight_packed", f"words of {rows} rows for a weight {[rows, columns]}")
        self.shape, wanted = (rows, columns), [self.facts.bits] if self.facts.bits else [4, 8, 2, 3, 5, 6, 7]
        fitting = [(bits, per) for bits in wanted for per in (0, 32 // bits) if words_of(columns, bits, per) == found[1]]
        if not fitting:
            bits = self.facts.bits or "2 to 8"
            raise self.expect("weight_packed", f"words of {columns} codes of {bits} bits per row")
        self.bits, self.per_word = fitting[0]
        self.extra = {part: words_of(count, *fitting[0]) for part, count in (("words", columns), ("zero_words", rows))}
        if "weight_g_idx" in self.tensors and -1 not in self.array("weight_g_idx").view(np.int32):  # which says no order
            groups = self.matrix("weight_scale")[1]
            self.solve_group(groups, "weight_scale")
            self.solve_order("weight_g_idx", groups)
        self.block = self.solve_block("weight_scale")

    def codes(self, rows: range) -> Array:
        """Returns the codes of rows."""
        stored = self.of_rows("weight_packed", rows)
        if self.type_name == "UINT4":
            return np.ascontiguousarray(stored).view(np.uint8)[:, : self.columns // 2]
        return unpack(stored, self.bits, self.columns, self.per_word)

    def zeros(self, rows: range) -> Array:
        """Returns the zero points of rows, i16."""
        if "weight_zero_point" not in self.tensors:
            return np.full((len(rows), self.columns // self.unit), 1 << self.bits - 1, np.int16)
        stored = unpack(np.ascontiguousarray(self.array("weight_zero_point").T), self.bits, self.rows, self.per_word)
        return self.by_unit(stored.T[rows.start : rows.stop].astype(np.int16))


class Transposed(Integers):
    """Integers whose codes and scales are stored by columns of the weight: GPTQ and AWQ."""

    def solve_transposed(self, rows: int, bits: float, columns: float) -> None:
        """Sets sizes that the parts' shapes give."""
        self.solve_bits(bits)
        self.shape = (rows, int(columns))
        groups = self.matrix("scales")[0]
        self.solve_group(groups, "scales")
        self.solve_order("g_idx", groups)

    def scales(self, rows: range) -> Array:
        return float32_of(self.by_unit(self.of_columns("scales", rows)))

    def of_columns(self, part: str, rows: range) -> Array:
        """Returns a part's numbers of some rows of the weight: [rows, numbers]."""
        first = slice(0, self.tensors[part].shape[0])
        return np.ascontiguousarray(self.array(part, first, slice(rows.start, rows.stop)).T)


class GPTQ(Transposed):
    """GPTQ: codes packed down the columns of the weight, zero points along its rows. Version 1
    stores zero points minus one."""

    library = title = "GPTQ"
    parts = Struct(
        "qweight" / i32[COLUMNS * BITS // 32, ROWS] * "a stream of codes per row of the weight, the lowest bits first",
        "qzeros"
        / i32[-(-COLUMNS // GROUP), ROWS * BITS // 32]
        * "zero points, minus one in version 1, a stream along the rows",
        "scales" / f32[-(-COLUMNS // GROUP), ROWS] * "scales",
        "g_idx" / i32[COLUMNS] * "the group of each column",
    )
    optional = ("g_idx",)
    packed = ("qweight", "qzeros", "scales")  # of AWQ, too
    versions = ("", "gptq", "gptq_v2")

    @classmethod
    def fits(cls, tensors: Mapping[str, StoredTensor]) -> bool:
        words, zeros, scales = ([*tensors[part].shape[-1:]] if part in tensors else None for part in cls.packed)
        is_awq = words and (words == zeros or [8 * words[0]] == scales)
        return super().fits(tensors) and not is_awq

    def solve(self) -> None:
        (words, rows), zeros = self.matrix("qweight"), self.matrix("qzeros")
        if self.facts.version not in self.versions:
            raise self.refusal(
                f"expected checkpoint_format {alternatives(self.versions[1:])}, found {quote(self.facts.version)}"
            )
        bits = 32 * zeros[1] / max(rows, 1)
        self.solve_transposed(rows, bits, 32 * words / max(bits, 1))

    def codes(self, rows: range) -> Array:
        """Returns the codes of rows."""
        stored = self.of_columns("qweight", rows)
        return stored.view(np.uint8) if self.type_name == "UINT4" else unpack(stored, self.bits, self.columns)

    def zeros(self, rows: range) -> Array:
        """Returns the zero points of rows, i16."""
        stored = unpack(self.array("qzeros"), self.bits, self.rows)[:, rows.start : rows.stop].T
        return self.by_unit(stored.astype(np.int16) + np.int16(self.facts.version != "gptq_v2"))


class AWQ(Transposed):
    """AWQ for matrix products (GEMM): eight codes in a word, the even ones first."""

    library = title = "AWQ"
    parts = Struct(
        "qweight" / i32[COLUMNS, ROWS // 8] * "codes of eight rows, 0 2 4 6 1 3 5 7 from the lowest bits",
        "qzeros" / i32[-(-COLUMNS // GROUP), ROWS // 8] * "zero points in the same order",
        "scales" / f32[-(-COLUMNS // GROUP), ROWS] * "scales",
    )
    order_in_word = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32) * np.uint32(4)

    def solve(self) -> None:
        columns, words = self.matrix("qweight")
        if self.facts.version not in ("", "gemm"):
            raise self.refusal(f"expected version gemm, found {quote(self.facts.version)}")
        self.solve_transposed(8 * words, 4, columns)

    def unpacked(self, part: str, rows: range) -> Array:
        """Returns codes or zero points of rows, u8 [rows, numbers]."""
        found = self.array(part, slice(0, self.tensors[part].shape[0]), slice(rows.start // 8, -(-rows.stop // 8)))
        codes = (found[..., None] >> self.order_in_word & np.uint32(15)).astype(np.uint8).reshape(len(found), -1)
        return np.ascontiguousarray(codes[:, rows.start % 8 :][:, : len(rows)].T)

    def codes(self, rows: range) -> Array:
        """Returns the codes of rows."""
        return self.stored_codes(self.unpacked("qweight", rows))

    def zeros(self, rows: range) -> Array:
        """Returns the zero points of rows, i16."""
        return self.by_unit(self.unpacked("qzeros", rows).astype(np.int16))


class NVFP4(CodesOfRows):
    """NVFP4: E2M1 codes, E4M3 scales of 16 columns, and a scale of the tensor."""

    library, title, bits = "ModelOpt", "ModelOpt NVFP4", 4
    parts = Struct(
        "weight" / u8[OUTER, COLUMNS // 2] * "two E2M1 codes a byte, the first one low",
        "weight_scale" / E4M3[OUTER, COLUMNS // 16] * "E4M3 scales of 16 columns",
        "weight_scale_2" / f32[NUMBER] * "the scale of the tensor, a factor",
    )
    marks, type_name, block = ("weight_scale_2",), "FP4_E4M3", (1, 16)

    def solve(self) -> None:
        *outer, pairs = self.tensors[self.codes_part].shape
        self.shape = (*outer, 2 * pairs)

    def scales(self, rows: range) -> Array:
        return words(self.of_rows(self.scale, rows))

    def factors(self, rows: range) -> Array:
        """Returns the scale of the tensor for each row, float32."""
        return np.full((len(rows), 1), float32_of(self.array([*self.declared()][2])).reshape(()))


class NVFP4OfGGUF(NVFP4):
    """NVFP4 of GGUF with a scale of the tensor, or of each matrix of a stack."""

    library, title = "GGUF", "GGUF NVFP4"
    parts = Struct(
        "weight" / u8[LENGTH] * "blocks of 64, each four E4M3 scales and 64 codes",
        "scale" / f32[LENGTH] * "the scale of the tensor, or of each matrix, a factor",
    )
    marks = ("scale",)

    @classmethod
    def fits(cls, tensors: Mapping[str, StoredTensor]) -> bool:
        packed = tensors["weight"].packed
        return "scale" in tensors and packed is not None and packed.type == BLOCKS

    def solve(self) -> None:
        self.shape = self.tensors["weight"].shape
        if math.prod(self.tensors["scale"].shape) not in (1, self.shape[0] if len(self.shape) > 2 else 1):
            raise self.expect("scale", "one number, or one for each matrix")

    def blocks(self, rows: range) -> Array:
        """Returns the blocks of rows, u8 [blocks, bytes]."""
        tensor = self.tensors["weight"].packed
        assert tensor is not None
        per = self.rows // self.shape[0]
        first = rows.start // per
        stored = tensor.packed_rows((slice(first, -(-rows.stop // per)), slice(None))).reshape(-1, self.columns // 64, 36)
        return stored[rows.start - first * per :][: len(rows)].reshape(-1, 36)

    def codes(self, rows: range) -> Array:
        return to_neighbours(self.blocks(rows)[:, 4:].reshape(-1, 8)).reshape(len(rows), -1)

    def scales(self, rows: range) -> Array:
        stored = self.blocks(rows)[:, :4] & NAN
        return np.where(stored == NAN, np.uint8(0), stored).reshape(len(rows), -1)

    def factors(self, rows: range) -> Array:
        factors = float32_of(self.array("scale")).reshape(-1)
        at = np.arange(rows.start, rows.stop) // (self.rows // len(factors))
        return factors[at][:, None]


class PackedNVFP4(NVFP4):
    """NVFP4 whose scale of the tensor is a divisor."""

    library, title = "compressed-tensors", "compressed-tensors NVFP4"
    parts = Struct(
        "weight_packed" / u8[OUTER, COLUMNS // 2] * "two E2M1 codes a byte, the first one low",
        "weight_scale" / E4M3[OUTER, COLUMNS // 16] * "E4M3 scales of 16 columns",
        "weight_global_scale" / f32[NUMBER] * "the scale of the tensor, a divisor",
    )
    marks, type_name = ("weight_global_scale",), "FP4_E4M3_DIVIDED"

    def solve(self) -> None:
        super().solve()
        if not float32_of(self.array("weight_global_scale")).all():
            raise self.refusal("expected weight_global_scale as a divisor, found 0")


class MXFP4(NVFP4):
    """MXFP4: E2M1 codes, and a power of two for each 32 columns."""

    library, title = "compressed-tensors", "compressed-tensors MXFP4"
    parts = Struct(
        "weight_packed" / u8[OUTER, COLUMNS // 2] * "two E2M1 codes a byte, the first one low",
        "weight_scale" / u8[OUTER, COLUMNS // 32] * "E8M0 scales: 2^(e - 127)",
    )
    marks, type_name, block = ("weight_packed",), "FP4_E8M0", (1, 32)


class FP4InBlocks(MXFP4):
    """E2M1 codes with powers of two, under the names of FP8 in blocks."""

    library, title = "FP8", "FP8 with FP4 experts"
    parts = Struct(
        "weight" / i8[OUTER, COLUMNS // 2] * "two E2M1 codes a byte, the first one low",
        "weight_scale_inv" / E8M0[OUTER, COLUMNS // 32] * "scales, in spite of the name",
    )
    marks = ("weight_scale_inv",)

    def codes(self, rows: range) -> Array:
        return super().codes(rows).view(np.uint8)


class MXFP4OfTorchao(MXFP4):
    """MXFP4 of torchao, without swizzled scales."""

    library, title, joint = "torchao", "torchao MXFP4", OF_TORCHAO
    parts = Struct(
        "qdata" / u8[OUTER, COLUMNS // 2] * "two E2M1 codes a byte, the first one low",
        "scale" / E8M0[OUTER, COLUMNS // 32] * "scales",
    )
    marks = ("scale",)


class NVFP4OfTorchao(NVFP4):
    """NVFP4 of torchao, without swizzled scales."""

    library, title, joint = "torchao", "torchao NVFP4", OF_TORCHAO
    parts = Struct(
        "qdata" / u8[OUTER, COLUMNS // 2] * "two E2M1 codes a byte, the first one low",
        "scale" / E4M3[OUTER, COLUMNS // 16] * "E4M3 scales of 16 columns",
        "per_tensor_scale" / f32[NUMBER] * "the scale of the tensor, a factor",
    )
    marks = ("per_tensor_scale",)


class MXFP4OfGptOss(MXFP4):
    """MXFP4 of gpt-oss: experts, whose blocks are dims of their own."""

    library, title, joint, ending = "gpt-oss", "gpt-oss MXFP4", "_", ""
    parts = Struct(
        "blocks" / u8[OUTER, COLUMNS // 32, 16] * "two E2M1 codes a byte, the first one low",
        "scales" / u8[OUTER, COLUMNS // 32] * "E8M0 scales: 2^(e - 127)",
    )
    marks = ("scales",)

    def solve(self) -> None:
        *outer, blocks, _ = self.tensors["blocks"].shape
        self.shape = (*outer, 32 * blocks)


class MLX(CompositeWeight):
    """MLX: integers of 1 to 8 bits, a stream of bits per row, with scales and biases."""

    library = title = "MLX"
    parts = Struct(
        "weight" / u32[OUTER, COLUMNS * BITS // 32] * "a stream of codes per row, the lowest bits first",
        "scales" / f32[OUTER, COLUMNS // GROUP] * "scales",
        "biases" / f32[OUTER, COLUMNS // GROUP] * "biases",
    )
    marks = ("scales", "biases")

    @classmethod
    def fits(cls, tensors: Mapping[str, StoredTensor]) -> bool:
        return super().fits(tensors) and ("scales" not in tensors or is_float(tensors["scales"].dtype))

    def solve(self) -> None:
        if self.facts.bits not in range(1, 9) or (self.facts.group or 0) < 1:
            raise self.refusal("expected bits and group_size of the weight under quantization in config.json, found none")
        *outer, words = self.tensors["weight"].shape
        self.bits, self.block = self.facts.bits or 0, (1, self.facts.group or 0)
        self.shape = (*outer, 32 * words // self.bits)

    @property
    def type_name(self) -> str:  # type: ignore[override]
        """The type: codes of four bits stay two a byte."""
        return "AFFINE4" if self.bits == 4 else "AFFINE8"

    def codes(self, rows: range) -> Array:
        """Returns the codes of rows."""
        stored = np.ascontiguousarray(self.of_rows("weight", rows))
        return stored.view(np.uint8) if self.bits in (4, 8) else unpack(stored, self.bits, self.columns)

    def scales(self, rows: range) -> Array:
        return float32_of(self.by_unit(self.of_rows("scales", rows)))

    def biases(self, rows: range) -> Array:
        """Returns the biases of rows, float32."""
        return float32_of(self.by_unit(self.of_rows("biases", rows)))


class FloatsOfMLX(CodesOfRows):
    """MXFP4, MXFP8 and NVFP4 of MLX: four or eight codes in a word, as the mode says."""

    library = "MLX"
    parts = Struct(
        "weight" / u32[OUTER, COLUMNS * BITS // 32] * "E2M1 or E4M3 codes, the first one low",
        "scales" / u8[OUTER, COLUMNS // GROUP] * "E8M0 scales of 32 columns, or for nvfp4 E4M3 scales of 16",
        "global_scale" / f32[NUMBER] * "for nvfp4, 2688 times the scale of the tensor",
    )
    optional, marks = ("global_scale",), ("scales",)
    modes: ClassVar = {"mxfp4": ("FP4_E8M0", 4, 32), "mxfp8": ("FP8_E4M3", 8, 32), "nvfp4": ("FP4_E4M3", 4, 16)}

    @property
    def title(self) -> str:
        return f"{self.library} {self.facts.mode.upper()}"

    def solve(self) -> None:
        if self.facts.mode not in self.modes:
            raise self.refusal(f"expected a mode without biases, {alternatives(self.modes)}, found {quote(self.facts.mode)}")
        self.type_name, self.bits, group = self.modes[self.facts.mode]
        *outer, count = self.tensors["weight"].shape
        self.shape, self.block = (*outer, 32 * count // self.bits), (1, group)

    def codes(self, rows: range) -> Array:
        return np.ascontiguousarray(self.of_rows("weight", rows)).view(np.uint8)

    def scales(self, rows: range) -> Array:
        stored = self.of_rows("scales", rows)
        return stored if self.bits == 4 else float32_of(e8m0(stored))

    def factors(self, rows: range) -> Array:
        """Returns the scale of the tensor for each row, float32."""
        stored = float32_of(self.array("global_scale")).reshape(()) if "global_scale" in self.tensors else 6 * 448
        return np.full((len(rows), 1), stored / FLOAT32.type(6 * 448), FLOAT32)


class Bitsandbytes4(CompositeWeight):
    """NF4 or FP4 of bitsandbytes: codes of the flat weight, the first one high, and the largest
    magnitude of each block, which may be quantized itself."""

    library = "bitsandbytes"
    stored_names: ClassVar = {name: f"weight.{name}" for name in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")}
    nests: bool  # whether scales are quantized
    values: LookupTable  # of codes

    @classmethod
    def fits(cls, tensors: Mapping[str, StoredTensor]) -> bool:
        return super().fits(tensors) and "quant_state" in tensors and ("nested_absmax" in tensors) == cls.nests

    @property
    def text(self) -> str:
        return f"{self.library} {self.type_name}, {self.bits} bits, blocks of {self.block[1]}"

    def solve(self) -> None:
        state = "quant_state"
        try:
            self.state = json.loads(self.array(state).tobytes())
            self.shape, size = tuple(map(int, self.state["shape"])), int(self.state["blocksize"])
            self.offset = float(self.state.get("nested_offset", 0))
            nested = int(self.state.get("nested_blocksize", 1))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise self.refusal(f"expected JSON with shape and blocksize in {state}, found something else") from None
        self.block, self.nested, numbers = (1, size), nested, math.prod(self.shape)
        self.extra = {"numbers": numbers, "blocks": -(-numbers // max(size, 1)), "nested": -(-numbers // max(size * nested, 1))}
        if len(self.shape) < 2 or min(size, nested, *self.shape) < 1 or self.columns % 2:
            expected = f"sizes from 1 and an even number of columns in {state}"
            raise self.refusal(f"expected {expected}, found {list(self.shape)} in blocks of {size}")
        if not np.array_equal(self.array("quant_map"), self.values.array.astype(FLOAT32)):
            raise self.refusal(f"expected the values of {self.type_name} in quant_map, found others")

    def codes(self, rows: range) -> Array:
        """Returns the codes of rows."""
        pitch = self.columns // 2
        return self.array("weight", slice(rows.start * pitch, rows.stop * pitch)).reshape(len(rows), pitch)

    def scales(self, rows: range) -> Array:
        found = self.array("absmax")
        if found.dtype == np.uint8:
            absmax, blocks = self.array("nested_absmax"), np.arange(len(found)) // self.nested
            found = self.array("nested_quant_map")[found] * absmax[blocks] + np.float32(self.offset)
        first = np.arange(rows.start * self.columns, rows.stop * self.columns, self.unit)
        return float32_of(found[first // self.block[1]].reshape(len(rows), -1))


def bitsandbytes4(name: str, nested: bool) -> type[CompositeWeight]:
    """Declares NF4 or FP4, with scales in float32 or quantized."""
    parts = [
        "weight" / u8[this._params.numbers // 2, 1] * f"two {name} codes a byte, the first one high",
        "absmax" / (u8 if nested else f32)[this._params.blocks] * "the largest magnitude of each block, or its code",
        "quant_map" / f32[16] * "the value of each code",
        "quant_state" / u8[LENGTH] * "JSON with the shape and the size of blocks",
    ]
    if nested:
        parts += [
            "nested_absmax" / f32[this._params.nested] * "the largest magnitude of each block of codes",
            "nested_quant_map" / f32[256] * "the value of each code",
        ]
    stored_names = {**Bitsandbytes4.stored_names, "quant_state": f"weight.quant_state.bitsandbytes__{name.lower()}"}
    values = NF4_VALUES if name == "NF4" else FP4_VALUES
    own = {"parts": Struct(*parts), "type_name": name, "values": values, "nests": nested, "stored_names": stored_names}
    return type(f"{name}{'Nested' * nested}", (Bitsandbytes4,), own)


# fmt: off
SCHEMES: tuple[type[CompositeWeight], ...] = (  # the first one that fits
    *(bitsandbytes4(name, nested) for name in ("NF4", "FP4") for nested in (True, False)),
    Int8OfBitsandbytes,
    MLX, FloatsOfMLX,
    NVFP4OfGGUF, NVFP4, PackedNVFP4, MXFP4, MXFP4OfGptOss, MXFP8, FP4InBlocks, NVFP4OfTorchao, MXFP4OfTorchao,
    *fp8("FP8", "weight_scale_inv", "scales, in spite of the name"),
    *fp8("FP8", "weight_scale", "scales"),
    *fp8("FP8", "scale_weight", "scales"),
    *fp8("FP8", "qscale_weight", "scales"),
    *fp8("torchao", "scale", "scales", "qdata", OF_TORCHAO),
    Int8, Int8OfTorchao, PackedIntegers, GPTQ, AWQ,
)
# fmt: on
