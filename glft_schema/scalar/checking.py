"""Checks a scalar function and returns its typed tree.

One pass infers kinds, spans and lengths. It refuses what the language does not have, and names the
function and the line.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from glft_schema.scalar import language, spans
from glft_schema.scalar.language import ScalarError, Table
from glft_schema.scalar.tree import (
    ANY,
    STORED,
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

# fmt: off
SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=", ast.And: "and", ast.Or: "or", ast.USub: "-", ast.Not: "not",
}
# The kinds that a function of the language takes, and that of its result.
BUILTINS: dict[Any, tuple[str, tuple[str, ...], str]] = {
    language.float32:        ("float32",        ("number",),           "float32"),
    language.int32:        ("int32",        ("integer",),          "int32"),
    language.float16:    ("float16",    ("float32",),              "float32"),
    language.nearest:    ("nearest",    ("float32",),              "int32"),
    language.root:       ("root",       ("float32",),              "float32"),
    language.as_bits:    ("as_bits",    ("float32",),              "int32"),
    language.as_float:   ("as_float",   ("int32",),              "float32"),
    language.as_float16: ("as_float16", ("int32",),              "float32"),
    abs:                 ("abs",        ("operand",),          "operand"),
    min:                 ("min",        ("operand", "operand"), "operand"),
    max:                 ("max",        ("operand", "operand"), "operand"),
}
# fmt: on
LOCAL = {language.floats: "f32", language.integers: "i32"}
Argument = Expression | Reference


def check(function: Callable[..., Any], arrays: Mapping[str, Array], *, bounds: bool = True) -> Function:
    """Returns the typed tree of a function whose parameters are arrays.

    Args:
        function: its parameters are some of the names of `arrays`.
        arrays: the type of each array.
        bounds: refuse an index that is not provably inside an array of known length. Otherwise
            only one that is never inside is refused.

    Raises:
        ScalarError: if the function does not follow the language.
    """
    names = list(inspect.signature(function).parameters)
    if unknown := [name for name in names if name not in arrays]:
        raise ScalarError(f"{function.__name__}: expected parameters among {', '.join(arrays)}, found {', '.join(unknown)}")
    return _Checker(function, {name: Reference(arrays[name], name) for name in names}, {}, (), {}, bounds).checked


class _Checker:
    """Checks one function for arguments of given kinds. `checked` is its tree."""

    def __init__(
        self,
        function: Any,
        arguments: Mapping[str, Argument],
        constants: Mapping[str, Any],
        callers: tuple[Any, ...],
        known: dict[Any, Function],
        bounds: bool,
    ) -> None:
        self._function, self._callers, self._known, self._bounds = function, (*callers, function), known, bounds
        try:
            lines, self._first = inspect.getsourcelines(function)
        except OSError:
            raise ScalarError(f"{function.__name__}: expected a function with its source in a file") from None
        source = ast.parse(textwrap.dedent("".join(lines))).body[0]
        assert isinstance(source, ast.FunctionDef)
        self._globals = {**vars(builtins), **function.__globals__, **(function.__kwdefaults__ or {}), **constants}
        self._loops: set[str] = set()  # variables of the loops around
        self._names = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)} | set(arguments)
        self._environment: dict[str, Argument] = {}
        self._ended = False  # after break or return
        self.checked = Function(function.__name__, inspect.getdoc(function) or "", {})
        for name, given in arguments.items():
            here = Variable(given.kind, given.span, name) if isinstance(given, Expression) else Reference(given.type, name)
            self._environment[name] = here
            self.checked.parameters[name] = here.type if isinstance(here, Reference) else here
        self.checked.body = self._block(source.body)
        if self.checked.results and not self._ended:
            self._refuse(source, "expected a result on every path")

    def _refuse(self, node: Any, problem: str) -> NoReturn:
        line = self._first + node.lineno - 1
        text = "" if isinstance(node, ast.FunctionDef) else f" in {' '.join(ast.unparse(node).split())[:80]!r}"
        raise ScalarError(f"{self._function.__name__}, line {line}: {problem}{text}")

    # Statements

    def _block(self, body: Sequence[ast.stmt]) -> list[Statement]:
        return [made for statement in body for made in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[Statement]:
        match node:
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                return []
            case ast.Expr(ast.Call() as call):
                return self._results([], call)
            case ast.AugAssign(target, sign, value):
                loaded = ast.parse(ast.unparse(target), mode="eval").body
                whole = ast.copy_location(ast.BinOp(loaded, sign, value), node)
                for part in ast.walk(loaded):
                    ast.copy_location(part, node)
                return self._assign([target], [self._value(whole)], node)
            case ast.Assign([ast.Tuple(targets)], ast.Call() as call):
                return self._results(targets, call)
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                return self._assign(targets, [self._argument(value) for value in values], node)
            case ast.Assign([ast.Name(name)], ast.Call(func=ast.Name(called), args=[count])) if self._global(called) in LOCAL:
                return self._declare(name, LOCAL[self._global(called)], count, node)
            case ast.Assign([(ast.Name() | ast.Subscript()) as target], value):
                return self._assign([target], [self._argument(value)], node)
            case ast.If():
                return self._if(node)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), bounds, []), body, []) if len(bounds) in (1, 2):
                return self._for(name, [self._integer(bound) for bound in bounds], body, node)
            case ast.While(orelse=[]):
                return self._while(node)
            case ast.Break():
                self._ended = True
                return [Break()]
            case ast.Return(value):
                return self._return(node, value)
        self._refuse(node, "expected a statement of the language")

    def _declare(self, name: str, number: str, count: ast.expr, node: ast.stmt) -> list[Statement]:
        length = self._integer(count)
        if not isinstance(length, Constant) or length.value < 1 or name in self._environment:
            self._refuse(node, "expected a new array of constant length")
        type_ = Array(number, int(length.value), "local")
        self._environment[name] = Reference(type_, name)
        return [Declare(name, type_)]

    def _assign(self, targets: Sequence[ast.expr], values: Sequence[Argument], node: ast.stmt) -> list[Statement]:
        """Assigns values that were all read before; those of several go through new variables."""
        made: list[Statement] = []
        values = list(values)
        if len(values) > 1 and self._interfere(targets, values):
            for number, value in enumerate(values):
                if isinstance(value, Expression) and not isinstance(value, Constant):
                    name = self._new_name("new")
                    made += self._set(name, value, node)
                    variable = self._environment[name]
                    values[number] = variable
        for target, value in zip(targets, values, strict=True):
            made += self._assign_one(target, value, node)
        return made

    @staticmethod
    def _interfere(targets: Sequence[ast.expr], values: Iterable[Argument]) -> bool:
        """Tells whether an assignment may change a later value."""
        stored = {target.id if isinstance(target, ast.Name) else ast.unparse(target).split("[")[0] for target in targets[:-1]}
        return any(getattr(part, "name", None) in stored for part in walk(list(values)[1:]))

    def _assign_one(self, target: ast.expr, value: Argument, node: ast.stmt) -> list[Statement]:
        if isinstance(target, ast.Name):
            return self._set(target.id, value, node)
        if not isinstance(target, ast.Subscript) or isinstance(target.slice, ast.Slice):
            self._refuse(node, "expected a variable or an element")
        array = self._array(target.value)
        if array.type.use == "in":
            self._refuse(node, f"expected an array to write, found the input {array.name}")
        at = self._index(target, array)
        return [Store(array, at, self._of_kind(self._scalar(value, node), array.type.kind, node))]

    def _set(self, name: str, value: Argument, node: ast.stmt) -> list[Statement]:
        old = self._environment.get(name)
        if name in self._loops:
            self._refuse(node, f"expected a variable, found {name} of a loop")
        if isinstance(value, Reference):
            if old is not None or value.table is not None:
                self._refuse(node, "expected a new name for a view")
            self._environment[name] = Reference(value.type, name)
            return [View(name, value)]
        value = self._held(value, node)
        kind = self.checked.variables.setdefault(name, value.kind)
        if isinstance(old, Reference) or name in self.checked.parameters and old is None or kind != value.kind:
            self._refuse(node, f"expected {name} to stay {'an array' if isinstance(old, Reference) else kind}, found {value.kind}")
        if old is not None and old.kind != value.kind:
            self._refuse(node, f"expected {name} to stay {old.kind}, found {value.kind}")
        self._environment[name] = Variable(value.kind, value.span, name)
        return [Assign(name, value)]

    def _new_name(self, stem: str) -> str:
        name = next(name for number in range(1, 1000) if (name := f"{stem}_{number}") not in self._names)
        self._names.add(name)
        return name

    def _results(self, targets: Sequence[ast.expr], call: ast.Call) -> list[Statement]:
        function, arguments = self._called(call)
        if len(function.results) != len(targets):
            self._refuse(call, f"expected {len(targets)} results, found {len(function.results)}")
        names, made = [], []
        for target, result in zip(targets, function.results, strict=True):
            if isinstance(target, ast.Name):
                name = target.id
                self._set(name, Variable(result.kind, result.span, name), call)
            else:
                name = self._new_name("new")
                self._set(name, Variable(result.kind, result.span, name), call)
                made += self._assign_one(target, self._environment[name], call)
            names.append(name)
        return [Call(function, arguments, tuple(names)), *made]

    def _if(self, node: ast.If) -> list[Statement]:
        test = self._bool(node.test)
        if isinstance(test, Constant):
            return self._block(node.body if test.value else node.orelse)
        before, blocks, after = self._environment, [], []
        for holds, body in ((True, node.body), (False, node.orelse)):
            self._environment, self._ended = dict(before), False
            self._narrow(test, holds)
            blocks.append(self._block(body))
            if not self._ended:
                after.append(self._environment)
        self._ended = not after
        self._environment = self._joined(after) if after else before
        return [If(test, *blocks)]

    def _joined(self, environments: Sequence[dict[str, Argument]]) -> dict[str, Argument]:
        """Returns the names that are assigned on all paths, with the spans of all of them."""
        joined = dict(environments[0])
        for name, value in environments[0].items():
            others = [environment.get(name) for environment in environments[1:]]
            if any(other is None or type(other) is not type(value) for other in others):
                del joined[name]
            elif isinstance(value, Variable):
                joined[name] = replace(value, span=spans.union(value.span, *(other.span for other in others)))  # type: ignore[union-attr]
        return joined

    def _narrow(self, test: Expression, holds: bool) -> None:
        """Narrows the spans of variables to those for which a test holds, or does not."""
        if isinstance(test, Unary):
            self._narrow(test.operand, not holds)
        if not isinstance(test, Binary):
            return
        if test.sign in ("and", "or"):
            if holds == (test.sign == "and"):
                self._narrow(test.left, holds)
                self._narrow(test.right, holds)
            return
        sign = test.sign if holds else spans.NEGATED[test.sign]
        for variable, way, other in ((test.left, sign, test.right), (test.right, spans.MIRRORED[sign], test.left)):
            if isinstance(variable, Variable) and variable.kind == "int32":
                now = self._environment[variable.name]
                assert isinstance(now, Variable)
                self._environment[variable.name] = replace(now, span=spans.narrowed(now.span, way, other.span))

    def _repeated(self, body: Sequence[ast.stmt], test: Callable[[], None], sure: bool) -> list[Statement]:
        """Checks the body of a loop: what it assigns may have any value when it is entered.

        Args:
            body: of the loop.
            test: narrows spans by the condition of the loop.
            sure: whether the body runs at least once, to its end.
        """
        stored = {part.id for node in body for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        for name in stored & self._environment.keys():
            if isinstance(value := self._environment[name], Variable):
                self._environment[name] = replace(value, span=ANY if value.kind == "int32" else value.span)
        before = dict(self._environment)
        test()
        made = self._block(body)
        ended, self._ended = self._ended, False
        kept = self._environment if sure and not ended else before
        self._environment = {**kept, **{name: value for name, value in before.items() if name not in self._loops or name in kept}}
        return made

    def _for(self, name: str, bounds: Sequence[Expression], body: Sequence[ast.stmt], node: ast.stmt) -> list[Statement]:
        low, high = bounds if len(bounds) == 2 else (Constant("literal", (0, 0), 0), bounds[0])
        if name in self._environment:
            self._refuse(node, f"expected a new variable of the loop, found {name}")
        if high.span[1] <= low.span[0]:
            self._refuse(node, "expected a loop that runs, found an empty range")
        leaves = any(isinstance(part, (ast.Break, ast.Return)) for statement in body for part in ast.walk(statement))
        self._loops.add(name)

        def enter() -> None:
            self._environment[name] = Variable("int32", (low.span[0], high.span[1] - 1), name)

        made = self._repeated(body, enter, high.span[0] > low.span[1] and not leaves)
        self._loops.discard(name)
        self._environment.pop(name, None)
        return [For(name, low, high, made)]

    def _while(self, node: ast.While) -> list[Statement]:
        tests: list[Expression] = []

        def enter() -> None:
            tests.append(self._bool(node.test))
            self._narrow(tests[0], True)

        made = self._repeated(node.body, enter, False)
        return [While(tests[0], made)]

    def _return(self, node: ast.stmt, value: ast.expr | None) -> list[Statement]:
        nodes = value.elts if isinstance(value, ast.Tuple) else [] if value is None else [value]
        values = [self._held(self._value(one), node) for one in nodes]
        if values and len(self._callers) == 1:
            self._refuse(node, "expected a decoder without a result")
        found = self.checked.results
        if self._returned and [one.kind for one in found] != [one.kind for one in values]:
            self._refuse(node, f"expected results ({', '.join(one.kind for one in found)}) as before")
        old = found if self._returned else values
        self.checked.results = [
            Variable(one.kind, spans.union(one.span, other.span), "") for one, other in zip(values, old, strict=True)
        ]
        self._returned = self._ended = True
        return [Return(tuple(values))]

    _returned = False

    # Expressions

    def _value(self, node: ast.expr) -> Expression:
        return self._scalar(self._argument(node), node)

    def _scalar(self, value: Argument, node: ast.AST) -> Expression:
        if isinstance(value, Reference):
            self._refuse(node, f"expected a number, found the array {value.name}")
        return value

    def _integer(self, node: ast.expr) -> Expression:
        return self._of_kind(self._value(node), "int32", node)

    def _bool(self, node: ast.expr) -> Expression:
        return self._of_kind(self._value(node), "bool", node)

    def _held(self, value: Expression, node: ast.AST) -> Expression:
        """Returns a value with a kind of its own: a literal is an int32 or a bool."""
        if value.kind != "literal":
            return value
        assert isinstance(value, Constant)
        if isinstance(value.value, float):
            self._refuse(node, f"expected a number with a kind: write float32({value.value})")
        return replace(value, kind="bool" if isinstance(value.value, bool) else "int32")

    def _of_kind(self, value: Expression, kind: str, node: ast.AST) -> Expression:
        """Returns a value of a kind. Literals of integers are float32, too."""
        fits = value.kind == kind
        if isinstance(value, Constant) and value.kind == "literal":
            fits = isinstance(value.value, bool) == (kind == "bool") and (kind != "int32" or isinstance(value.value, int))
            value = replace(value, kind=kind)
        if not fits:
            self._refuse(node, f"expected {kind}, found {'a float' if value.kind == kind else value.kind}")
        return value

    def _global(self, name: str) -> Any:
        return self._globals.get(name) if name not in self._environment else None

    def _literal(self, value: Any, node: ast.AST) -> Constant:
        if isinstance(value, int) and not ANY[0] <= value <= ANY[1]:
            self._refuse(node, "expected an integer of 32 bits")
        span = ANY if isinstance(value, float) else (int(value), int(value))
        return Constant("literal", span, value)

    def _argument(self, node: ast.expr) -> Argument:
        match node:
            case ast.Constant(bool() | int() | float() as value):
                return self._literal(value, node)
            case ast.Name(name):
                return self._named(name, node)
            case ast.UnaryOp(ast.USub() | ast.Not() as sign, operand):
                return self._unary(SIGNS[type(sign)], operand, node)
            case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
                return self._binary(SIGNS[type(sign)], self._value(left), self._value(right), node)
            case ast.Compare(left, [sign], [right]) if type(sign) in SIGNS:
                return self._binary(SIGNS[type(sign)], self._value(left), self._value(right), node)
            case ast.BoolOp(sign, [first, *others]):
                value = self._bool(first)
                for other in others:
                    value = self._binary(SIGNS[type(sign)], value, self._bool(other), node)
                return value
            case ast.IfExp(test, then, other):
                return self._select(self._bool(test), then, other, node)
            case ast.Subscript(array, ast.Slice(low, high, None)):
                return self._view(self._array(array), low, high, node)
            case ast.Subscript(array):
                return self._load(self._array(array), node)
            case ast.Call():
                return self._call(node)
        self._refuse(node, "expected an expression of the language")

    def _named(self, name: str, node: ast.expr) -> Argument:
        if name in self._environment:
            return self._environment[name]
        value = self._globals.get(name)
        if name in self.checked.variables:
            self._refuse(node, f"expected a variable that is assigned on every path, found {name}")
        if isinstance(value, (bool, int, float)):
            return self._literal(value, node)
        if isinstance(value, tuple) and value and all(type(one) is int for one in value):
            return _table(name, np.array(value))
        if isinstance(value, Table):
            return _table(name, value.array)
        self._refuse(node, f"expected a variable, a constant or a table, found {name}")

    def _unary(self, sign: str, operand: ast.expr, node: ast.expr) -> Expression:
        value = self._value(operand) if sign == "-" else self._bool(operand)
        if isinstance(value, Constant):
            return self._literal(-value.value if sign == "-" else not value.value, node)
        if sign == "-" and value.kind == "bool":
            self._refuse(node, "expected float32 or int32, found bool")
        return Unary(value.kind, spans.wrapped(-value.span[1], -value.span[0]), sign, value)

    def _common(self, node: ast.AST, *values: Expression) -> list[Expression]:
        """Returns operands of one kind; literals get the kind of the others."""
        kinds = {value.kind for value in values} - {"literal"}
        if len(kinds) > 1:
            self._refuse(node, f"expected operands of one kind, found {' and '.join(value.kind for value in values)}")
        return [self._of_kind(value, *kinds, node) for value in values] if kinds else list(values)

    def _binary(self, sign: str, left: Expression, right: Expression, node: ast.AST) -> Expression:
        left, right = self._common(node, left, right)
        compares, kind = sign in spans.NEGATED or sign in ("and", "or"), left.kind
        if isinstance(left, Constant) and isinstance(right, Constant) and (sign not in ("/", "//", "%") or right.value):
            return self._literal(spans.OPERATORS[sign](left.value, right.value), node)
        if kind == "bool" and not compares:
            self._refuse(node, "expected float32 or int32, found bool")
        if sign == "/" and kind != "float32":
            self._refuse(node, "expected / of float32; of int32 write //")
        if sign in ("//", "%", "&", "|", "^", "<<", ">>"):
            left, right = self._of_kind(left, "int32", node), self._of_kind(right, "int32", node)
            self._check_operands(sign, left, right, node)
        if compares:
            return Binary("bool", (0, 1), sign, left, right)
        return Binary(kind, spans.of_operation(sign, left.span, right.span) if kind == "int32" else ANY, sign, left, right)

    def _check_operands(self, sign: str, left: Expression, right: Expression, node: ast.AST) -> None:
        if sign in ("<<", ">>") and not (right.span[0] >= 0 and right.span[1] <= 31):
            self._refuse(node, f"expected a shift by 0 to 31, found {_shown(right)}")
        if sign in ("//", "%"):
            divisor = right.value if isinstance(right, Constant) else 0
            if divisor < 1:
                self._refuse(node, "expected a positive constant as the divisor")
            if left.span[0] < 0 and int(divisor) & int(divisor) - 1:
                self._refuse(node, f"expected a dividend that is not negative, found {_shown(left)}")

    def _select(self, test: Expression, then: ast.expr, other: ast.expr, node: ast.expr) -> Expression:
        if isinstance(test, Constant):
            return self._value(then if test.value else other)
        before, values = self._environment, []
        for holds, part in ((True, then), (False, other)):
            self._environment = dict(before)
            self._narrow(test, holds)
            values.append(self._value(part))
        self._environment = before
        one, two = self._common(node, *(self._held(value, part) for value, part in zip(values, (then, other), strict=True)))
        return Select(one.kind, spans.union(one.span, two.span), test, one, two)

    def _array(self, node: ast.expr) -> Reference:
        value = self._argument(node)
        if not isinstance(value, Reference):
            self._refuse(node, "expected an array")
        return value

    def _index(self, node: ast.Subscript, array: Reference) -> Expression:
        at, length = self._integer(node.slice), array.type.length
        low, high = at.span
        never = high < 0 or length is not None and low >= length
        if never or length is not None and self._bounds and not (low >= 0 and high < length):
            self._refuse(node, f"expected an index of {array.name} from 0 to {(length or 1) - 1}, found {_shown(at)}")
        return at

    def _load(self, array: Reference, node: ast.Subscript) -> Expression:
        at = self._index(node, array)
        if array.type.use == "out" and len(self._callers) == 1:
            self._refuse(node, f"expected an array to read, found the output {array.name}")
        span = ANY if array.type.kind == "float32" else _span_of(array)
        return Load(array.type.kind, span, array, at)

    def _view(self, array: Reference, low: ast.expr | None, high: ast.expr | None, node: ast.expr) -> Reference:
        """Returns a view. Its length is known if the end is the start plus a constant."""
        start = self._integer(low) if low else Constant("int32", (0, 0), 0)
        count: Expression | None = None
        if isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add) and low and ast.unparse(high.left) == ast.unparse(low):
            count = self._integer(high.right)
        elif isinstance(start, Constant):
            end = self._integer(high) if high else self._literal(array.type.length, node)
            count = self._literal(end.value - start.value, node) if isinstance(end, Constant) else None
        if not isinstance(count, Constant) or count.value < 1 or array.type.length is None:
            self._refuse(node, "expected a slice of constant length, such as x[a : a + 8]")
        length = int(count.value)
        if start.span[0] < 0 or start.span[1] + length > array.type.length:
            self._refuse(node, f"expected a slice of {array.name} from 0 to {array.type.length}, found a start of {_shown(start)}")
        offset = start if array.offset is None else self._binary("+", array.offset, start, node)
        return replace(array, type=replace(array.type, length=length), offset=offset)

    def _call(self, node: ast.Call) -> Expression:
        called = self._global(node.func.id) if isinstance(node.func, ast.Name) else None
        if called is len and len(node.args) == 1 and not node.keywords:
            array = self._array(node.args[0])
            if array.type.length is not None:
                return self._literal(array.type.length, node)
            return Length("int32", (0, ANY[1]), array.name)
        if called in BUILTINS and isinstance(called, (FunctionType, type(len))):
            return self._builtin(called, node)
        function, arguments = self._called(node)
        if len(function.results) != 1:
            self._refuse(node, f"expected 1 result, found {len(function.results)}")
        result = function.results[0]
        return Invoke(result.kind, result.span, function, arguments)

    def _builtin(self, called: Any, node: ast.Call) -> Expression:
        name, kinds, result = BUILTINS[called]
        values = [self._value(argument) for argument in node.args]
        if len(values) != len(kinds) or node.keywords:
            self._refuse(node, f"expected {len(kinds)} argument{'s' * (len(kinds) > 1)}")
        if "operand" in kinds:
            values = self._common(node, *(self._held(value, node) if len(kinds) > 1 else value for value in values))
            result = values[0].kind
            if result == "bool":
                self._refuse(node, "expected float32 or int32, found bool")
        elif name in ("float32", "int32"):
            if isinstance(value := values[0], Constant):
                return replace(value, kind=name, value=float(value.value)) if name == "float32" else self._of_kind(value, name, node)
            if name == "int32" and value.kind == "float32":
                self._refuse(node, "expected bool or int32, found float32: write nearest()")
        else:
            values = [self._of_kind(value, kind, node) for value, kind in zip(values, kinds, strict=True)]
        return Builtin(result, _span_of_builtin(name, result, [value.span for value in values]), name, tuple(values))

    def _called(self, node: ast.Call) -> tuple[Function, tuple[Argument, ...]]:
        """Returns the tree of a called function for these arguments, and the arguments."""
        function = self._global(node.func.id) if isinstance(node.func, ast.Name) else None
        if not isinstance(function, FunctionType) or function.__module__ == language.__name__:
            self._refuse(node, "expected a call of a scalar function")
        if function in self._callers:
            self._refuse(node, f"expected no recursion, found a call of {function.__name__}")
        arguments = tuple(self._argument(argument) for argument in node.args)
        arguments = tuple(self._held(value, node) if isinstance(value, Expression) else value for value in arguments)
        constants = {key.arg: self._value(key.value) for key in node.keywords if key.arg}
        names = [*inspect.signature(function).parameters.values()]
        positional = [one.name for one in names if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty]
        required = {one.name for one in names if one.kind is one.KEYWORD_ONLY and one.default is one.empty}
        allowed = {one.name for one in names if one.kind is one.KEYWORD_ONLY}
        values = {name: value.value for name, value in constants.items() if isinstance(value, Constant)}
        if len(positional) != len(arguments) or not required <= values.keys() <= allowed or len(values) != len(node.keywords):
            self._refuse(node, f"expected {function.__name__}{inspect.signature(function)}, keywords with constants")
        key = function, tuple(map(_signature, arguments)), tuple(sorted(values.items()))
        if key not in self._known:
            given = dict(zip(positional, arguments, strict=True))
            self._known[key] = _Checker(function, given, values, self._callers, self._known, self._bounds).checked
        return self._known[key], arguments


def _table(name: str, numbers: np.ndarray[Any, Any]) -> Reference:
    low, high = numbers.min(), numbers.max()
    kinds = [kind for kind, (least, most) in STORED.items() if least <= low and high <= most]
    return Reference(Array("f32" if numbers.dtype.kind == "f" else kinds[0], len(numbers)), name, table=numbers)


def _span_of(array: Reference) -> tuple[int, int]:
    if array.table is not None:
        return int(array.table.min()), int(array.table.max())
    return STORED[array.type.number]


def _signature(argument: Argument) -> Any:
    """Returns what a helper's tree depends on."""
    if isinstance(argument, Expression):
        return argument.kind, argument.span
    return argument.type, _span_of(argument) if argument.table is not None else None


def _span_of_builtin(name: str, kind: str, given: list[tuple[int, int]]) -> tuple[int, int]:
    if kind == "float32":
        return ANY
    if name in ("min", "max"):
        low, high = ((min, max)[name == "max"](ends) for ends in zip(*given, strict=True))
        return low, high
    if name == "abs":
        (low, high) = given[0]
        return spans.wrapped(0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
    return {"nearest": (-(2**22), 2**22 - 1), "int32": given[0]}.get(name, ANY)


def _shown(value: Expression) -> str:
    low, high = value.span
    return "any integer" if value.span == ANY else f"{low}" if low == high else f"{low} to {high}"
