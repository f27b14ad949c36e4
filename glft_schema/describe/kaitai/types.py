"""Nodes of a schema as attributes and types of Kaitai Struct."""

from __future__ import annotations

import math
import re
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Expression
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.kaitai.expressions import At, Expressions, UnsayableError, references
from glft_schema.describe.kaitai.names import KaitaiNames

Attr = dict[str, Any]
LETTERS = {"u": "u", "i": "s", "f": "f"}
HALVES = ("f16", "bf16")  # Kaitai Struct has none: they come as their bits
OUT, IN, DIMS = "out", "in", "dims"  # the parameters of a payload
ENCODING = "UTF-8"


class Types:
    """The types of a ``.ksy`` being written.

    Attributes:
        schema: what is written.
        root: the struct that is the whole.
        said: its expressions.
        id: the identifier of the whole.
        ids: of each struct that is a type, by name.
        own: types of our own, that are no struct of the schema, by identifier.
        enums: by identifier.
        names: the identifiers of types that are taken.
        is_big: the root's instance that tells the byte order; None where there is but one.
    """

    def __init__(self, schema: s.Schema, root: str, id: str) -> None:
        self.schema = schema
        self.root = root
        self.said = Expressions(schema, root)
        self.id = id
        self.names = KaitaiNames(id)
        written = schema.structs if schema.format else self._below(root)
        self.ids = {name: self.names.new(name, "type") for name in schema.structs if name in written and name != root}
        self.own: dict[str, Attr] = {}
        self.enums: dict[str, dict[int, Any]] = {}
        self.is_big = self.said.names[root].new("is big endian") if len(schema.byte_orders) > 1 else None
        self._own_ids: dict[Any, str] = {}
        self._enum_ids: dict[int, str] = {}

    def _below(self, struct: str) -> set[str]:
        below = {ref for part in self.schema.structs[struct].fields for ref in s.refs(part.node)} - {struct}
        return below.union(*map(self._below, below))

    def attrs(self, id: str, node: s.Node, at: At) -> list[Attr]:
        """Returns the attributes that a field becomes: the field itself is the last of them."""
        made: Attr = {"id": id} if id else {}
        if isinstance(node, s.Counted):
            count = self.said.names[at.struct].new(f"n {id}")
            number = {"id": count, "doc": f"Number of {id}.", **self.typed(node.count, at)}
            return [number, made | self.typed(node.item, at) | times(count)]
        if isinstance(node, s.List):
            return [made | self.typed(node.item, at) | times(self.said.text(node.count, at))]
        if isinstance(node, s.Switch) and (count_ := _count_of_all(node)):
            items = [s.SwitchCase(case.name, case.code, case.node.item) for case in node.cases if isinstance(case.node, s.List)]
            return [made | self.typed(s.Switch(node.on, tuple(items)), at) | times(self.said.text(count_, at))]
        if isinstance(node, s.Numbers):
            return [made | self._numbers(node, at)]
        if isinstance(node, s.BlockArray):
            return [made | {"type": self.ids[node.block]} | times(self.count(node, at))]
        if isinstance(node, s.Bytes):
            return [made | ({"size": whole(self.said.text(node.size, at))} if node.size else {"size-eos": True})]
        if isinstance(node, s.Lines):
            return [made | {"size": whole(self.said.text(node.size, at)), "type": self._lines()}]
        if isinstance(node, s.Padding):
            return [made | {"size": self._padding(node, at)}]
        if isinstance(node, s.Payloads):
            return [made | {"type": f"{self._payloads()}(_io.pos)"}]
        return [made | self.typed(node, at)]

    def typed(self, node: s.Node, at: At) -> Attr:
        """Returns the type of what is neither repeated nor of a size of its own; with what else is to be said of it."""
        if isinstance(node, s.Number):
            return {"type": self._in_order(None, node, node, at)} | _bits(node)
        if isinstance(node, s.Either):
            return {"type": self._in_order(self.said.text(node.condition, at), node.then, node.otherwise, at)}
        if isinstance(node, s.Code):
            number = self.typed(node.number, at)
            if isinstance(number["type"], dict):
                raise UnsayableError("a list of codes that can be one of several numbers has no enum")
            known = {"valid": {"in-enum": True}} if node.table.unknown is None else {}
            return number | {"enum": self.enum(node.table)} | known
        if isinstance(node, s.Ref):
            return {"type": self.ids[node.name]}
        if isinstance(node, s.Text):
            return {"type": self._text(node, at)}
        if isinstance(node, s.Switch):
            path, part, _ = self.said.find(node.on, at)
            cases = {}
            for case in node.cases:
                key = self.constant(part.node.table, case.code) if isinstance(part.node, s.Code) else str(case.code)
                cases[key] = self._case(case, at)
            return {"type": {"switch-on": path, "cases": cases}}
        return {"type": self._wrapped(node, at, "value")}

    def _case(self, case: s.SwitchCase, at: At) -> str:
        """Returns the type of a case, which has to be a name alone."""
        made = self.typed(case.node, at)
        if isinstance(case.node, (s.Number, s.Ref, s.Text)) and isinstance(made["type"], str):
            return made["type"]
        return self._wrapped(case.node, at, case.name)

    # Numbers

    def kind(self, number: s.Number) -> str:
        """Returns a number's type, with its byte order where that is not the one of the type that it stands in."""
        order = {"little": "le" if self.is_big else "", "big": "be"}.get(number.order, "") if number.size > 1 else ""
        return f"{'u' if number.kind in HALVES else LETTERS[number.kind[0]]}{number.size}{order}"

    def _in_order(self, condition: str | None, then: s.Number, otherwise: s.Number, at: At) -> str | Attr:
        """Returns the type of a number that is one of two where there is a condition.

        The type of the whole file has a fixed byte order, so that the file's can be found out. Its own numbers say theirs.
        """
        if self.is_big and at == At(self.root) and then.order == otherwise.order == "file":
            on = f"({self.is_big} ? 1 : 0)" + (f" + ({condition} ? 0 : 2)" if condition else "")
            numbers = [s.Number(one.kind, order) for one in (then, otherwise) for order in ("little", "big")]
            return {
                "switch-on": on,
                "cases": {str(i): self.kind(one) for i, one in enumerate(numbers[: 4 if condition else 2])},
            }
        if condition is None:
            return self.kind(then)
        return {"switch-on": condition, "cases": {"true": self.kind(then), "false": self.kind(otherwise)}}

    def _numbers(self, node: s.Numbers, at: At) -> Attr:
        count, made = self.count(node, at), self.typed(node.number, at)
        doc = [f"{node.number.kind}[{', '.join(map(str, node.dims))}]", "in C order."] if len(node.dims) > 1 else []
        doc = [", ".join(doc), *filter(None, [made.pop("doc", "")])]
        made |= {"doc": "\n".join(filter(None, doc))} if any(doc) else {}
        if count == "1":
            return made
        if node.number.kind == "u8":
            return {key: made[key] for key in made if key == "doc"} | {"size": whole(count)}
        return made | times(count)

    def count(self, node: s.Numbers | s.BlockArray, at: At) -> str:
        """Returns how many numbers or blocks a payload's field has. Raises UnsayableError where nothing says so."""
        if isinstance(node, s.BlockArray):
            return f"{at.params[OUT]} * ({at.params[IN]} / {node.weights})"
        dims: list[str] = []
        for dim in node.dims:
            spread = str(dim) == DIMS and DIMS not in self.said.ids[at.struct]
            dims += [at.params[OUT], at.params[IN]] if spread else [self.said.text(dim, at)]
        fixed = math.prod(int(dim) for dim in dims if dim.isdigit())
        varying = [dim if re.fullmatch(r"[\w.]+", dim) else f"({dim})" for dim in dims if not dim.isdigit()]
        return " * ".join([*varying, *([str(fixed)] if fixed != 1 or not varying else [])])

    # Enums

    def enum(self, table: TypeTable[Any]) -> str:
        """Returns the enum of a table of types."""
        if id(table) not in self._enum_ids:
            name = self._enum_ids[id(table)] = self.names.new(s.table_name(table), "enum")
            names, entries = KaitaiNames("name", "value"), sorted(table, key=lambda entry: int(entry.code))
            self.enums[name] = {
                entry.code: {"id": names.new(entry.name.lower(), "type"), "-orig-id": entry.name} for entry in entries
            }
        return self._enum_ids[id(table)]

    def constant(self, table: TypeTable[Any], code: int) -> str:
        """Returns a type of a table as expressions have it."""
        name = self.enum(table)
        return f"{name}::{self.enums[name][code]['id']}"

    def byte_orders(self) -> str:
        """Returns the enum of the byte orders that files can have."""
        if "order" not in self._own_ids:
            self._own_ids["order"] = self.names.new("byte order", "enum")
            self.enums[self._own_ids["order"]] = dict(enumerate(self.schema.byte_orders))
        return self._own_ids["order"]

    # Types of our own

    def _add(self, key: Any, name: str, spec: Attr) -> str:
        self._own_ids[key] = self.names.new(name, "type")
        self.own[self._own_ids[key]] = spec
        return self._own_ids[key]

    def _key(self, node: s.Node, at: At) -> tuple[Any, ...]:
        """Returns what a type of our own depends on: a path that begins where it is used makes it the user's alone."""
        return (node, *((at.struct, at.depth) if any(not ref.of_root for ref in references(node)) else ()))

    def _text(self, node: s.Text, at: At) -> str:
        key = self._key(node, at)
        if key not in self._own_ids:
            doc = "Text after its length in bytes, as it is stored; `text` decodes it, which fails where it is not UTF-8."
            seq = [
                {"id": "len", "doc": "Number of bytes.", **self.typed(node.length, at.inside())},
                {"id": "bytes", "size": "len"},
            ]
            decoded = {"text": {"value": f'bytes.to_s("{ENCODING}")'}}
            self._add(key, "text", {"doc": doc, "seq": seq, "instances": decoded})
        return self._own_ids[key]

    def _wrapped(self, node: s.Node, at: At, name: str) -> str:
        key = self._key(node, at)
        if key not in self._own_ids:
            self._add(key, f"{at.struct} {name}", {"seq": self.attrs("value", node, at.inside())})
        return self._own_ids[key]

    def _lines(self) -> str:
        if s.Lines not in self._own_ids:
            text = {"type": "str", "encoding": ENCODING}
            key = {"id": "key", **text, "terminator": ord("="), "valid": {"expr": "_.length > 0"}}
            value = {"id": "value", **text, "terminator": ord("\n"), "eos-error": False}
            line = self._add("line", "line", {"doc": "key=value, up to a newline or the end.", "seq": [key, value]})
            self._add(s.Lines, "lines", {"seq": [{"id": "lines", "type": line, "repeat": "eos"}]})
        return self._own_ids[s.Lines]

    def _payloads(self) -> str:
        if s.Payloads not in self._own_ids:
            doc = "The payloads, from `start` to the end of the file; those of single tensors are instances of their rows."
            raw = {"doc": "All bytes.", "io": "_root._io", "pos": "start", "size-eos": True}
            spec = {"doc": doc, "params": [{"id": "start", "type": "u8"}], "instances": {"bytes": raw}}
            self._add(s.Payloads, "payloads", spec)
        return self._own_ids[s.Payloads]

    def number(self) -> str:
        """Returns the type of a number that takes no bytes: `value` is given to it."""
        if "number" not in self._own_ids:
            doc = "A number that takes no bytes: it follows from others."
            self._add("number", "derived number", {"doc": doc, "params": [{"id": "value", "type": "u8"}]})
        return self._own_ids["number"]

    def _padding(self, node: s.Padding, at: At) -> str:
        to = self.said.term(node.to, at)
        size = f"({to} - _io.pos % {to}) % {to}"
        if node.may_lack is None:
            return size
        left = "_io.size - _io.pos"
        return f"({self.said.text(node.may_lack, at)}) and {size} > {left} ? {left} : {size}"


def times(count: str) -> Attr:
    """Returns that an attribute comes so many times."""
    return {"repeat": "expr", "repeat-expr": whole(count)}


def whole(expression: str) -> str | int:
    """Returns an expression, as an integer where it is one."""
    return int(expression) if expression.isdigit() else expression


def _bits(number: s.Number) -> Attr:
    return {"doc": f"The bits of {'a bfloat16' if number.kind == 'bf16' else 'a float16'}."} if number.kind in HALVES else {}


def _count_of_all(node: s.Switch) -> Expression | None:
    """Returns the count of the lists that all cases are, where it is one and the same."""
    counts = {case.node.count if isinstance(case.node, s.List) else None for case in node.cases}
    return counts.pop() if len(counts) == 1 else None
