"""Scalar functions as C in lanes: several blocks at once, one in each lane of a vector.

Numbers that depend on data are vectors, and arrays are arrays of vectors. Conditions are masks of
lanes: statements under a condition run if any lane of its mask is set, and assign only to these
lanes. Numbers that depend only on loops and constants stay scalars. Functions that are marked
`alone` are called lane by lane.

The compiler needs the vectors of gcc or clang. The bits are those of `as_c`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from glft_schema.scalar import tree
from glft_schema.scalar.as_c import VALUES, Printer, TranslationUnit, mentions, name_in_c
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import ArrayReference, Expression, Function, Literal, Statement, Variable, walk

VECTORS = {"float32": "vf", "int32": "vi", "bool": "vi"}
FEW = 3  # the most assignments that run without testing whether any lane is set
WIDTHS = (16, 8, 4)  # the most lanes of a vector, see lanes.h
ALL = "all"  # the mask of a function's lanes


def in_lanes(
    unit: TranslationUnit,
    function: Function,
    scalars: Collection[str],
    owned: Collection[str],
    tables: Collection[str] = (),
    most: int = WIDTHS[0],
) -> str:
    """Returns the name in C of a function in lanes, after adding it and its callees.

    Args:
        unit: gets the function and its callees.
        function: the tree.
        scalars: the parameters that are scalars; other numbers are vectors.
        owned: the arrays whose lanes outside the mask may be overwritten.
        tables: the parameters that are tables, omitted because the function names the tables.
        most: the most lanes of a vector, one of WIDTHS.
    """
    key = id(function), frozenset(scalars), frozenset(owned), most
    if key not in unit.names:
        text = LanePrinter(unit, function, scalars, owned, tables, most).text(function.sentence)
        unit.add(key, function, f"{function.name}_lanes", "\n".join(with_lanes(most, [text])))
    return unit.names[key][1]


def with_lanes(most: int, lines: list[str]) -> list[str]:
    """Returns lines of C for vectors of at most some lanes, one of WIDTHS."""
    if most == WIDTHS[0]:
        return lines
    return ["#undef LANES", f"#define LANES LANES_{most}", *lines, "#undef LANES", f"#define LANES LANES_{WIDTHS[0]}"]


class LanePrinter(Printer):
    """Prints a function. Statements and expressions of scalars are printed as in plain C."""

    def __init__(
        self,
        unit: TranslationUnit,
        function: Function,
        scalars: Collection[str],
        owned: Collection[str],
        tables: Collection[str],
        most: int = WIDTHS[0],
    ) -> None:
        super().__init__(unit, function, "")
        self._most = most
        self._given = [name for name in function.parameters if name not in tables]
        self._scalars = set(scalars)
        self._vectors = self._varying(function)
        self._masks = ["all"]  # of the enclosing blocks of statements, the innermost last
        self._loops: list[int] = []  # the number of masks outside of each loop
        self._declared = dict.fromkeys(owned, ALL)  # the mask under which all lanes of a name may be overwritten
        self._outer = set(function.parameters)  # parameters and views of them
        self._returned = False
        self._count = 0

    def text(self, sentence: str) -> str:
        function = self._function
        if any(isinstance(part, tree.ArrayLength) for part in walk(function.body)):
            raise self._refusal("expected arrays of constant lengths")
        results = [VECTORS[result.kind] for result in function.results]
        parameters = ["vi all", *map(self._lane_parameter, self._given)]
        parameters += [f"{kind} *result_{number}" for number, kind in enumerate(results) if len(results) > 1]
        kind = results[0] if len(results) == 1 else "void"
        self._block(function.body)
        if kind != "void":
            self._lines = [f"{kind} result_0 = {{0}};", *self._lines, "return result_0;"]
        return self._definition("", kind, parameters, [ALL, *self._unused_name()])

    def _lane_parameter(self, name: str) -> str:
        type_ = self._function.parameters[name]
        if isinstance(type_, Variable):
            return f"{(VECTORS if name in self._vectors else VALUES)[type_.kind]} {name_in_c(name)}"
        return f"{VECTORS[type_.kind]} *{name_in_c(name)}"

    def _refusal(self, problem: str) -> ScalarError:
        return ScalarError(f"{self._function.name}: {problem} in lanes")

    # Scalars and vectors

    def _varying(self, function: Function) -> set[str]:
        """Returns the variables that are vectors."""
        self._vectors = {name for name, type_ in function.parameters.items() if isinstance(type_, Variable)} - self._scalars
        before = -1
        while len(self._vectors) != before:
            before = len(self._vectors)
            self._mark(function.body, False)
        return self._vectors

    def _mark(self, body: Sequence[Statement], masked: bool) -> bool:
        """Marks the variables that are assigned vectors, or assigned under a mask. Tells whether
        lanes leave a loop or the function."""
        leaves = False
        for node in body:
            match node:
                case tree.Assign() if masked or self._varies(node.value):
                    self._vectors.add(node.name)
                case tree.Call():
                    self._vectors.update(node.targets)
                case tree.If():
                    inner = masked or self._varies(node.test)
                    leaves |= self._mark(node.then, inner) | self._mark(node.other, inner)
                case tree.For():
                    with self._looping(node) as varies:
                        if self._mark(node.body, masked or varies):
                            self._mark(node.body, True)
                case tree.While():
                    if self._mark(node.body, masked or self._varies(node.test)):
                        self._mark(node.body, True)
                case tree.Break() | tree.Return():
                    leaves = True
        return leaves

    @contextmanager
    def _looping(self, node: tree.For) -> Iterator[bool]:
        """Yields whether a loop's variable, which other loops may also use, is a vector."""
        varies = self._varies(node.low) or self._varies(node.high)
        if varies:
            self._vectors.add(node.name)
        yield varies
        self._vectors.discard(node.name)

    def _varies(self, node: Expression | ArrayReference | None) -> bool:
        """Tells whether an expression is a vector, or an array of vectors."""
        match node:
            case None | Literal() | tree.ArrayLength():
                return False
            case Variable():
                return node.name in self._vectors
            case ArrayReference():
                return node.table is None or self._varies(node.offset)
            case tree.Load():
                return self._varies(node.array) or self._varies(node.at)
            case tree.Invoke():
                return any(self._varies(argument) for argument in node.arguments)
            case tree.Unary():
                return self._varies(node.operand)
            case tree.Binary():
                return self._varies(node.left) or self._varies(node.right)
            case tree.Select():
                return self._varies(node.test) or self._varies(node.then) or self._varies(node.other)
            case tree.Builtin():
                return any(map(self._varies, node.operands))
        raise self._refusal("expected another expression")

    # Statements

    def _declare(self, node: Statement, new: set[str], later: set[str]) -> str:
        for name in sorted(new):
            if name in later or (isinstance(node, (tree.Assign, tree.Call)) and name in mentions(node)):
                vector = name in self._vectors
                kind = (VECTORS if vector else VALUES)[self._function.variables[name]]
                self._lines.append(f"{kind} {name_in_c(name)}{' = {0}' * vector};")
                self._declared[name] = self._masks[-1]
        return ""

    def _statement(self, node: Statement, prefix: str) -> None:
        match node:
            case tree.Assign() if node.name in self._vectors:
                self._set(name_in_c(node.name), node.name, node.value.kind, self._vector(node.value))
            case tree.Store():
                self._store(node)
            case tree.Declare():
                self._lines.append(f"{VECTORS[node.type.kind]} {name_in_c(node.name)}[{node.type.length}] = {{0}};")
                self._declared[node.name] = self._masks[-1]
            case tree.View():
                if self._varies(node.array.offset):
                    raise self._refusal("expected views that do not depend on data")
                self._lines.append(f"{VECTORS[node.array.type.kind]} *{name_in_c(node.name)} = {self._reference(node.array)};")
                if node.array.name in self._declared:
                    self._declared[node.name] = self._declared[node.array.name]
                if node.array.name in self._outer:
                    self._outer.add(node.name)
            case tree.If() if self._varies(node.test):
                self._if(node)
            case tree.For() | tree.While():
                self._loop(node)
            case tree.Return():
                for number, value in enumerate(node.values):
                    target = f"*result_{number}" if len(node.values) > 1 else "result_0"
                    self._lines.append(f"{target} = {self._pick(value.kind, self._vector(value), target)};")
                self._leave(0)
                self._returned = True
            case tree.Break():
                self._leave(self._loops[-1])
            case tree.Call():
                targets = [f"&{name_in_c(name)}" for name in node.targets]
                self._lines.append(f"{self._call_in_lanes(node.function, node.arguments, targets)};")
            case _:
                super()._statement(node, prefix)

    def _set(self, target: str, name: str, kind: str, value: str) -> None:
        """Assigns to the lanes of the mask, or to all lanes if the others may be overwritten."""
        free = self._is_free(name)
        self._lines.append(f"{target} = {value if free else self._pick(kind, value, target)};")

    def _is_free(self, name: str) -> bool:
        """Tells whether the lanes outside the mask may be overwritten."""
        return self._declared.get(name) == self._masks[-1] and not (self._returned and name in self._outer)

    def _pick(self, kind: str, value: str, other: str) -> str:
        return f"pick_{VECTORS[kind][1]}({self._masks[-1]}, {value}, {other})"

    def _store(self, node: tree.Store) -> None:
        value = self._vector(node.value)
        if self._varies(node.at):
            at = self._vector(self._whole(node.array, node.at))
            self._lines.append(f"SCATTER({self._masks[-1]}, {self._base(node.array)}, {at}, {value})")
        else:
            self._set(self._element(node.array, node.at), node.array.name, node.array.type.kind, value)

    def _if(self, node: tree.If) -> None:
        then, other = self._new("mask"), self._new("mask")
        self._lines.append(f"vi {then} = {self._masks[-1]} & {self._operand_vector(node.test)};")
        if node.other:
            self._lines.append(f"vi {other} = {self._masks[-1]} & ~{then};")
        for mask, body in ((then, node.then), (other, node.other)):
            if not body:
                continue
            few = len(body) <= FEW and all(isinstance(one, (tree.Assign, tree.Store)) for one in body)
            self._lines.append("{" if few and not self._calls(body) else f"if (any({mask})) {{")
            self._masks.append(mask)
            self._inner(body)
            self._masks.pop()
            self._lines.append("}")

    @staticmethod
    def _calls(body: Sequence[Statement]) -> bool:
        return any(isinstance(part, tree.Invoke) for part in walk(list(body)))

    def _loop(self, node: tree.For | tree.While) -> None:
        if isinstance(node, tree.While):
            self._print_loop(node.body, self._varies(node.test), "for (;;) {", lambda: self._test(node.test))
            return
        i, low, high = name_in_c(node.name), node.low, node.high
        with self._looping(node) as varies:
            if varies:
                end = self._new("end")
                self._lines.append(f"vi {end} = {self._vector(high)};")
                head = f"for (vi {i} = {self._vector(low)};; {i}++) {{"
                self._print_loop(node.body, True, head, lambda: self._narrow(f"{i} < {end}"))
            else:
                head = f"for (int32_t {i} = {self._value(low)}; {i} < {self._value(high)}; {i}++) {{"
                self._print_loop(node.body, False, head, lambda: None)

    def _test(self, test: Expression) -> None:
        if self._varies(test):
            self._narrow(self._operand_vector(test))
        else:
            self._lines.append(f"if (!({self._value(test)})) break;")

    def _narrow(self, test: str) -> None:
        self._lines.append(f"{self._masks[-1]} &= {test};")

    def _print_loop(self, body: Sequence[Statement], varies: bool, head: str, test: Callable[[], None]) -> None:
        """Prints a loop, with a mask of its own if some lanes may leave it before others."""
        masked = varies or any(isinstance(part, (tree.Break, tree.Return)) for part in walk(list(body)))
        self._loops.append(len(self._masks))
        if masked:
            mask = self._new("mask")
            self._lines.append(f"vi {mask} = {self._masks[-1]};")
            self._masks.append(mask)
        self._lines.append(head)
        with self._indent():
            test()
            if masked:
                self._lines.append(f"if (!any({self._masks[-1]})) break;")
            self._block(body)
        self._lines.append("}")
        if masked:
            self._masks.pop()
        self._loops.pop()

    def _leave(self, outer: int) -> None:
        """Removes the lanes of the innermost mask from all masks except the first `outer`."""
        gone = self._new("gone")
        self._lines.append(f"vi {gone} = {self._masks[-1]};")
        self._lines += [f"{mask} &= ~{gone};" for mask in dict.fromkeys(self._masks[outer:])]

    def _new(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"

    # Calls

    def _call_in_lanes(
        self, function: Function, arguments: Sequence[Expression | ArrayReference], targets: Sequence[str] = ()
    ) -> str:
        if function.alone:
            return self._one_by_one(function, arguments, targets)
        given, scalars, owned, tables = [self._masks[-1]], set(), set(), set()
        changed = {
            name for part in walk(function.body) if isinstance(part, (tree.Assign, tree.Call)) for name in mentions(part)
        }
        for name, argument in zip(function.parameters, arguments, strict=True):
            if isinstance(argument, ArrayReference) and argument.table is not None:
                tables.add(name)
            elif isinstance(argument, ArrayReference):
                if self._varies(argument.offset):
                    raise self._refusal("expected no views that depend on data as arguments")
                given.append(self._reference(argument))
                if self._is_free(argument.name):
                    owned.add(name)
            elif self._varies(argument) or name in changed:
                given.append(self._vector(argument))
            else:
                given.append(self._value(argument))
                scalars.add(name)
        return f"{in_lanes(self._unit, function, scalars, owned, tables, self._most)}({', '.join([*given, *targets])})"

    def _one_by_one(self, function: Function, arguments: Sequence[Expression | ArrayReference], targets: Sequence[str]) -> str:
        """Prints a call for each lane of the mask. Returns the result's text, or an empty text."""
        lines, given, after = [], [], []
        for name, argument in zip(function.parameters, arguments, strict=True):
            copy = self._new(name)
            if not isinstance(argument, ArrayReference):
                varies = self._varies(argument)
                kinds, printed = (VECTORS, self._vector) if varies else (VALUES, self._value)
                self._lines.append(f"{kinds[argument.kind]} {copy} = {printed(argument)};")
                given.append(f"{copy}[l]" if varies else copy)
            elif argument.table is not None:
                given.append(self._reference(argument))
            else:
                vectors, kind = self._reference(argument), VALUES[argument.type.kind]
                each = f"for (int32_t i = 0; i < {argument.type.length}; i++)"
                lines += [f"{kind} {copy}[{argument.type.length}];", f"{each} {copy}[i] = ({vectors})[i][l];"]
                if any(isinstance(part, tree.Store) and part.array.name == name for part in walk(function.body)):
                    after.append(f"{each} ({vectors})[i][l] = {copy}[i];")
                given.append(copy)
        results = [self._new("found") for _ in function.results]
        if len(results) == 1:
            kind = VECTORS[function.results[0].kind]
            self._lines.append(f"{kind} {results[0]} = {{0}};")
            call = f"{results[0]}[l] = {self._unit.function(function)}({', '.join(given)});"
        else:
            lines += [f"{VALUES[result.kind]} {name};" for name, result in zip(results, function.results, strict=True)]
            call = f"{self._unit.function(function)}({', '.join([*given, *(f'&{name}' for name in results)])});"
            after += [f"({target.removeprefix('&')})[l] = {name};" for name, target in zip(results, targets, strict=True)]
        self._lines += [f"EACH_LANE if ({self._masks[-1]}[l]) {{", *(f"    {line}" for line in [*lines, call, *after]), "}"]
        if len(results) != 1:
            return ""
        if targets:
            target = targets[0].removeprefix("&")
            return f"{target} = {self._pick(function.results[0].kind, results[0], target)}"
        return results[0]

    # Vectors

    def _vector(self, node: Expression) -> str:
        """Returns the text of an expression as a vector."""
        if not self._varies(node):
            text = self._value(node)
            return f"all_f({text})" if node.kind == "float32" else f"all_i({f'-({text})' if node.kind == 'bool' else text})"
        match node:
            case Variable():
                return name_in_c(node.name)
            case tree.Load():
                return self._load_lanes(node)
            case tree.Unary():
                return f"{'~' if node.sign == 'not' else '-'}{self._operand_vector(node.operand)}"
            case tree.Binary():
                return self._combine(node)
            case tree.Select():
                if not self._varies(node.test):
                    return (
                        f"({self._value(node.test)}) ? {self._operand_vector(node.then)} : {self._operand_vector(node.other)}"
                    )
                test = self._operand_vector(node.test)
                with self._under(test, node.then):
                    then = self._vector(node.then)
                with self._under(f"~{test}", node.other):
                    other = self._vector(node.other)
                return f"pick_{VECTORS[node.kind][1]}({test}, {then}, {other})"
            case tree.Invoke():
                return self._call_in_lanes(node.function, node.arguments)
            case tree.Builtin():
                return self._lane_builtin(node)
        raise self._refusal("expected another expression")

    @contextmanager
    def _under(self, test: str, node: Expression) -> Iterator[None]:
        """Narrows the mask while an expression with a gather or a call is printed."""
        narrows = any(
            isinstance(part, tree.Invoke) or (isinstance(part, tree.Load) and self._is_gather(part)) for part in walk(node)
        )
        if narrows:
            mask = self._new("mask")
            self._lines.append(f"vi {mask} = {self._masks[-1]} & {test};")
            self._masks.append(mask)
        yield
        if narrows:
            self._masks.pop()

    def _operand_vector(self, node: Expression) -> str:
        text = self._vector(node)
        return text if text.isidentifier() or (text.endswith(")") and isinstance(node, tree.Builtin)) else f"({text})"

    def _combine(self, node: tree.Binary) -> str:
        sign, (left, right) = node.sign, (self._either(part) for part in (node.left, node.right))
        if sign in ("and", "or"):
            return f"{self._operand_vector(node.left)} {'&' if sign == 'and' else '|'} {self._operand_vector(node.right)}"
        if sign in ("//", "%"):
            assert isinstance(node.right, Literal)
            divisor = int(node.right.value)
            if divisor & divisor - 1 == 0:
                return f"{left} >> {divisor.bit_length() - 1}" if sign == "//" else f"{left} & {divisor - 1}"
            return f"{left} {'/' if sign == '//' else '%'} {divisor}"
        if sign in ("<<", ">>"):
            right = f"({right} & 31)" if self._varies(node.right) else right
            return f"{self._operand_vector(node.left)} {sign} {right}"
        return f"{left} {sign} {right}"

    def _either(self, node: Expression) -> str:
        """Returns the text of an operand: a vector, or a scalar, which the compiler broadcasts."""
        if self._varies(node):
            return self._operand_vector(node)
        return f"({self._value(node)})" if node.kind != "bool" else f"({self._vector(node)})"

    def _lane_builtin(self, node: tree.Builtin) -> str:
        operands, first = [self._vector(operand) for operand in node.operands], node.operands[0]
        match node.name:
            case "float32":
                return f"lanes_float32({f'-({operands[0]})' if first.kind == 'bool' else operands[0]})"
            case "int32":
                return f"-({operands[0]})" if first.kind == "bool" else operands[0]
            case "as_bits":
                return f"(vi)({operands[0]})"
            case "as_float":
                return f"(vf)({operands[0]})"
            case "abs" | "min" | "max":
                return f"lanes_{node.name}_{node.kind}({', '.join(operands)})"
        return f"lanes_{node.name}({operands[0]})"

    def _whole(self, array: ArrayReference, at: Expression) -> Expression:
        """Returns an index together with the offset of a view."""
        return at if array.offset is None else tree.Binary("int32", at.span, "+", array.offset, at)

    def _is_gather(self, node: tree.Load) -> bool:
        return self._varies(node.at) or self._varies(node.array.offset)

    def _load_lanes(self, node: tree.Load) -> str:
        if not self._is_gather(node):
            return self._element(node.array, node.at)
        at, kind = self._vector(self._whole(node.array, node.at)), VECTORS[node.kind]
        which = "GATHERED" if node.array.table is None else "LOOKED_UP"
        return f"{which}({kind}, {self._base(node.array)}, {self._masks[-1]} & ({at}))"
