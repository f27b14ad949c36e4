"""Checks a scalar function and returns its typed tree.

One pass infers kinds, spans and lengths, and rejects code outside the language.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from glft_schema.scalar import intervals, language, tree
from glft_schema.scalar.expression_reader import SIGNS, ExpressionReader, Value
from glft_schema.scalar.kinds import ANY
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import ArrayReference, ArrayType, Expression, Literal, Statement, Variable

LOCAL: dict[Any, str] = {language.floats: "f32", language.integers: "i32"}


def check(function: Callable[..., Any], arrays: Mapping[str, ArrayType]) -> tree.Function:
    """Returns the typed tree of a function of arrays.

    An index that might be outside its array is rejected; if the length is unknown, only one that
    always is.

    Args:
        function: its parameters are some of the names of `arrays`.
        arrays: the type of each array.

    Raises:
        ScalarError: if the function does not follow the language; the text names the function and
            the line.
    """
    names = [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.KEYWORD_ONLY]
    if unknown := [name for name in names if name not in arrays]:
        raise ScalarError(f"{function.__name__}: expected parameters among {', '.join(arrays)}, found {', '.join(unknown)}")
    checked = _Checker(function, (), {}, {}).check({name: ArrayReference(arrays[name], name) for name in names})
    if checked.results:
        raise ScalarError(f"{function.__name__}: expected a function without results")
    return checked


class _Checker(ExpressionReader):
    """Reads the statements of one function."""

    _ended = False  # after break or return
    _returned = False  # whether there was a return

    def check(self, arguments: Mapping[str, Value]) -> tree.Function:
        try:
            lines, self.first_line = inspect.getsourcelines(self.function)
            (source,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, SyntaxError):
            source = ast.Pass()
        if not isinstance(source, ast.FunctionDef):
            raise ScalarError(f"{self.function.__name__}: expected a def with its source in a file")
        self._loops: list[str] = []  # the variables of enclosing loops
        self._taken = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)} | set(arguments)
        for name, given in arguments.items():
            if isinstance(given, ArrayReference):
                self.environment[name], self.checked.parameters[name] = replace(given, name=name, offset=None), given.type
            else:
                self.environment[name] = self.checked.parameters[name] = Variable(given.kind, given.span, name)
                self.checked.variables[name] = given.kind
        self.checked.body = self._block(source.body)
        if self.checked.results and not self._ended:
            raise self.refusal(source, "expected a result on every path")
        return self.checked

    def _block(self, body: Sequence[ast.stmt]) -> list[Statement]:
        return [part for statement in body for part in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[Statement]:
        match node:
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                return []
            case ast.Expr(ast.Call() as call):
                return self._results([], call)
            case ast.AugAssign(target, sign, value) if type(sign) in SIGNS:
                return self._assign(
                    [target], [self.binary(SIGNS[type(sign)], self.value(target), self.value(value), node)], node
                )
            case ast.Assign([ast.Tuple(targets)], ast.Call() as call):
                return self._results(targets, call)
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                if any(map(self._new_array, values)):
                    pairs = zip(targets, values, strict=True)
                    return self._block([ast.copy_location(ast.Assign([target], value), node) for target, value in pairs])
                return self._assign(targets, [self.argument(value) for value in values], node)
            case ast.Assign([ast.Name(name)], ast.Call(args=[count]) as call) if number := self._new_array(call):
                return self._declare(name, number, self.value(count), node)
            case ast.Assign([target], value) if not isinstance(target, ast.Tuple):
                return self._assign([target], [self.argument(value)], node)
            case ast.If():
                return self._if(node)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), bounds, []), body, []) if len(bounds) in (1, 2):
                return self._for(name, [self.of_kind(self.value(bound), "int32", bound) for bound in bounds], body, node)
            case ast.While(orelse=[]):
                return self._while(node)
            case ast.Break():
                self._ended = True
                return [tree.Break()]
            case ast.Return(value):
                return self._return(node, value)
        raise self.refusal(node, "expected a statement of the language")

    # Assignments

    def _new_array(self, node: ast.expr) -> str | None:
        """Returns the number type of the array that an expression makes, or None."""
        called = self.callee(node) if isinstance(node, ast.Call) else None
        return LOCAL.get(called) if isinstance(called, FunctionType) else None

    def _declare(self, name: str, number: str, count: Expression, node: ast.AST) -> list[Statement]:
        if not isinstance(count, Literal) or count.value < 1 or name in self.environment:
            raise self.refusal(node, "expected an array with a new name and a constant length")
        type_ = ArrayType(number, int(count.value), "both")
        self.environment[name] = ArrayReference(type_, name)
        return [tree.Declare(name, type_)]

    def _assign(self, targets: Sequence[ast.expr], values: Sequence[Value], node: ast.AST) -> list[Statement]:
        """Assigns values, via new variables if an assignment may change a later value."""
        assignments: list[Statement] = []
        stored = {part.id for target in targets[:-1] for part in ast.walk(target) if isinstance(part, ast.Name)}
        if any(getattr(part, "name", None) in stored for part in tree.walk(list(values)[1:])):
            kept = [self._keep(value, node) if isinstance(value, Expression) else ([], value) for value in values]
            assignments, values = [statement for first, _ in kept for statement in first], [value for _, value in kept]
        return assignments + [
            part for target, value in zip(targets, values, strict=True) for part in self._store(target, value, node)
        ]

    def _keep(self, value: Expression, node: ast.AST) -> tuple[list[Statement], Value]:
        """Assigns a value to a new variable."""
        name = next(name for number in range(1, 1000) if (name := f"kept_{number}") not in self._taken)
        self._taken.add(name)
        return self._set(name, value, node), self.environment[name]

    def _store(self, target: ast.expr, value: Value, node: ast.AST) -> list[Statement]:
        if isinstance(target, ast.Name):
            return self._set(target.id, value, node)
        if not isinstance(target, ast.Subscript) or isinstance(target.slice, ast.Slice):
            raise self.refusal(node, "expected a variable or an element on the left")
        array = self.array(target.value)
        if array.type.use == "in":
            raise self.refusal(node, f"expected an array to write, found the input {array.name}")
        return [tree.Store(array, self.index(target, array), self.of_kind(self.number(value, node), array.type.kind, node))]

    def _set(self, name: str, value: Value, node: ast.AST) -> list[Statement]:
        old = self.environment.get(name)
        if name in self._loops:
            raise self.refusal(node, f"expected no assignment to the loop variable {name}")
        if isinstance(value, ArrayReference):
            if old is not None or value.offset is None:
                raise self.refusal(node, "expected a new name for a slice of an array")
            self.environment[name] = ArrayReference(value.type, name)
            return [tree.View(name, value)]
        value = self.with_kind(value, node)
        kind = "an array" if isinstance(old, ArrayReference) else self.checked.variables.setdefault(name, value.kind)
        if kind != value.kind:
            raise self.refusal(node, f"expected {name} to stay {kind}, found {value.kind}")
        self.environment[name] = Variable(kind, value.span, name)
        return [tree.Assign(name, value)]

    def _results(self, targets: Sequence[ast.expr], call: ast.Call) -> list[Statement]:
        """Assigns the results of a call."""
        function, arguments = self.invoke(call)
        if len(function.results) != len(targets):
            raise self.refusal(call, f"expected {len(targets)} results, found {len(function.results)}")
        names, stores = [], []
        for target, result in zip(targets, function.results, strict=True):
            if isinstance(target, ast.Name):
                names.append(target.id)
                self._set(target.id, result, call)
            else:
                _, kept = self._keep(result, call)
                names.append(kept.name)  # type: ignore[union-attr]
                stores += self._store(target, kept, call)
        return [tree.Call(function, arguments, tuple(names)), *stores]

    def _return(self, node: ast.stmt, value: ast.expr | None) -> list[Statement]:
        nodes = value.elts if isinstance(value, ast.Tuple) else [] if value is None else [value]
        values, before = [self.with_kind(self.value(one), node) for one in nodes], self.checked.results
        if self._returned and [one.kind for one in before] != [one.kind for one in values]:
            raise self.refusal(node, f"expected results ({', '.join(one.kind for one in before)}) as in the first return")
        pairs = zip(values, before if self._returned else values, strict=True)
        self.checked.results = [Variable(one.kind, intervals.union(one.span, other.span), "") for one, other in pairs]
        self._returned = self._ended = True
        return [tree.Return(tuple(values))]

    # Branches and loops

    def _if(self, node: ast.If) -> list[Statement]:
        test = self.of_kind(self.value(node.test), "bool", node.test)
        if isinstance(test, Literal):
            return self._block(node.body if test.value else node.orelse)
        before, blocks, after = self.environment, [], []
        for holds, body in ((True, node.body), (False, node.orelse)):
            self.environment, self._ended = dict(before), False
            self.narrow(test, holds)
            blocks.append(self._block(body))
            if not self._ended:
                after.append(self.environment)
        self._ended = not after
        self.environment = self._join(before, after or [before])
        return [tree.If(test, *blocks)]

    @staticmethod
    def _join(before: dict[str, Value], paths: Sequence[dict[str, Value]]) -> dict[str, Value]:
        """Returns the names that are assigned on all paths, with the spans of all.

        Arrays declared in a block do not exist after it.
        """
        joined: dict[str, Value] = {name: value for name, value in before.items() if isinstance(value, ArrayReference)}
        for name, value in paths[0].items():
            values = [path.get(name) for path in paths]
            if isinstance(value, Variable) and all(isinstance(one, Variable) for one in values):
                lows, highs = zip(*(one.span for one in values if isinstance(one, Variable)), strict=True)
                joined[name] = replace(value, span=(min(lows), max(highs)))
        return joined

    def _for(self, name: str, bounds: Sequence[Expression], body: Sequence[ast.stmt], node: ast.stmt) -> list[Statement]:
        low, high = bounds if len(bounds) == 2 else (Literal("int32", (0, 0), 0), bounds[0])
        if name in self.environment:
            raise self.refusal(node, f"expected a new name for the loop variable, found {name}")
        if high.span[1] <= low.span[0]:
            return []
        leaves = any(isinstance(part, (ast.Break, ast.Return)) for statement in body for part in ast.walk(statement))
        before = self._enter(body)
        self.environment[name] = Variable("int32", (low.span[0], high.span[1] - 1), name)
        self._loops.append(name)
        statements = self._block(body)
        self._loops.pop()
        del self.environment[name]
        ran = high.span[0] > low.span[1] and not leaves  # to the end of its body
        self.environment = self._join(before, [self.environment if ran else before])
        self._ended = False
        return [tree.For(name, low, high, statements)]

    def _while(self, node: ast.While) -> list[Statement]:
        before = self._enter(node.body)
        test = self.of_kind(self.value(node.test), "bool", node.test)
        self.narrow(test, True)
        statements = self._block(node.body)
        self.environment, self._ended = before, False
        return [tree.While(test, statements)]

    def _enter(self, body: Sequence[ast.stmt]) -> dict[str, Value]:
        """Forgets the spans of variables that a loop assigns. Returns the environment."""
        stored = {
            part.id
            for node in body
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        for name in stored & self.environment.keys():
            if isinstance(value := self.environment[name], Variable):
                self.environment[name] = replace(value, span=ANY)
        return dict(self.environment)
