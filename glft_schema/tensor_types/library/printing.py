"""Decoders, products and encoders of tensor types as C: loops that call scalar functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from glft_schema.scalar.as_c import ROUNDED, TYPES, TranslationUnit, lengths_of, name_in_c
from glft_schema.scalar.as_lanes import VECTORS, in_lanes
from glft_schema.scalar.as_vectors import VectorPrinter
from glft_schema.scalar.checking import check
from glft_schema.scalar.kinds import KINDS, OUTPUTS
from glft_schema.scalar.language import float32
from glft_schema.scalar.tree import ArrayType, Function
from glft_schema.tensor_types.scalar_layout import MOST_ROWS, ScalarField, ScalarLayout


def mean_square_of_row(w: Any, mean_square: Any) -> None:
    """The mean of w^2, added in order."""
    total = float32(0)
    for i in range(len(w)):
        total += w[i] * w[i]
    mean_square[0] = total / float32(len(w))


MEAN_SQUARE = {"w": ArrayType("f32", None), "mean_square": ArrayType("f32", 1, "out")}


PIECE = 256  # weights of a row that a product decodes at once, about


class TypesInC(TranslationUnit):
    """A translation unit with decoders, products and encoders.

    Args:
        prefix: of all names, for a unit that is part of a header; its decoders are static, and
            write only float32.
        taken: other names that are in use.
    """

    def __init__(self, prefix: str = "", taken: Collection[str] = ()) -> None:
        super().__init__(prefix, taken)
        self._outputs = {"f32": ""} if prefix else OUTPUTS
        self._static = "static inline " if prefix else ""

    def decoder(self, layout: ScalarLayout, source: Callable[..., Any]) -> str:
        """Adds decoders that write float32, float16 and bfloat16: NAME, NAME_f16 and NAME_bf16, and
        the product multiply_NAME. Returns NAME.

        The parameters are ``(blocks, w, n)`` for n blocks, or for rows ``(FIELD, ..., w, rows,
        columns)``; for the product see `_product`. A unit with a prefix has no product.

        Raises:
            ScalarError: if the function does not follow the language, or the name is in use.
        """
        name = f"{self._prefix}{layout.name}"
        self.reserve(*(name + suffix for suffix in self._outputs.values()))
        if layout.weights:
            self._decoder_of_blocks(layout, check(source, layout.arrays()), name)
        else:
            for output, suffix in self._outputs.items():
                self._decoder_of_rows(layout, check(source, layout.arrays(output)), name + suffix, TYPES[output])
        if not self._prefix:
            self._product(layout, name)
        return name

    def _decoder_of_blocks(self, layout: ScalarLayout, function: Function, name: str) -> None:
        size, weights = layout.offsets[-1], layout.weights
        lines = [f"  {field.name}: {field.number}[{field.count}], {field.sentence}" for field in layout.fields]
        sentence = "\n".join([f"{name}: {weights} weights in {size} bytes", *lines, function.sentence])
        call = self._call(layout, function, {"w": "w"}, sentence)
        text = (
            f"{self._static}void {name}(const uint8_t *blocks, float *w, int64_t n) {{\n"
            f"    for (int64_t b = 0; b < n; b++, blocks += {size}, w += {weights})\n        {call};\n}}\n"
        )
        for output, suffix in self._outputs.items():
            if output in ROUNDED:
                text += f"TO_HALVES({name}, {suffix}, {ROUNDED[output]}, {size}, {weights})\n"
        self._functions[name] = text

    def _decoder_of_rows(self, layout: ScalarLayout, function: Function, name: str, output: str) -> None:
        call = self._call(layout, function, {"w": "w + r * columns"})
        fields = "".join(f"const uint8_t *{name_in_c(field.name)}, " for field in layout.fields)
        unused = [f"    (void){name_in_c(field.name)};\n" for field in layout.fields if field.name not in function.parameters]
        self._functions[name] = (
            f"{self._static}void {name}({fields}{output} *w, int64_t rows, int64_t columns) {{\n"
            f"{''.join(unused)}    for (int64_t r = 0; r < rows; r++)\n        {call};\n}}\n"
        )

    def _product(self, layout: ScalarLayout, name: str) -> None:
        """Adds multiply_NAME. The parameters are ``(blocks, x, out, rows, columns, batch, pitch,
        stride)``, or for rows each FIELD in place of the blocks.

        ``out[b * stride + r]`` is the sum of ``x[b * columns + c] * w[r][c]`` over c, for `rows`
        rows of weights and 1 to `MOST_ROWS` rows of x. `pitch` is the bytes from one row of a field
        to the next. The bits of a sum are the same on all levels and machines, see lanes.h.
        """
        self.reserve(f"multiply_{name}")
        piece = math.lcm(layout.unit, 16)  # lanes.h computes the sums of pieces of 16 k weights
        piece *= -(-PIECE // piece)
        if layout.weights:
            fields = ["blocks_"]
            given = [f"blocks_ + r_ * pitch_ + c_ / {layout.weights} * {layout.offsets[-1]}", "w_", f"n_ / {layout.weights}"]
        else:
            fields = [f"{field.name}_" for field in layout.fields]
            starts = ["" if field.count else f" + {_size_of_row(field, 'c_')}" for field in layout.fields]
            given = [*(f"{field} + r_ * pitch_{start}" for field, start in zip(fields, starts, strict=True)), "w_", "1", "n_"]
        parameters = "".join(f"const uint8_t *{field}, " for field in fields)
        decode = f"{name}({', '.join(given)})"
        self._functions[f"multiply_{name}"] = (
            f"void multiply_{name}({parameters}const float *x_, float *out_, int64_t rows_, int64_t columns_, "
            f"int64_t batch_, int64_t pitch_, int64_t stride_)\n    MULTIPLY({MOST_ROWS}, {piece}, {decode})\n"
        )

    def encoder(self, layout: ScalarLayout, source: Callable[..., Any], *, lanes: bool = False) -> str:
        """Adds an encoder, ``encode_NAME`` or ``encode_NAME_by_importance``. Returns this name.

        The parameters are ``(w, blocks, rows, columns)``, or for types of rows ``(w, FIELD, ...,
        rows, columns)``. If the source has a parameter `importance`, the importance of a row's
        weights follows `w`.

        Args:
            layout: of what is written.
            source: the scalar function.
            lanes: whether several blocks are encoded at once, see `as_lanes`, or one after the
                other.

        Raises:
            ScalarError: if the function does not follow the language, cannot be printed in lanes,
                or the name is in use.
        """
        function = check(source, layout.encoder_arrays())
        by_importance = "importance" in function.parameters
        name = f"{self._prefix}encode_{layout.name}{'_by_importance' * by_importance}"
        outputs = ["blocks"] if layout.weights else [name_in_c(field.name) for field in layout.fields]
        lines = ["float mean_square[1] = {0};"] if "mean_square" in function.parameters else []
        lines += self._in_lanes(layout, function) if lanes else self._one_by_one(layout, function)
        given = [*["const float *importance"] * by_importance, *(f"uint8_t *{output}" for output in outputs)]
        head = f"{self._static}void {name}(const float *w, {', '.join(given)}, int64_t rows, int64_t columns) {{"
        self.reserve(name)
        self._functions[name] = "\n".join([head, *(f"    {line}" for line in lines), "}\n"])
        return name

    def _one_by_one(self, layout: ScalarLayout, function: Function) -> list[str]:
        """Returns the statements that encode one block or row after the other."""
        lines = []
        if "mean_square" in function.parameters:
            lines.append(f"{self._mean_square()}(w, mean_square, (int32_t)columns);")
        if layout.weights:
            places = {"w": "w", "importance": "importance + b", "mean_square": "mean_square"}
            moved = f"b += {layout.weights}, w += {layout.weights}, blocks += {layout.offsets[-1]}"
            lines += [f"for (int64_t b = 0; b < columns; {moved})", f"    {self._call(layout, function, places)};"]
        else:
            lines.append(f"{self._call(layout, function, {'w': 'w + r * columns'})};")
        return ["for (int64_t r = 0; r < rows; r++) {", *(f"    {line}" for line in lines), "}"]

    def _in_lanes(self, layout: ScalarLayout, function: Function) -> list[str]:
        """Returns the statements that encode a block in each lane."""
        weights, local, stored = layout.weights, [], []
        for field, at in zip(layout.fields, layout.offsets, strict=False):
            if field.name in function.parameters:
                vector, value = VECTORS[function.parameters[field.name].kind], f"{field.name}_lanes[i][l]"
                local.append(f"{vector} {field.name}_lanes[{field.count}];")
                number = f"to_half({value})" if field.number == "f16" else f"({TYPES[field.number]}){value}"
                place = f"(({TYPES[field.number]} *)(blocks + block * {layout.offsets[-1]} + {at}))[i]"
                stored.append(f"for (int32_t i = 0; i < {field.count}; i++) {place} = {number};")
        lines = [*local, "int64_t places[LANES];", "EACH_LANE places[l] = b + l < n ? b + l : n - 1;"]
        for given, first in (("w", f"places[l] * {weights}"), ("importance", f"places[l] * {weights} % columns")):
            if given in function.parameters:
                lines += [f"vf {given}_lanes[{weights}];", f"for (int32_t i = 0; i < {weights}; i++)"]
                lines.append(f"    EACH_LANE {given}_lanes[i][l] = {given}[{first} + i];")
        head = [f"int64_t n = rows * (columns / {weights});"]
        if "mean_square" in function.parameters:
            head.insert(0, "int64_t last = -1;")
            lines += ["vf mean_square_lanes[1];", "EACH_LANE {", f"    int64_t row = places[l] * {weights} / columns;"]
            lines.append(f"    if (row != last) {self._mean_square()}(w + row * columns, mean_square, (int32_t)columns);")
            lines += ["    last = row;", "    mean_square_lanes[0][l] = mean_square[0];", "}"]
        arguments = ", ".join(f"{parameter}_lanes" for parameter in function.parameters)
        lines.append(f"{in_lanes(self, function, (), function.parameters)}(all_i(-1), {arguments});")
        lines += ["for (int32_t l = 0; l < LANES && b + l < n; l++) {", "    int64_t block = places[l];"]
        lines += [*(f"    {line}" for line in stored), "}"]
        return [*head, "for (int64_t b = 0; b < n; b += LANES) {", *(f"    {line}" for line in lines), "}"]

    def _call(self, layout: ScalarLayout, function: Function, places: dict[str, str], sentence: str = "") -> str:
        """Returns the call for one block, or for the row `r`. `places` has the other arguments."""
        for field, at in zip(layout.fields, layout.offsets, strict=False):
            place = f"blocks + {at}" if layout.weights else f"{name_in_c(field.name)} + r * ({_size_of_row(field)})"
            is_read = getattr(function.parameters.get(field.name), "use", "") == "in"
            places[field.name] = f"({'const ' * is_read}{TYPES[field.number]} *)({place})"
        lengths = {"w": "(int32_t)columns", **{one.name: f"(int32_t)(columns / {one.weights})" for one in layout.fields}}
        given = [*(places[name] for name in function.parameters), *(lengths[name] for name in lengths_of(function))]
        decodes = "w" in function.parameters and getattr(function.parameters["w"], "use", "") == "out"
        printer = VectorPrinter if decodes and not self._prefix else None
        return f"{self.function(function, sentence, '__restrict ', printer)}({', '.join(given)})"

    def _mean_square(self) -> str:
        """Returns the name in C of `mean_square_of_row`, after adding it."""
        if "mean_square" not in self.names:
            function = check(mean_square_of_row, MEAN_SQUARE)
            self.names["mean_square"] = function, self.function(function)
        return self.names["mean_square"][1]


def _size_of_row(field: ScalarField, columns: str = "columns") -> str:
    """Returns the size in bytes of a field in a row of `columns` weights, as C."""
    width = KINDS[field.number].size
    if field.count:
        return str(width * field.count)
    return columns + (f" / {field.weights}" if field.weights > 1 else "") + (f" * {width}" if width > 1 else "")
