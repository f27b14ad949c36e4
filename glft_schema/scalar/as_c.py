"""Scalar functions as C: one translation unit that calls no library, for compilers with the
builtins of gcc.

Compile it with FLAGS. Fields may begin at any byte. Numbers are in the machine's byte order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from glft_schema.scalar import tree
from glft_schema.scalar.kinds import COMPUTED, KINDS
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import ArrayReference, ArrayType, Expression, Function, Literal, Statement, Variable, walk

FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fno-strict-aliasing")
WIDTH = 120  # of a line
# fmt: off
TYPES = {name: kind.unaligned for name, kind in KINDS.items()}  # of arrays
VALUES = {name: kind.c for name, kind in COMPUTED.items()}
SIGNS = {"//": "/", "and": "&&", "or": "||", "not": "!"}
ROUNDED = {"f16": "to_half", "bf16": "to_bfloat"}  # functions to the words of small floats
# The operations that need no parentheses as the left and as the right operand of another.
COMPARED = ("<", "<=", ">", ">=", "==", "!=")
LEFT = {"+": "+-*/", "-": "+-*/", "*": "*/", "/": "*/", "&": "&", "|": "|", "^": "^",
        "&&": ("&&", *COMPARED), "||": ("||", *COMPARED)}
RIGHT = {"+": "*/", "-": "*/", "&&": COMPARED, "||": COMPARED}
WORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept bitand bitor bool catch char8_t char16_t char32_t
    class compl concept consteval constexpr constinit const_cast co_await co_return co_yield decltype delete dynamic_cast
    explicit export false friend mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    reflexpr reinterpret_cast requires static_assert static_cast synchronized template this thread_local throw true try typeid
    typename typeof typeof_unqual using virtual wchar_t xor xor_eq
    linux unix i386 errno offsetof NULL near far interface small
"""  # of C and C++, and macros of common compilers and systems
# fmt: on
KEYWORDS = frozenset(WORDS.split())
NAMED = re.compile(r"\w+(?= __attribute|\()")  # the name in a definition
# Definitions by name, each after those that it uses.
PRELUDE = {
    NAMED.search(definition)[0]: definition  # type: ignore[index]
    for definition in re.split(r"\n(?=[a-z#])", Path(__file__).with_name("prelude.h").read_text("utf-8").rstrip())
}
LANES = Path(__file__).with_name("lanes.h").read_text("utf-8")
IN_LANES = {*NAMED.findall(LANES), *re.findall(r"#define (\w+)", LANES)}
RESERVED = KEYWORDS | PRELUDE.keys() | IN_LANES | {"main", "NAME"}  # names to which an underscore is added


def with_prelude(text: str, prefix: str = "") -> str:
    """Returns code after the definitions of the prelude that it uses, renamed with a prefix."""
    used, words = [text], set(re.findall(r"\w+", re.sub("//.*", "", text)))
    for name, definition in reversed(PRELUDE.items()):
        if name in words:
            used.insert(0, definition)
            words.update(re.findall(r"\w+", definition))
    in_code = re.compile(rf"(//.*)|\b({'|'.join(PRELUDE)})\b")
    return in_code.sub(lambda found: found[1] or prefix + found[2], "\n".join(used))


class TranslationUnit:
    """A translation unit. Functions and tables are printed when they are first used; equal texts
    once.

    Args:
        prefix: of all names, for a unit that is part of a header.
        taken: other names that are in use.
    """

    def __init__(self, prefix: str = "", taken: Collection[str] = ()) -> None:
        self._prefix = prefix
        self._tables: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self._taken = {*RESERVED, *taken}  # names of C, and exported ones
        self.names: dict[Any, tuple[Any, str]] = {}  # of tables and functions by key; keeps them alive

    def __str__(self) -> str:
        lanes = LANES if re.search("LANES|MULTIPLY", self.text) else ""
        return f"#include <stdint.h>\n\n{with_prelude(f'{lanes}{self.text}')}"

    @property
    def text(self) -> str:
        """The tables and functions."""
        return "\n".join([*self._tables.values(), "", *(map(_wrap, self._functions.values()))])

    def add(self, key: Any, thing: Any, name: str, text: str, printed: dict[str, str] | None = None) -> str:
        """Adds a text to `printed`, by default to the functions, with NAME replaced by a free name.
        Returns this name, and stores it in `names` under the key."""
        printed = self._functions if printed is None else printed
        names = (f"{self._prefix}{name}{suffix}" for suffix in ("", *map("_{}".format, range(2, 1000))))
        chosen = next(one for one in names if printed.get(one) in (None, text.replace("NAME", one)) and one not in self._taken)
        printed[chosen] = text.replace("NAME", chosen)
        self.names[key] = thing, chosen
        return chosen

    def table(self, array: ArrayReference) -> str:
        """Returns the name in C of a constant array."""
        numbers = array.table
        assert numbers is not None
        if id(numbers) in self.names:
            return self.names[id(numbers)][1]
        texts = [_constant(number, array.type.kind) for number in numbers.tolist()]
        rows = "".join(f"\n    {','.join(texts[at : at + 32])}," for at in range(0, len(texts), 32))
        text = f"static const {TYPES[array.type.number]} NAME[{len(texts)}] = {{{rows}\n}};"
        return self.add(id(numbers), numbers, array.name, text, self._tables)

    def function(self, function: Function, sentence: str = "", restrict: str = "", printer: type[Printer] | None = None) -> str:
        """Returns the name in C of a function, after adding it and its callees."""
        if id(function) not in self.names:
            text = (printer or Printer)(self, function, restrict).text(sentence or function.sentence)
            self.add(id(function), function, function.name, text)
        return self.names[id(function)][1]

    def reserve(self, *names: str) -> None:
        """Keeps other functions and tables from having a name. Raises ScalarError if it is in
        use."""
        if self._taken.union(self._functions, self._tables).intersection(names):
            raise ScalarError(f"{names[0]}: expected a name that is not in use in C")
        self._taken.update(names)


class Printer:
    """Prints a function."""

    def __init__(self, unit: TranslationUnit, function: Function, restrict: str) -> None:
        self._unit, self._function, self._restrict = unit, function, restrict
        self._lines: list[str] = []
        self._declared: dict[str, str] = {}  # variables and arrays

    def text(self, sentence: str) -> str:
        function, results = self._function, self._function.results
        parameters = [self._parameter(name, type_) for name, type_ in function.parameters.items()]
        parameters += [f"int32_t {name}_length" for name in lengths_of(function)]
        kind = VALUES[results[0].kind] if len(results) == 1 else "void"
        if kind == "void":
            parameters += [f"{VALUES[result.kind]} *result_{number}" for number, result in enumerate(results)]
        lines = (line.rstrip(" \\/?") for line in sentence.splitlines())  # no comment continues on the next line
        comment = "".join(f"// {line}".rstrip() + "\n" for line in lines)
        self._block(function.body)
        return self._definition(comment, kind, parameters, self._unused_name())

    def _definition(self, comment: str, kind: str, parameters: Sequence[str], unused: Sequence[str]) -> str:
        body = "".join(f"    {line}\n" for line in [*(f"(void){name_in_c(name)};" for name in unused), *self._lines])
        return f"{comment}static inline {kind} NAME({', '.join(parameters)}) {{\n{body}}}\n"

    def _unused_name(self) -> list[str]:
        used = {part.name for part in walk(self._function.body) if isinstance(part, (ArrayReference, Variable))}
        return [name for name in self._function.parameters if name not in used]

    def _parameter(self, name: str, type_: ArrayType | Variable) -> str:
        if isinstance(type_, Variable):
            return f"{VALUES[type_.kind]} {name_in_c(name)}"
        return f"{_pointer(type_)}{self._restrict}{name_in_c(name)}"

    # Statements

    def _block(self, body: Sequence[Statement]) -> None:
        """Prints statements. A variable is declared in the innermost block with all its uses."""
        kinds, outer = self._function.variables, dict(self._declared)
        uses = [{name for part in walk(one) for name in mentions(part) if name in kinds} for one in body]
        for number, statement in enumerate(body):
            new = uses[number] - self._declared.keys() - self._function.parameters.keys()
            self._statement(statement, self._declare(statement, new, set().union(*uses[number + 1 :])))
        self._declared = outer

    def _declare(self, node: Statement, new: set[str], later: set[str]) -> str:
        """Declares the new variables of a statement that are also used later. Returns the kind
        before an assignment to a new variable."""
        kinds, prefix = {name: VALUES[self._function.variables[name]] for name in new}, ""
        if isinstance(node, tree.Assign) and node.name in new:
            prefix = f"{kinds[node.name]} "
        else:
            new = {name for name in new if name in later or isinstance(node, tree.Call)}
            for kind in sorted({kinds[name] for name in new}):
                self._lines.append(f"{kind} {', '.join(name_in_c(name) for name in sorted(new) if kinds[name] == kind)};")
        self._declared |= dict.fromkeys(new, "")
        return prefix

    def _inner(self, body: Sequence[Statement]) -> None:
        with self._indent():
            self._block(body)

    @contextmanager
    def _indent(self) -> Iterator[None]:
        lines, self._lines = self._lines, []
        yield
        self._lines = [*lines, *(f"    {line}" for line in self._lines)]

    def _statement(self, node: Statement, prefix: str) -> None:
        match node:
            case tree.Assign():
                self._lines.append(f"{prefix}{name_in_c(node.name)} = {self._value(node.value)};")
            case tree.Store():
                value, rounded = self._value(node.value), ROUNDED.get(node.array.type.number)
                self._lines.append(f"{self._element(node.array, node.at)} = {f'{rounded}({value})' if rounded else value};")
            case tree.Declare():
                self._lines.append(f"{VALUES[node.type.kind]} {name_in_c(node.name)}[{node.type.length}] = {{0}};")
            case tree.View():
                self._lines.append(f"{_pointer(node.array.type)}{name_in_c(node.name)} = {self._reference(node.array)};")
            case tree.If():
                self._lines.append(f"if ({self._value(node.test)}) {{")
                self._inner(node.then)
                if node.other:
                    self._lines.append("} else {")
                    self._inner(node.other)
                self._lines.append("}")
            case tree.For():
                i, low, high, bound = name_in_c(node.name), self._value(node.low), self._value(node.high), ""
                if not isinstance(node.high, (Literal, tree.ArrayLength)):  # computed once
                    bound, high = f", {i}_end = {high}", f"{i}_end"
                self._lines.append(f"for (int32_t {i} = {low}{bound}; {i} < {high}; {i}++) {{")
                self._inner(node.body)
                self._lines.append("}")
            case tree.While():
                self._lines.append(f"while ({self._value(node.test)}) {{")
                self._inner(node.body)
                self._lines.append("}")
            case tree.Return():
                if len(node.values) == 1:
                    self._lines.append(f"return {self._value(node.values[0])};")
                else:
                    self._lines += [f"*result_{number} = {self._value(one)};" for number, one in enumerate(node.values)]
                    self._lines.append("return;")
            case tree.Call():
                self._lines.append(f"{self._call(node.function, node.arguments, node.targets)};")
            case _:
                self._lines.append("break;")

    def _call(self, function: Function, arguments: Sequence[Expression | ArrayReference], targets: Sequence[str] = ()) -> str:
        given = [self._reference(one) if isinstance(one, ArrayReference) else self._value(one) for one in arguments]
        arrays = dict(zip(function.parameters, arguments, strict=True))
        given += [f"{getattr(arrays[name], 'name', name)}_length" for name in lengths_of(function)]
        return f"{self._unit.function(function)}({', '.join([*given, *(f'&{name_in_c(name)}' for name in targets)])})"

    # Expressions

    def _value(self, node: Expression) -> str:
        return self._sign(node)[0]

    def _operand(self, node: Expression, inside: Sequence[str] = ()) -> str:
        """Returns the text of an operand, in parentheses unless its operation is listed."""
        text, sign = self._sign(node)
        return text if not sign or sign in tuple(inside) else f"({text})"

    def _sign(self, node: Expression) -> tuple[str, str]:
        """Returns the text of an expression and its outermost operation, "" if it has none."""
        match node:
            case Literal():
                return _constant(node.value, node.kind), ""
            case Variable():
                return name_in_c(node.name), ""
            case tree.ArrayLength():
                return f"{node.name}_length", ""
            case tree.Load():
                return self._load(node), ""
            case tree.Unary():
                return f"{SIGNS.get(node.sign, node.sign)}{self._operand(node.operand)}", "unary"
            case tree.Select():
                return " ".join([self._operand(node.test), "?", self._operand(node.then), ":", self._operand(node.other)]), "?"
            case tree.Invoke():
                return self._call(node.function, node.arguments), ""
            case tree.Builtin():
                return self._builtin(node), ""
        assert isinstance(node, tree.Binary)
        return self._binary(node)

    def _binary(self, node: tree.Binary) -> tuple[str, str]:
        sign = SIGNS.get(node.sign, node.sign)
        right = self._operand(node.right, RIGHT.get(sign, ()))
        if node.sign in ("//", "%") and isinstance(node.right, Literal):
            divisor = int(node.right.value)
            if divisor & divisor - 1 == 0:  # rounds down, as in Python; C's division does not
                sign, right = (">>", str(divisor.bit_length() - 1)) if node.sign == "//" else ("&", str(divisor - 1))
        inside = "+-*" if sign in COMPARED else LEFT.get(sign, ())
        return f"{self._operand(node.left, inside)} {sign} {right}", sign

    def _builtin(self, node: tree.Builtin) -> str:
        values = ", ".join(self._value(operand) for operand in node.operands)
        match node.name:
            case "float32":
                return f"(float){self._operand(node.operands[0])}"
            case "int32":
                return self._operand(node.operands[0])
            case "float16":
                return f"of_half(to_half({values}))"
            case "as_bits":
                return f"(int32_t)as_bits({values})"
            case "as_float16":
                return f"of_half((uint16_t)({values}))"
            case "abs" | "min" | "max":
                return f"{node.name}_{node.kind}({values})"
        return f"{node.name}({values})"

    def _load(self, node: tree.Load) -> str:
        text = self._element(node.array, node.at)
        return {"f16": f"of_half({text})", "u32": f"(int32_t){text}"}.get(node.array.type.number, text)

    def _element(self, array: ArrayReference, at: Expression) -> str:
        return f"{self._base(array)}[{self._offset(array)}{self._operand(at, '*') if array.offset else self._value(at)}]"

    def _reference(self, array: ArrayReference) -> str:
        return f"{self._base(array)} + {self._operand(array.offset, '*')}" if array.offset else self._base(array)

    def _offset(self, array: ArrayReference) -> str:
        return f"{self._operand(array.offset, '*')} + " if array.offset else ""

    def _base(self, array: ArrayReference) -> str:
        return name_in_c(array.name) if array.table is None else self._unit.table(array)


def _wrap(function: str) -> str:
    """Returns a function with long lines broken after commas, except comments."""
    lines = []
    for line in function.split("\n"):
        indent, words = " " * (8 + len(line) - len(line.lstrip())), re.sub("(?<!,) ", "\0", line)
        lines += (
            [line] if line.startswith("//") else wrap(words, WIDTH, subsequent_indent=indent, break_long_words=False) or [""]
        )
    return "\n".join(lines).replace("\0", " ")


def lengths_of(function: Function) -> list[str]:
    """Returns the arrays whose lengths are parameters in C, used by the function or its callees."""
    used = {part.name for part in walk(function.body) if isinstance(part, tree.ArrayLength)}
    for part in walk(function.body):
        if isinstance(part, (tree.Call, tree.Invoke)):
            given = dict(zip(part.function.parameters, part.arguments, strict=True))
            used |= {getattr(given[name], "name", "") for name in lengths_of(part.function)}
    return [name for name in function.parameters if name in used]


def _pointer(type_: ArrayType) -> str:
    return f"{'const ' * (type_.use == 'in')}{TYPES[type_.number]} *"


def mentions(node: Any) -> tuple[str, ...]:
    """Returns the variables that a node itself names, without its children."""
    return node.targets if isinstance(node, tree.Call) else (node.name,) if isinstance(node, (Variable, tree.Assign)) else ()


def name_in_c(name: str) -> str:
    return f"{name}_" if name in RESERVED or name.startswith("result_") else name


def _constant(value: float, kind: str) -> str:
    if kind != "float32":
        return str(int(value)) if value != -(2**31) else "(-2147483647 - 1)"
    number = np.float32(value)
    return f"{number!s}f" if np.isfinite(number) else f"{'-' * bool(number < 0)}__builtin_inff()"
