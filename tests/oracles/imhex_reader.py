"""An interpreter for a part of ImHex's pattern language, written from its documentation.

Types and functions must be declared before use. Names are looked up in the struct, in its template
parameters, then among global variables. A variable placed with ``@`` in a struct does not move the
position. A byte order set within a struct holds until the end of the struct.
"""

from __future__ import annotations

import re
import struct
from typing import Any

TOKEN = re.compile(r'\s+|//[^\n]*|("(?:\\.|[^"\\])*"|0x[0-9A-F]+|\d+|[A-Za-z_]\w*(?:::\w+)*|==|!=|<=|>=|&&|\|\||[^\s\w])')
LETTERS = {"u8": "B", "s8": "b", "u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q", "s64": "q"}
LETTERS |= {"float": "f", "double": "d", "type::float16": "e", "char": "c"}
LEVELS = (("||",), ("&&",), ("==", "!=", "<", ">", "<=", ">="), ("+", "-"), ("*", "/", "%"))
OPERATIONS = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "+": lambda a, b: a + b, "-": lambda a, b: a - b,
    "*": lambda a, b: a * b, "/": lambda a, b: a // b, "%": lambda a, b: a % b, "&&": lambda a, b: a and b,
    "||": lambda a, b: a or b,
}  # fmt: skip


class ReturnError(Exception):
    """Carries the value of a return statement to the caller."""


class Program:
    """A pattern run on a file. Its global variables are in `fields`."""

    def __init__(self, source: str, stored: bytes, **inputs: int) -> None:
        self.stored, self.inputs, self.order, self.at, self.index = stored, inputs, "<", 0, 0
        self.pragmas = dict(re.findall(r"^#pragma (\w+) (.*)$", source, re.MULTILINE))
        assert self.pragmas["endian"] == "little"
        tokens = TOKEN.finditer(re.sub(r"^#.*$", "", source, flags=re.MULTILINE))
        self.tokens = [token.group(1) for token in tokens if token.group(1)] + [""]
        self.next, self.fields = 0, dict[str, Any]()
        self.scopes: list[dict[str, Any]] = [self.fields]
        self.types: dict[str, Any] = dict.fromkeys(LETTERS)
        self.functions: dict[str, Any] = {}
        while self.tokens[self.next]:
            self.top()

    # Tokens

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.next + ahead]

    def take(self, *expected: str) -> str:
        token = self.tokens[self.next]
        assert not expected or token in expected, (expected, self.tokens[max(self.next - 8, 0) : self.next + 8])
        self.next += 1
        return token

    def took(self, token: str) -> bool:
        self.next += (found := self.peek() == token)
        return found

    def block(self, run: bool) -> None:
        """Runs or skips the statements in braces, or one statement."""
        act = self.statement if run else self.skip
        if not self.took("{"):
            return act()
        while not self.took("}"):
            act()
        return None

    def skip(self) -> None:
        depth = 0
        while True:
            token = self.take()
            depth += (token in "([{") - (token in ")]}")
            if depth == 0 and (token == ";" or (token == "}" and self.peek() not in ("else", ";"))):
                return

    # Declarations

    def top(self) -> None:
        kind = self.peek()
        if kind == "using":
            self.types.setdefault(self.peek(1), ())
            self.next += 3
        elif kind == "enum":
            _, name, _, number, _ = (self.take() for _ in range(5))
            entries = {}
            while not self.took("}"):
                entry, _, code, _ = (self.take() for _ in range(4))
                entries[entry] = int(code)
            self.types[name] = (number, entries)
            self.take(";")
        elif kind in ("struct", "fn"):
            self.take()
            name, parameters = self.take(), list[str]()
            if self.peek() in ("<", "("):
                closing = {"<": ">", "(": ")"}[self.take()]
                while not self.took(closing):
                    self.take()  # its type
                    parameters.append(self.take())
                    self.took(",")
            table = self.types if kind == "struct" else self.functions
            assert not table.get(name), f"{name} comes twice"
            table[name] = (self.next, parameters)
            self.block(run=False) if kind == "fn" else self.checked_members(name)
            self.attributes()
            self.take(";")
        else:
            self.statement()

    def checked_members(self, name: str) -> None:
        """Skips a struct's members, and checks that their types are declared."""
        self.take("{")
        depth = 1
        while depth:
            before, token = self.tokens[self.next - 1], self.take()
            depth += (token == "{") - (token == "}")
            if before in ("{", ";", "}", "le", "be", ":") and re.match(r"\w", token) and token not in ("if", "else", "match"):
                assert token in self.types or token in ("le", "be") or self.peek() == "=", f"{token} in {name} is not declared"

    def attributes(self) -> None:
        if self.peek() == "[" and self.peek(1) == "[":
            while self.tokens[self.next - 2 : self.next] != ["]", "]"] or self.peek() == "]":
                self.take()

    # Statements

    def statement(self) -> None:
        token = self.peek()
        if token == "if":
            holds = self.bracketed()
            self.block(bool(holds))
            if self.took("else"):
                self.block(not holds)
        elif token == "while":
            start = self.next
            holds = self.bracketed()
            self.block(bool(holds))
            self.next = start if holds else self.next
        elif token == "match":
            value = self.bracketed()
            self.take("{")
            while not self.took("}"):
                self.next -= 1  # `bracketed` takes a word first
                holds = self.bracketed() == value
                self.take(":")
                self.block(holds)
        elif token == "return":
            self.take()
            raise ReturnError(self.expression())
        elif self.peek(1) == "(":
            self.expression()
            self.take(";")
        elif self.peek(1) == "=":
            self.next += 2
            assert token in self.scopes[-1]
            self.scopes[-1][token] = self.expression()
            self.take(";")
        else:
            self.variable()

    def bracketed(self) -> Any:
        """Takes a word and an expression in brackets."""
        self.take()
        self.take("(")
        return self.expression_up_to(")")

    def variable(self) -> None:
        order = {"le": "<", "be": ">"}.get(self.peek(), self.order)
        self.next += self.peek() in ("le", "be")
        kind, arguments, count, before = self.take(), [], None, self.at
        assert self.types.get(kind, ()) is not None or kind in LETTERS, kind
        if self.took("<"):
            while not self.took(">"):
                arguments.append(self.expression(3))
                self.took(",")
        name = self.take()
        if self.peek() == "[" and self.peek(1) != "[":
            self.take()
            count = self.expression_up_to("]")
        is_placed = False
        if is_value := self.took("="):
            self.scopes[-1][name] = self.expression()
        elif is_value := self.took("in"):
            self.scopes[-1][name] = self.inputs[name]
        elif is_placed := self.took("@"):
            self.at = self.expression()
        self.attributes()
        self.take(";")
        if not is_value:
            self.scopes[-1][name] = self.read(kind, count, order, arguments)
            self.at = before if is_placed and len(self.scopes) > 1 else self.at

    def read(self, kind: str, count: int | None, order: str, arguments: list[int]) -> Any:
        declared = self.types[kind]
        if declared is None or isinstance(declared[0], str):  # a number or an enum
            letter = LETTERS[kind if declared is None else declared[0]]
            number = "1" if count is None else str(count)
            code = f"{order}{number}{'s' if letter == 'c' else letter}"
            values = struct.unpack_from(code, self.stored, self.at)
            self.at += struct.calcsize(code)
            return values[0] if count is None or letter == "c" else list(values)
        if count is None:
            return self.record(declared, order, arguments)
        records, before = [], self.index
        for self.index in range(count):
            records.append(self.record(declared, order, arguments))
        self.index = before
        return records

    def record(self, declared: tuple[int, list[str]], order: str, arguments: list[int]) -> dict[str, Any]:
        body, parameters = declared
        assert len(parameters) == len(arguments)
        back, before = self.next, self.order
        self.scopes.append(dict(zip(parameters, arguments, strict=True)))
        self.next, self.order = body, order
        self.block(run=True)
        self.next, self.order = back, before
        return self.scopes.pop()

    # Expressions

    def expression(self, level: int = 0) -> Any:
        if level == len(LEVELS):
            return self.factor()
        left = self.expression(level + 1)
        while self.peek() in LEVELS[level]:
            sign = self.take()
            left = OPERATIONS[sign](left, self.expression(level + 1))
        return left

    def factor(self) -> Any:
        token = self.take()
        if token == "(":
            return self.expression_up_to(")")
        if token == "$":
            return self.at
        if token[0] == '"':
            return re.sub(r"\\(.)", r"\1", token[1:-1]).encode()
        if token[0].isdigit():
            return int(token, 0)
        if self.took("("):
            arguments = []
            while not self.took(")"):
                arguments.append(self.expression())
                self.took(",")
            return self.call(token, arguments)
        if "::" in token:
            space, _, entry = token.rpartition("::")
            return entry if space == "std::mem::Endian" else self.types[space][1][entry]
        scopes = self.scopes
        while token == "parent":
            scopes = scopes[:-1]
            self.take(".")
            token = self.take()
        value = scopes[-1][token] if token in scopes[-1] else self.fields[token]
        while (self.peek() == "[" and self.peek(1) != "[") or self.peek() == ".":
            is_member = self.take() == "."
            value = value[self.take() if is_member else self.expression_up_to("]")]
        return value

    def expression_up_to(self, closing: str) -> Any:
        value = self.expression()
        self.take(closing)
        return value

    def call(self, name: str, arguments: list[Any]) -> Any:
        if name == "std::mem::size":
            return len(self.stored)
        if name == "std::core::array_index":
            return self.index
        if name == "std::mem::read_unsigned":
            at, size, order = arguments
            return int.from_bytes(self.stored[at : at + size], order.lower())
        if name == "std::core::set_endian":
            self.order = {"Little": "<", "Big": ">"}[arguments[0]]
            return None
        body, parameters = self.functions[name]
        back, self.next = self.next, body
        self.scopes.append(dict(zip(parameters, arguments, strict=True)))
        result = None
        try:
            self.block(run=True)
        except ReturnError as returned:
            (result,) = returned.args
        self.scopes.pop()
        self.next = back
        return result
