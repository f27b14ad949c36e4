"""Scalar functions as C: one translation unit without calls of libraries, for any C11 compiler with
the builtins of gcc.

Compile with FLAGS. Fields may begin at any byte; numbers are in the machine's byte order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glft_schema.scalar.checking import check
from glft_schema.scalar.tree import (
    Array,
    Assign,
    Binary,
    Break,
    Builtin,
    Call,
    Constant,
    Declare,
    Expression,
    For,
    Function,
    If,
    Invoke,
    Length,
    Load,
    Reference,
    Return,
    Select,
    Statement,
    Store,
    Unary,
    Variable,
    View,
    While,
    walk,
)

FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fno-strict-aliasing")
# fmt: off
TYPES = {"u8": "uint8_t", "i8": "int8_t", "u16": "u16", "i16": "i16", "u32": "u32", "i32": "i32", "f16": "u16", "bf16": "u16",
         "f32": "f32"}
KINDS = {"float32": "float", "int32": "int32_t", "bool": "int32_t"}
SIGNS = {"//": "/", "and": "&&", "or": "||", "not": "!"}
# The operations that need no parentheses as the left and as the right operand of another.
LEFT = {"+": "+-*/", "-": "+-*/", "*": "*/", "/": "*/", "&": "&", "|": "|", "^": "^", "&&": "&& < <= > >=", "||": "|| < <= > >="}
RIGHT = {"+": "*/", "-": "*/", "&&": "< <= > >=", "||": "< <= > >="}
RESERVED = {
    *"auto break case char const continue default do double else enum extern float for goto if inline int long register".split(),
    *"restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof".split(),
    *"alignas bool catch class constexpr delete explicit export false friend mutable namespace new nullptr operator".split(),
    *"private protected public template this throw true try typename using virtual xor and or not main".split(),
    *"f32 i16 i32 u16 u32 as_float as_bits of_half to_half to_bfloat nearest root".split(),
    *(f"{name}_{kind}" for name in ("abs", "min", "max") for kind in ("float32", "int32")),
}
# fmt: on
HEAD = """#include <stdint.h>

// Numbers of fields, which may begin at any byte.
typedef float f32 __attribute__((aligned(1)));
typedef int16_t i16 __attribute__((aligned(1)));
typedef int32_t i32 __attribute__((aligned(1)));
typedef uint16_t u16 __attribute__((aligned(1)));
typedef uint32_t u32 __attribute__((aligned(1)));

static inline float as_float(uint32_t bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
static inline uint32_t as_bits(float x) { uint32_t bits; __builtin_memcpy(&bits, &x, 4); return bits; }
static inline float root(float x) { return __builtin_sqrtf(x); }
static inline float abs_float32(float x) { return __builtin_fabsf(x); }
static inline int32_t abs_int32(int32_t x) { return x < 0 ? -x : x; }
static inline float min_float32(float x, float y) { return y < x ? y : x; }
static inline float max_float32(float x, float y) { return y > x ? y : x; }
static inline int32_t min_int32(int32_t x, int32_t y) { return y < x ? y : x; }
static inline int32_t max_int32(int32_t x, int32_t y) { return y > x ? y : x; }
static inline int32_t nearest(float x) { return (int32_t)(as_bits(x + 12582912.0f) & 0x7FFFFF) - 0x400000; }

// float16 as float32; subnormal numbers are integers times 2^-24
static inline float of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3FF;
    if (exponent == 0) return as_float(sign | as_bits((float)mantissa * 0x1p-24f));
    return as_float(sign | (exponent == 31 ? 0x7F800000 : (exponent + 112) << 23) | mantissa << 13);
}

// rounds half to even; the sum with 0.5 rounds subnormal numbers
static inline uint16_t to_half(float x) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    uint32_t normal = (size + 0xFFF + (size >> 13 & 1) - 0x38000000) >> 13;
    uint32_t subnormal = as_bits(as_float(size) + 0.5f) - 0x3F000000;
    uint32_t large = size > 0x7F800000 ? 0x7E00 : 0x7C00;
    return (uint16_t)(sign | (size < 0x38800000 ? subnormal : size >= 0x477FF000 ? large : normal));
}

// bfloat16, rounded half to even
static inline uint16_t to_bfloat(float x) {
    uint32_t bits = as_bits(x);
    return (uint16_t)(x != x ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#define TO_HALVES(NAME, SUFFIX, CONVERTED, SIZE, WEIGHTS) \\
    void NAME##SUFFIX(const uint8_t *blocks, uint16_t *w, int64_t n) { \\
        float block[WEIGHTS]; \\
        for (int64_t b = 0; b < n; b++, blocks += SIZE, w += WEIGHTS) { \\
            NAME(blocks, block, 1); \\
            for (int32_t i = 0; i < WEIGHTS; i++) w[i] = CONVERTED(block[i]); \\
        } \\
    }
"""


@dataclass(frozen=True)
class Field:
    """A field of a block or of a row.

    Attributes:
        name: as in the layout.
        number: the kind of its numbers, such as u8.
        count: of numbers; None if it depends on the row's length.
        sentence: for the comment.
        weights: per number, if the count depends on the row's length.
    """

    name: str
    number: str
    count: int | None
    sentence: str = ""
    weights: int = 1

    def size(self, columns: str = "") -> str:
        """Bytes in a block, or in a row of `columns` weights."""
        width = 1 if self.number in ("u8", "i8") else 4 if self.number.endswith("32") else 2
        return str(width * self.count) if self.count else f"{columns} / {self.weights} * {width}"


@dataclass(frozen=True)
class Layout:
    """What a decoder reads, and its name in C.

    Attributes:
        name: of the function in C.
        fields: of a block, in order, or of a row; rows are stored field by field.
        weights: per block; None for rows.
    """

    name: str
    fields: tuple[Field, ...]
    weights: int | None

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return sum(int(one.size()) for one in self.fields)

    def arrays(self, output: str = "f32") -> dict[str, Array]:
        """Returns the arrays that a decoder may use, by name."""
        return {"w": Array(output, self.weights, "out"), **{one.name: Array(one.number, one.count) for one in self.fields}}


class Unit:
    """A translation unit. Functions and tables are printed when they are first used; equal texts
    once."""

    def __init__(self) -> None:
        self._tables: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self._names: dict[int, tuple[Any, str]] = {}  # tables and functions, kept alive, and their names

    def __str__(self) -> str:
        return "\n".join([HEAD, *self._tables.values(), "", *self._functions.values()])

    def _add(self, thing: Any, name: str, text: str, printed: dict[str, str]) -> str:
        """Adds a text in which NAME stands for the name; returns the name in C."""
        names = (f"{name}{suffix}" for suffix in ("", *map("_{}".format, range(2, 1000))))
        chosen = next(one for one in names if printed.get(one) in (None, text.replace("NAME", one)) and one not in RESERVED)
        printed[chosen] = text.replace("NAME", chosen)
        self._names[id(thing)] = thing, chosen
        return chosen

    def table(self, array: Reference) -> str:
        """Returns the name in C of a constant array."""
        numbers = array.table
        assert numbers is not None
        if id(numbers) in self._names:
            return self._names[id(numbers)][1]
        texts = [_constant(number, array.type.kind) for number in numbers.tolist()]
        rows = "".join(f"\n    {','.join(texts[at : at + 32])}," for at in range(0, len(texts), 32))
        text = f"static const {TYPES[array.type.number]} NAME[{len(texts)}] = {{{rows}\n}};"
        return self._add(numbers, array.name, text, self._tables)

    def function(self, function: Function, sentence: str = "", restrict: str = "") -> str:
        """Returns the name in C of a function, after adding it and what it calls."""
        if id(function) not in self._names:
            text = _Printer(self, function, restrict).text(sentence or function.sentence)
            self._add(function, function.name, text, self._functions)
        return self._names[id(function)][1]

    def decoder(self, layout: Layout, source: Callable[..., Any]) -> None:
        """Adds decoders to float32, to float16 and to bfloat16: NAME, NAME_f16 and NAME_bf16.

        The parameters are ``(blocks, w, n)`` for n blocks, or for rows ``(FIELD, ..., w, rows,
        columns)``.

        Raises:
            ScalarError: if the function does not follow the language.
        """
        if layout.weights is None:
            for suffix, output in (("", "f32"), ("_f16", "f16"), ("_bf16", "bf16")):
                self._rows(layout, check(source, layout.arrays(output)), layout.name + suffix, TYPES[output])
            return
        function = check(source, layout.arrays())
        lines = [f"  {one.name}: {one.number}[{one.count}], {one.sentence}" for one in layout.fields]
        title = f"{layout.name}: {layout.weights} weights in {layout.size} bytes"
        name = self.function(function, "\n".join([title, *lines, function.sentence]), "restrict ")
        places, at = {"w": "w"}, 0
        for one in layout.fields:
            places[one.name] = f"(const {TYPES[one.number]} *)(blocks + {at})"
            at += int(one.size())
        given = ", ".join(places[parameter] for parameter in function.parameters)
        self._functions[layout.name] = (
            f"void {layout.name}(const uint8_t *blocks, float *w, int64_t n) {{\n"
            f"    for (int64_t b = 0; b < n; b++, blocks += {layout.size}, w += {layout.weights}) {name}({given});\n}}\n"
            f"TO_HALVES({layout.name}, _f16, to_half, {layout.size}, {layout.weights})\n"
            f"TO_HALVES({layout.name}, _bf16, to_bfloat, {layout.size}, {layout.weights})\n"
        )

    def _rows(self, layout: Layout, function: Function, name: str, output: str) -> None:
        places, lengths = {"w": "w + r * columns"}, {"w": "(int32_t)columns"}
        for one in layout.fields:
            places[one.name] = f"(const {TYPES[one.number]} *)({one.name} + r * ({one.size('columns')}))"
            lengths[one.name] = f"(int32_t)(columns / {one.weights})"
        given = [places[parameter] for parameter in function.parameters]
        given += [lengths[parameter] for parameter in _lengths(function)]
        inner = self.function(function, "", "restrict ")
        fields = "".join(f"const uint8_t *{one.name}, " for one in layout.fields)
        self._functions[name] = (
            f"void {name}({fields}{output} *w, int64_t rows, int64_t columns) {{\n"
            f"    for (int64_t r = 0; r < rows; r++) {inner}({', '.join(given)});\n}}\n"
        )


class _Printer:
    """Prints a function."""

    def __init__(self, unit: Unit, function: Function, restrict: str) -> None:
        self._unit, self._function, self._restrict = unit, function, restrict

    def text(self, sentence: str) -> str:
        function, results = self._function, self._function.results
        parameters = [self._parameter(name, type_) for name, type_ in function.parameters.items()]
        parameters += [f"int32_t {name}_length" for name in _lengths(function)]
        kind = "void"
        if len(results) == 1:
            kind = KINDS[results[0].kind]
        else:
            parameters += [f"{KINDS[result.kind]} *result_{number}" for number, result in enumerate(results)]
        comment = "".join(f"// {line}".rstrip() + "\n" for line in sentence.splitlines())
        used = {part.name for part in walk(function.body) if isinstance(part, (Reference, Variable))}
        unused = [f"    (void){_name(name)};" for name in function.parameters if name not in used]
        body = "\n".join([*unused, *self._block(function.body, set(), "    ")])
        return f"{comment}static inline {kind} NAME({', '.join(parameters)}) {{\n{body}\n}}\n"

    def _parameter(self, name: str, type_: Array | Variable) -> str:
        if isinstance(type_, Variable):
            return f"{KINDS[type_.kind]} {_name(name)}"
        return f"{_pointer(type_)}{self._restrict}{_name(name)}"

    # Statements

    def _block(self, body: Sequence[Statement], declared: set[str], indent: str) -> list[str]:
        """Prints statements. A variable is declared in the innermost block with all its uses."""
        lines: list[str] = []
        variables = self._function.variables
        mentions = [{name for part in walk(one) for name in _mentioned(part) if name in variables} for one in body]
        for number, statement in enumerate(body):
            later = set().union(*mentions[number + 1 :])
            new = mentions[number] - declared
            first = isinstance(statement, Assign) and statement.name in new
            if not first:
                kept = sorted(name for name in new if name in later or isinstance(statement, Call))
                for kind in dict.fromkeys(KINDS[variables[name]] for name in kept):
                    names = [_name(name) for name in kept if KINDS[variables[name]] == kind]
                    lines.append(f"{indent}{kind} {', '.join(names)};")
                declared |= set(kept)
            prefix = ""
            if isinstance(statement, Assign) and first:
                prefix = f"{KINDS[variables[statement.name]]} "
                declared.add(statement.name)
            lines += self._statement(statement, prefix, declared, indent)
        return lines

    def _statement(self, node: Statement, prefix: str, declared: set[str], indent: str) -> list[str]:
        match node:
            case Assign(name, value):
                return [f"{indent}{prefix}{_name(name)} = {self._value(value)};"]
            case Store(array, at, value):
                convert = {"f16": "to_half", "bf16": "to_bfloat"}.get(array.type.number, "")
                text = self._value(value)
                return [f"{indent}{self._element(array, at)} = {f'{convert}({text})' if convert else text};"]
            case Declare(name, type_):
                return [f"{indent}{KINDS[type_.kind]} {_name(name)}[{type_.length}] = {{0}};"]
            case View(name, array):
                return [f"{indent}{_pointer(array.type)}{_name(name)} = {self._reference(array)};"]
            case If(test, then, other):
                lines = [f"{indent}if ({self._value(test)}) {{", *self._block(then, set(declared), indent + "    ")]
                if other:
                    lines += [f"{indent}}} else {{", *self._block(other, set(declared), indent + "    ")]
                return [*lines, f"{indent}}}"]
            case For(name, low, high, body):
                i, start, end, bound = _name(name), self._value(low), self._value(high), ""
                if not isinstance(high, (Constant, Length)):
                    bound, end = f", {i}_end = {end}", f"{i}_end"
                head = f"{indent}for (int32_t {i} = {start}{bound}; {i} < {end}; {i}++) {{"
                return [head, *self._block(body, set(declared), indent + "    "), f"{indent}}}"]
            case While(test, body):
                return [f"{indent}while ({self._value(test)}) {{", *self._block(body, set(declared), indent + "    "), f"{indent}}}"]
            case Break():
                return [f"{indent}break;"]
            case Return(values):
                if len(values) == 1:
                    return [f"{indent}return {self._value(values[0])};"]
                return [*(f"{indent}*result_{n} = {self._value(one)};" for n, one in enumerate(values)), f"{indent}return;"]
            case Call(function, arguments, targets):
                return [f"{indent}{self._called(function, arguments, targets)};"]

    def _called(self, function: Function, arguments: Sequence[Expression | Reference], targets: Sequence[str]) -> str:
        given = [self._reference(one) if isinstance(one, Reference) else self._value(one) for one in arguments]
        for name in _lengths(function):
            array = arguments[list(function.parameters).index(name)]
            assert isinstance(array, Reference)
            given.append(f"{array.name}_length")
        return f"{self._unit.function(function)}({', '.join([*given, *(f'&{_name(name)}' for name in targets)])})"

    # Expressions

    def _value(self, node: Expression) -> str:
        return self._signed(node)[0]

    def _operand(self, node: Expression, inside: str) -> str:
        text, sign = self._signed(node)
        return text if not sign or sign in inside.split() or sign in inside.split(" ")[0] and len(sign) == 1 else f"({text})"

    def _signed(self, node: Expression) -> tuple[str, str]:
        """Returns the text of an expression and its outermost operation, "" if it needs no
        parentheses."""
        match node:
            case Constant():
                return _constant(node.value, node.kind), ""
            case Variable():
                return _name(node.name), ""
            case Length():
                return f"{node.name}_length", ""
            case Load():
                return self._load(node), ""
            case Unary():
                return f"{SIGNS.get(node.sign, node.sign)}{self._operand(node.operand, '')}", "unary"
            case Select():
                test, then, other = (self._operand(part, "") for part in (node.test, node.then, node.other))
                return f"{test} ? {then} : {other}", "?"
            case Invoke():
                return self._called(node.function, node.arguments, ()), ""
            case Builtin():
                return self._builtin(node)
            case Binary():
                return self._binary(node)
        raise NotImplementedError(node)

    def _binary(self, node: Binary) -> tuple[str, str]:
        sign, right = SIGNS.get(node.sign, node.sign), self._operand(node.right, RIGHT.get(SIGNS.get(node.sign, node.sign), ""))
        if node.sign in ("//", "%") and isinstance(node.right, Constant) and int(node.right.value) & int(node.right.value) - 1 == 0:
            number = int(node.right.value)  # a power of two: rounds down, as Python does
            sign, right = (">>", str(number.bit_length() - 1)) if node.sign == "//" else ("&", str(number - 1))
        return f"{self._operand(node.left, LEFT.get(sign, ''))} {sign} {right}", sign

    def _builtin(self, node: Builtin) -> tuple[str, str]:
        values = [self._value(operand) for operand in node.operands]
        match node.name:
            case "float32":
                return f"(float){self._operand(node.operands[0], '')}", ""
            case "int32":
                return self._signed(node.operands[0])
            case "float16":
                return f"of_half(to_half({values[0]}))", ""
            case "as_bits":
                return f"(int32_t)as_bits({values[0]})", ""
            case "as_float":
                return f"as_float((uint32_t)({values[0]}))", ""
            case "as_float16":
                return f"of_half((uint16_t)({values[0]}))", ""
            case "abs" | "min" | "max":
                return f"{node.name}_{node.kind}({', '.join(values)})", ""
        return f"{node.name}({values[0]})", ""

    def _load(self, node: Load) -> str:
        text = self._element(node.array, node.at)
        match node.array.type.number:
            case "f16":
                return f"of_half({text})"
            case "bf16":
                return f"as_float((uint32_t){text} << 16)"
            case "u32":
                return f"(int32_t){text}"
        return text

    def _element(self, array: Reference, at: Expression) -> str:
        offset = "" if array.offset is None else f"{self._operand(array.offset, '*')} + "
        return f"{self._base(array)}[{offset}{self._operand(at, '*') if offset else self._value(at)}]"

    def _base(self, array: Reference) -> str:
        return _name(array.name) if array.table is None else self._unit.table(array)

    def _reference(self, array: Reference) -> str:
        return self._base(array) + ("" if array.offset is None else f" + {self._operand(array.offset, '*')}")


def _lengths(function: Function) -> list[str]:
    """Returns the parameters whose lengths are parameters in C: those it or a called function uses."""
    used = {part.name for part in walk(function.body) if isinstance(part, Length)}
    for part in walk(function.body):
        if isinstance(part, (Call, Invoke)):
            given = dict(zip(part.function.parameters, part.arguments, strict=True))
            used |= {array.name for name in _lengths(part.function) if isinstance(array := given[name], Reference)}
    return [name for name in function.parameters if name in used]


def _pointer(type_: Array) -> str:
    return f"{'const ' * (type_.use == 'in')}{TYPES[type_.number]} *"


def _mentioned(node: Any) -> tuple[str, ...]:
    """Returns the names of variables in a node itself."""
    return node.targets if isinstance(node, Call) else (node.name,) if isinstance(node, (Variable, Assign)) else ()


def _name(name: str) -> str:
    return f"{name}_" if name in RESERVED or name.startswith("result_") else name


def _constant(value: float, kind: str) -> str:
    if kind != "float32":
        return str(int(value)) if value != -(2**31) else "(-2147483647 - 1)"
    number = np.float32(value)
    return f"{number}f" if np.isfinite(number) else f"({'-' * bool(number < 0)}__builtin_inff())"
