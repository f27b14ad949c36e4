"""Kinds, spans and bounds of expressions: the part of `checking` below statements."""

from __future__ import annotations

import ast
import builtins
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np

from glft_schema.scalar import intervals, language, tree
from glft_schema.scalar.kinds import ANY, KINDS, Span
from glft_schema.scalar.language import LookupTable, ScalarError
from glft_schema.scalar.tree import ArrayReference, ArrayType, Expression, Literal, Variable

Value: TypeAlias = Expression | ArrayReference  # what a name or an argument can be

# fmt: off
SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=", ast.And: "and", ast.Or: "or", ast.USub: "-", ast.Not: "not",
}
OF_INTEGERS = ("//", "%", "&", "|", "^", "<<", ">>")
# The kinds of a language function's arguments and result; "" is float32 or int32.
BUILTINS: dict[Any, tuple[str, tuple[str, ...], str]] = {
    language.float16:    ("float16",    ("float32",), "float32"),
    language.nearest:    ("nearest",    ("float32",), "int32"),
    language.truncated:  ("truncated",  ("float32",), "int32"),
    language.root:       ("root",       ("float32",), "float32"),
    language.as_bits:    ("as_bits",    ("float32",), "int32"),
    language.as_float:   ("as_float",   ("int32",),   "float32"),
    language.as_float16: ("as_float16", ("int32",),   "float32"),
    abs:                 ("abs",        ("",),        ""),
    min:                 ("min",        ("", ""),     ""),
    max:                 ("max",        ("", ""),     ""),
}
# fmt: on


class ExpressionReader(ABC):
    """Reads the expressions of one function.

    Args:
        function: the source.
        callers: the calling functions, whose trees are still incomplete.
        constants: by keyword.
        known: the trees of called functions.
    """

    def __init__(
        self,
        function: Any,
        callers: tuple[Any, ...],
        constants: Mapping[str, Any],
        known: dict[Any, tree.Function],
    ) -> None:
        self.function, self.callers, self.known = function, (*callers, function), known
        self.names = {**vars(builtins), **function.__globals__, **(function.__kwdefaults__ or {}), **constants}
        self.environment: dict[str, Value] = {}  # what is assigned on every path
        self.checked = tree.Function(function.__name__, inspect.getdoc(function) or "", {}, alone=hasattr(function, "alone"))
        self.first_line = 1

    def refusal(self, node: Any, problem: str) -> ScalarError:
        """Returns the error for a part of the source."""
        text = "" if isinstance(node, ast.FunctionDef) else f" in {' '.join(ast.unparse(node).split())[:80]!r}"
        return ScalarError(f"{self.function.__name__}, line {self.first_line + node.lineno - 1}: {problem}{text}")

    # Kinds

    def value(self, node: ast.expr) -> Expression:
        return self.number(self.argument(node), node)

    def number(self, value: Value, node: ast.AST) -> Expression:
        if isinstance(value, ArrayReference):
            raise self.refusal(node, f"expected a number, found the array {value.name}")
        return value

    def of_kind(self, value: Expression, kind: str, node: ast.AST) -> Expression:
        """Returns a value of a kind, or refuses it. An integer literal may be float32, too."""
        if isinstance(value, Literal) and value.kind == "literal":
            found = type(value.value)
            if found in {"float32": (int, float), "int32": (int,), "bool": (bool,)}[kind]:
                return self._round(value.value) if kind == "float32" else replace(value, kind=kind)
            raise self.refusal(node, f"expected {kind}, found {found.__name__}")
        if value.kind != kind:
            raise self.refusal(node, f"expected {kind}, found {value.kind}")
        return value

    def with_kind(self, value: Expression, node: ast.AST) -> Expression:
        """Returns a value that variables can hold: literals are int32 or bool."""
        if value.kind != "literal" or not isinstance(value, Literal):
            return value
        if isinstance(value.value, float):
            raise self.refusal(node, f"expected a number with a kind, such as float32({value.value})")
        return replace(value, kind="bool" if isinstance(value.value, bool) else "int32")

    def alike(self, node: ast.AST, values: Sequence[Expression], *, held: bool = False) -> list[Expression]:
        """Returns values of one kind; literals get the kind of the others."""
        if held:
            for value in values:
                self.with_kind(value, node)  # refuses floats
        kinds = {value.kind for value in values} - {"literal"}
        if len(kinds) > 1:
            raise self.refusal(node, f"expected one kind, found {' and '.join(value.kind for value in values)}")
        if kinds:
            return [self.of_kind(value, kinds.copy().pop(), node) for value in values]
        return [self.with_kind(value, node) for value in values] if held else list(values)

    def literal(self, value: Any, node: ast.AST) -> Literal:
        if isinstance(value, int) and not ANY[0] <= value <= ANY[1]:
            raise self.refusal(node, "expected an integer of 32 bits")
        return Literal("literal", ANY if isinstance(value, float) else (int(value), int(value)), value)

    # Expressions

    def argument(self, node: ast.expr) -> Value:
        """Returns a number or an array."""
        match node:
            case ast.Constant(bool() | int() | float() as value):
                return self.literal(value, node)
            case ast.Name(name):
                return self._name(name, node)
            case ast.UnaryOp(ast.USub() | ast.Not() as sign, operand):
                return self._unary(SIGNS[type(sign)], operand, node)
            case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]) if type(sign) in SIGNS:
                return self.binary(SIGNS[type(sign)], self.value(left), self.value(right), node)
            case ast.BoolOp(sign, [first, *others]):
                result = self.of_kind(self.value(first), "bool", first)
                for other in others:
                    result = self.binary(SIGNS[type(sign)], result, self.of_kind(self.value(other), "bool", other), node)
                return result
            case ast.IfExp(test, then, other):
                return self._select(self.of_kind(self.value(test), "bool", test), then, other, node)
            case ast.Subscript(array, ast.Slice(low, high, None)):
                return self._view(self.array(array), low, high, node)
            case ast.Subscript(array):
                loaded = self.array(array)
                if loaded.type.use == "out":
                    raise self.refusal(node, f"expected an array to read, found the output {loaded.name}")
                return tree.Load(loaded.type.kind, _span_of(loaded), loaded, self.index(node, loaded))
            case ast.Call():
                return self._call(node)
        raise self.refusal(node, "expected an expression of the language")

    def _name(self, name: str, node: ast.expr) -> Value:
        if name in self.environment:
            return self.environment[name]
        if name in self.checked.variables:
            raise self.refusal(node, f"expected a variable that is assigned on every path, found {name}")
        value = self.names.get(name)
        if isinstance(value, (bool, int, float)):
            return self.literal(value, node)
        if isinstance(value, LookupTable) or (isinstance(value, tuple) and value and {*map(type, value)} == {int}):
            numbers = value.array if isinstance(value, LookupTable) else np.array(value)
            low, high = numbers.min(), numbers.max()
            kinds = [kind.name for kind in KINDS.values() if kind.span[0] <= low and high <= kind.span[1]]
            return ArrayReference(
                ArrayType("f32" if numbers.dtype.kind == "f" else kinds[0], len(numbers)), name, table=numbers
            )
        raise self.refusal(node, f"expected a variable, a constant or a table, found {name}")

    def _unary(self, sign: str, operand: ast.expr, node: ast.expr) -> Expression:
        value = self.value(operand)
        if sign == "not" or value.kind == "bool":
            value = self.of_kind(value, "bool" if sign == "not" else "int32", node)
        if isinstance(value, Literal):
            literal = self.literal(-value.value if sign == "-" else not value.value, node)
            return replace(literal, kind=value.kind if sign == "-" else "literal")
        return tree.Unary(value.kind, intervals.wrap_span(-value.span[1], -value.span[0]), sign, value)

    def binary(self, sign: str, left: Expression, right: Expression, node: ast.AST) -> Expression:
        left, right = self.alike(node, (left, right))
        kind, compares = left.kind, sign in intervals.COMPARISONS
        if sign in OF_INTEGERS or (kind == "bool" and not compares):
            left, right = self.of_kind(left, "int32", node), self.of_kind(right, "int32", node)
            self._check_operands(sign, left, right, node)
        if isinstance(left, Literal) and isinstance(right, Literal) and (sign != "/" or right.value):
            return self._fold(kind, sign, left.value, right.value, node)
        if sign == "/":
            left, right = self.of_kind(left, "float32", node), self.of_kind(right, "float32", node)
        if compares:
            return tree.Binary("bool", (0, 1), sign, left, right)
        return tree.Binary(
            kind, intervals.of_operation(sign, left.span, right.span) if kind == "int32" else ANY, sign, left, right
        )

    def _fold(self, kind: str, sign: str, left: float, right: float, node: ast.AST) -> Literal:
        """Returns the result of an operation of constants."""
        if kind != "float32" or sign in intervals.COMPARISONS:
            literal = self.literal(intervals.OPERATORS[sign](left, right), node)
            return literal if sign in intervals.COMPARISONS else replace(literal, kind=kind)
        with np.errstate(all="ignore"):
            return self._round(intervals.OPERATORS[sign](np.float32(left), np.float32(right)))

    @staticmethod
    def _round(number: float) -> Literal:
        return Literal("float32", ANY, float(np.float32(number)))

    def _check_operands(self, sign: str, left: Expression, right: Expression, node: ast.AST) -> None:
        if sign in ("<<", ">>") and not (right.span[0] >= 0 and right.span[1] <= 31):
            raise self.refusal(node, f"expected a shift by 0 to 31, found {_show(right)}")
        if sign in ("//", "%"):
            divisor = int(right.value) if isinstance(right, Literal) else 0
            if divisor < 1:
                raise self.refusal(node, "expected a positive constant as the divisor")
            if left.span[0] < 0 and divisor & divisor - 1:
                raise self.refusal(node, f"expected a dividend that is not negative, found {_show(left)}")

    def _select(self, test: Expression, then: ast.expr, other: ast.expr, node: ast.expr) -> Expression:
        if isinstance(test, Literal):
            return self.value(then if test.value else other)
        before, values = self.environment, []
        for holds, part in ((True, then), (False, other)):
            self.environment = dict(before)
            self.narrow(test, holds)
            values.append(self.value(part))
        self.environment = before
        one, two = self.alike(node, values, held=True)
        return tree.Select(one.kind, intervals.union(one.span, two.span), test, one, two)

    def narrow(self, test: Expression, holds: bool) -> None:
        """Narrows the spans of variables to those for which a test holds, or does not."""
        if isinstance(test, tree.Unary):
            self.narrow(test.operand, not holds)
        elif isinstance(test, tree.Binary) and test.sign in ("and", "or"):
            if holds == (test.sign == "and"):
                self.narrow(test.left, holds)
                self.narrow(test.right, holds)
        elif isinstance(test, tree.Binary):
            sign = test.sign if holds else intervals.NEGATED[test.sign]
            for one, relation, other in ((test.left, sign, test.right), (test.right, intervals.MIRRORED[sign], test.left)):
                if isinstance(one, Variable) and one.kind == "int32":
                    now = self.environment[one.name]
                    assert isinstance(now, Variable)
                    self.environment[one.name] = replace(now, span=intervals.narrow(now.span, relation, other.span))

    # Arrays

    def array(self, node: ast.expr) -> ArrayReference:
        value = self.argument(node)
        if not isinstance(value, ArrayReference):
            raise self.refusal(node, "expected an array")
        return value

    def index(self, node: ast.Subscript, array: ArrayReference) -> Expression:
        """Returns an index, after checking its span against the length of the array."""
        at, length = self.of_kind(self.value(node.slice), "int32", node), array.type.length
        (low, high), end = at.span, ANY[1] if length is None else length
        if high < 0 or low >= end if length is None else low < 0 or high >= end:
            raise self.refusal(node, f"expected an index of {array.name} from 0 to {end - 1}, found {_show(at)}")
        return at

    def _view(self, array: ArrayReference, low: ast.expr | None, high: ast.expr | None, node: ast.expr) -> ArrayReference:
        """Returns a view. Its length is a constant: the end is the start plus a constant."""
        start: Expression = self.of_kind(self.value(low), "int32", node) if low else Literal("int32", (0, 0), 0)
        length = array.type.length
        if isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add) and low and ast.unparse(high.left) == ast.unparse(low):
            count = self.value(high.right)
        else:
            end = self.value(high) if high else self.literal(length or 0, node)
            count = self.binary("-", end, start, node)
        if not isinstance(count, Literal) or count.value < 1:
            raise self.refusal(node, "expected a slice of constant length, such as x[a : a + 8]")
        first, last = start.span
        if last < 0 if length is None else first < 0 or last + count.value > length:  # rows have any length: they are trusted
            raise self.refusal(node, f"expected a slice of {array.name} from 0 to {length}, found one from {_show(start)}")
        offset = start if array.offset is None else self.binary("+", array.offset, start, node)
        return replace(array, type=replace(array.type, length=int(count.value)), offset=offset)

    # Calls

    def callee(self, node: ast.Call) -> Any:
        """Returns the called function."""
        return (
            self.names.get(node.func.id) if isinstance(node.func, ast.Name) and node.func.id not in self.environment else None
        )

    def _call(self, node: ast.Call) -> Expression:
        called, values = self.callee(node), [self.argument(argument) for argument in node.args]
        match called, values, node.keywords:
            case builtins.len, [ArrayReference() as array], []:
                if array.type.length is not None:
                    return self.literal(array.type.length, node)
                return tree.ArrayLength("int32", (0, ANY[1]), array.name)
            case ((language.float32 | language.int32), [Expression() as value], []):
                return self._convert(called.__name__, value, node)
        if isinstance(called, (FunctionType, type(len))) and called in BUILTINS:
            return self._builtin(*BUILTINS[called], [self.number(value, node) for value in values], node)
        function, arguments = self.invoke(node)
        if len(function.results) != 1:
            raise self.refusal(node, f"expected 1 result, found {len(function.results)}")
        return tree.Invoke(function.results[0].kind, function.results[0].span, function, arguments)

    def _convert(self, kind: str, value: Expression, node: ast.Call) -> Expression:
        if isinstance(value, Literal) and kind == "float32":
            return self._round(value.value)
        value = self.with_kind(value, node)
        if kind == "int32" and value.kind == "float32":
            raise self.refusal(node, "expected int32 or bool, found float32: round it with nearest()")
        return value if value.kind == kind else tree.Builtin(kind, value.span if kind == "int32" else ANY, kind, (value,))

    def _builtin(
        self, name: str, kinds: Sequence[str], result: str, values: Sequence[Expression], node: ast.Call
    ) -> Expression:
        if len(values) != len(kinds) or node.keywords:
            raise self.refusal(node, f"expected {len(kinds)} argument{'s' * (len(kinds) > 1)}")
        if result and kinds[0]:
            values = [self.of_kind(value, kind, node) for value, kind in zip(values, kinds, strict=True)]
        else:
            values = self.alike(node, values, held=True)
            result = "int32" if values[0].kind == "bool" else values[0].kind
            values = [self.of_kind(value, result, node) for value in values]
        span = intervals.of_function(name, [value.span for value in values]) if result == "int32" else ANY
        return tree.Builtin(result, span, name, tuple(values))

    def invoke(self, node: ast.Call) -> tuple[tree.Function, tuple[Value, ...]]:
        """Returns the tree of a called function for these arguments, and the arguments."""
        function = self.callee(node)
        if not isinstance(function, FunctionType) or function.__module__ == language.__name__:
            raise self.refusal(node, "expected a call of a scalar function")
        if function in self.callers:
            raise self.refusal(node, f"expected no recursion, found a call of {function.__name__}")
        arguments = [self.argument(argument) for argument in node.args]
        arguments = [value if isinstance(value, ArrayReference) else self.with_kind(value, node) for value in arguments]
        found = {keyword.arg or "": self.value(keyword.value) for keyword in node.keywords}
        constants = {name: value.value for name, value in found.items() if isinstance(value, Literal)}
        try:
            given = inspect.signature(function).bind(*arguments, **constants)
        except TypeError:
            given = None
        if given is None or len(given.args) != len(arguments) or len(constants) != len(found):
            raise self.refusal(node, f"expected {function.__name__}{inspect.signature(function)} with constants by keyword")
        key = function, tuple(map(_signature, arguments)), tuple(sorted(constants.items()))
        if key not in self.known:
            names = list(given.arguments)[: len(arguments)]
            checker = type(self)(function, self.callers, constants, self.known)
            self.known[key] = checker.check(dict(zip(names, arguments, strict=True)))
        return self.known[key], tuple(arguments)

    @abstractmethod
    def check(self, arguments: Mapping[str, Value]) -> tree.Function:
        """Returns the function's tree for arguments, by the names of its parameters."""


def _span_of(array: ArrayReference) -> Span:
    if array.table is not None and array.type.kind == "int32":
        return int(array.table.min()), int(array.table.max())
    return KINDS[array.type.number].span


def _signature(argument: Value) -> Any:
    """Returns the part of an argument that the tree of a called function depends on."""
    if isinstance(argument, Expression):
        return argument.kind, argument.span
    return argument.type, _span_of(argument), id(argument.table)


def _show(value: Expression) -> str:
    low, high = value.span
    return "any integer" if value.span == ANY else f"{low}" if low == high else f"{low} to {high}"
