"""Nodes of a schema as attributes and types in Kaitai Struct."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.context import BIG
from glft_schema.codec.expressions import Constant, Expression, Reference
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.kaitai.expressions import ExpressionWriter, Location, references
from glft_schema.describe.kaitai.names import KaitaiNames
from glft_schema.describe.sentences import HALVES
from glft_schema.errors import UnsupportedError

Attr = dict[Any, Any]
LETTERS = {"u": "u", "i": "s", "f": "f"}
OUT, IN, DIMS = "out", "in", "dims"  # the parameters of a payload
ENCODING = "UTF-8"
JSON_TEXT = "JSON text. Its entries are not described here."


class Types:
    """The types of a ``.ksy`` file with the identifier `id` and the outermost struct `root`."""

    def __init__(self, schema: s.Schema, root: str, id: str) -> None:
        self.schema = schema
        self.root = root
        self.expressions = ExpressionWriter(schema, root)
        self.id = id
        self.names = KaitaiNames(id)  # of types
        written = schema.structs if schema.format else self._below(root)
        written = {name for name in written if not schema.structs[name].is_json}
        self.ids = {name: self.names.new(name, "type") for name in schema.structs if name in written and name != root}
        self.own: dict[str, Attr] = {}  # generated types that are not structs of the schema, by identifier
        self.enums: dict[str, Attr] = {}  # by identifier
        # The root's instance for the byte order; None if the order is fixed.
        self.is_big = self.expressions.names[root].new("is big endian") if len(schema.byte_orders) > 1 else None
        self.endian = "be" if schema.byte_orders == (BIG,) else "le"  # if the order is fixed
        self._own_ids: dict[Any, str] = {}

    def _below(self, struct: str) -> set[str]:
        below = {ref for part in self.schema.structs[struct].fields for ref in s.refs(part.node)} - {struct}
        return below.union(*map(self._below, below))

    def attrs(self, id: str, node: s.Node, at: Location) -> list[Attr]:
        """Returns the attributes of a field. The last one is the field itself."""
        attr: Attr = {"id": id} if id else {}
        if isinstance(node, s.DerivedNode):
            return []
        if isinstance(node, s.SwitchNode) and node.is_if:
            condition, attrs = self.expressions.condition(node.on, at), self.attrs(id, node.cases[0].node, at)
            return [one | {"if": every(condition, *filter(None, [one.get("if")]))} for one in attrs]
        if not isinstance(node, s.CountedNode):
            return [attr | self._keys(node, at)]
        count = self.expressions.names[at.struct].new(f"n {id}")
        number = {"id": count, "doc": f"Number of {id}.", **self.type_of(node.count, at)}
        return [number, attr | self.type_of(node.item, at) | times(count)]

    def _keys(self, node: s.Node, at: Location) -> Attr:
        """Returns the keys of a field's attribute, except its id."""
        text = self.expressions.text
        match node:
            case s.ListNode():
                return self.type_of(node.item, at) | times(text(node.count, at))
            case s.SwitchNode() if common := _common_count(node):
                items = [replace(case, node=case.node.item) for case in node.cases if isinstance(case.node, s.ListNode)]
                return self.type_of(replace(node, cases=tuple(items)), at) | times(text(common, at))
            case s.ArrayNode():
                return self._array(node, at)
            case s.BytesNode():
                return {"size": text(node.size, at)} if node.size else {"size-eos": True}
            case s.LinesNode():
                return {"size": text(node.size, at), "type": self._lines()}
            case s.JsonTableNode():
                return {"doc": JSON_TEXT, "size": text(node.size, at), "type": "str", "encoding": ENCODING}
            case s.PaddingNode():
                return {"size": self._padding(node, at)}
            case s.PayloadsNode():
                return {"type": f"{self._payloads()}(_io.pos)"}
        return self.type_of(node, at)

    def type_of(self, node: s.Node, at: Location) -> Attr:
        """Returns the type, and other keys, of a node that is not repeated."""
        match node:
            case s.NumberNode():
                doc = {"doc": f"T{HALVES[node.kind][1:]}."} if node.kind in HALVES else {}  # "The bits ..."
                return {"type": self._in_order([node], at)} | doc
            case s.EitherNode():
                return {"type": self._in_order([node.then, node.otherwise], at, self.expressions.condition(node.condition, at))}
            case s.CodeNode():
                number = self.type_of(node.number, at)
                if isinstance(number["type"], dict):
                    raise UnsupportedError("a type code whose integer width varies cannot have an enum")
                valid = {"valid": {"in-enum": True}} if node.table.unknown is None else {}
                return number | {"enum": self.enum(node.table)} | valid
            case s.RefNode():
                return {"type": self.ids[node.name]}
            case s.TextNode():
                return {"type": self._text(node, at)}
            case s.SwitchNode():
                on = self.expressions.text(node.on, at)
                code = self.expressions.find(node.on, at)[1].node if isinstance(node.on, Reference) else None
                table = code.table if isinstance(code, s.CodeNode) else None
                constants = [self.constant(table, case.code) if table else str(Constant(case.code)) for case in node.cases]
                cases = dict(zip(constants, (self._case(case, at) for case in node.cases), strict=True))
                other = {"_": self._case(s.SwitchCase("other", 0, node.default), at)} if node.default else {}
                return {"type": {"switch-on": on, "cases": cases | other}}
        return {"type": self._wrap(node, at, "value")}

    def _case(self, case: s.SwitchCase, at: Location) -> str:
        attr = self.type_of(case.node, at)
        if isinstance(case.node, (s.NumberNode, s.RefNode, s.TextNode)) and isinstance(attr["type"], str):
            return attr["type"]
        return self._wrap(case.node, at, case.name)

    # Numbers

    def kind(self, number: s.NumberNode) -> str:
        """Returns a number's type, with its byte order if the containing type has another one."""
        little = "le" if self.is_big or self.endian == "be" else ""
        order = {"little": little, "big": "be"}.get(number.order, "") if number.size > 1 else ""
        is_known = number.kind in s.KINDS and number.kind not in HALVES
        return f"{LETTERS[number.kind[0]] if is_known else 'u'}{number.size}{order}"

    def _in_order(self, numbers: list[s.NumberNode], at: Location, condition: str = "") -> str | Attr:
        """Returns the type of a number: the first of `numbers`, or the second unless a condition
        holds.

        The root has a fixed byte order because the file's order is computed there. Numbers of the
        root therefore switch on the order themselves.
        """
        if self.is_big and at == Location(self.root) and all(number.order == "file" for number in numbers):
            on = f"({self.is_big} ? 1 : 0)" + (f" + ({condition} ? 0 : 2)" if condition else "")
            kinds = [self.kind(replace(number, order=order)) for number in numbers for order in ("little", "big")]
            return {"switch-on": on, "cases": {str(i): kind for i, kind in enumerate(kinds)}}
        kinds = [self.kind(number) for number in numbers]
        return {"switch-on": condition, "cases": dict(zip(("true", "false"), kinds, strict=True))} if condition else kinds[0]

    def _array(self, node: s.ArrayNode, at: Location) -> Attr:
        count, attr = self.count(node, at), self.type_of(node.item, at)
        if isinstance(node.item, s.NumberNode):
            dims = f"{node.item.kind}[{', '.join(map(str, node.dims))}], in C order." if len(node.dims) > 1 else ""
            doc = "\n".join(filter(None, [dims, attr.get("doc", "")]))
            attr |= {"doc": doc} if doc else {}
            if count == "1":
                return attr
            if node.item.kind == "u8":
                return {"doc": doc, "size": count} if doc else {"size": count}
        return attr | times(count)

    def count(self, node: s.ArrayNode, at: Location) -> str:
        """Returns the length of a payload's field. Raises UnsupportedError if it is unknown."""
        dims: list[str] = []
        for dim in node.dims:
            is_shape = str(dim) == DIMS and DIMS not in self.expressions.ids[at.struct]
            dims += [at.params[OUT], at.params[IN]] if is_shape else [self.expressions.text(dim, at)]
        fixed = math.prod(int(dim) for dim in dims if dim.isdigit())
        varying = [dim if re.fullmatch(r"[\w.]+", dim) else f"({dim})" for dim in dims if not dim.isdigit()]
        return " * ".join([*varying, *([str(fixed)] if fixed != 1 or not varying else [])])

    # Enums

    def enum(self, table: TypeTable[Any]) -> str:
        def entries() -> Attr:
            names = KaitaiNames("name", "value")
            return {
                code: {"id": names.new(entry.name.lower(), "type"), "-orig-id": entry.name} for code, entry in table.by_code()
            }

        return self._once(id(table), s.table_name(table), entries, "enum")

    def constant(self, table: TypeTable[Any], code: int | str) -> str:
        name = self.enum(table)
        return f"{name}::{self.enums[name][code]['id']}"

    def byte_orders(self) -> str:
        return self._once("order", "byte order", lambda: dict(enumerate(self.schema.byte_orders)), "enum")

    # Generated types

    def _once(self, key: Any, name: str, spec: Callable[[], Attr], kind: str = "type") -> str:
        """Returns the identifier of the generated type or enum `key`, which the first call adds."""
        if key not in self._own_ids:
            added = spec()
            self._own_ids[key] = self.names.new(name, kind)
            (self.own if kind == "type" else self.enums)[self._own_ids[key]] = added
        return self._own_ids[key]

    def _key(self, node: s.Node, at: Location) -> tuple[Any, ...]:
        """Returns the key of a generated type, which is not shared if it has relative paths."""
        return (node, *((at.struct, at.depth) if any(not ref.of_root for ref in references(node)) else ()))

    def _text(self, node: s.TextNode, at: Location) -> str:
        def spec() -> Attr:
            doc = "Text after its length in bytes, as stored. `text` decodes the bytes, and fails if they are not UTF-8."
            length = {"id": "len", "doc": "Number of bytes.", **self.type_of(node.length, at.inside())}
            decoded = {"text": {"value": f'bytes.to_s("{ENCODING}")'}}
            return {"doc": doc, "seq": [length, {"id": "bytes", "size": "len"}], "instances": decoded}

        return self._once(self._key(node, at), "text", spec)

    def _wrap(self, node: s.Node, at: Location, name: str) -> str:
        key = self._key(node, at)
        return self._once(key, f"{at.struct} {name}", lambda: {"seq": self.attrs("value", node, at.inside())})

    def _lines(self) -> str:
        text = {"type": "str", "encoding": ENCODING}
        key = {"id": "key", **text, "terminator": ord("="), "valid": {"expr": "_.length > 0"}}
        value = {"id": "value", **text, "terminator": ord("\n"), "eos-error": False}
        doc = "key=value, up to a newline or the end."
        line = self._once("line", "line", lambda: {"doc": doc, "seq": [key, value]})
        return self._once(s.LinesNode, "lines", lambda: {"seq": [{"id": "lines", "type": line, "repeat": "eos"}]})

    def _payloads(self) -> str:
        doc = "The payloads, from `start` to the end of the file. The payload of each tensor is an instance of its row."
        raw = {"doc": "All bytes.", "io": "_root._io", "pos": "start", "size-eos": True}
        spec = {"doc": doc, "params": [{"id": "start", "type": "u8"}], "instances": {"bytes": raw}}
        return self._once(s.PayloadsNode, "payloads", lambda: spec)

    def number(self) -> str:
        """Returns the type of a computed number, which takes no bytes: `value` is its parameter."""
        spec = {"doc": "A computed number, which takes no bytes.", "params": [{"id": "value", "type": "u8"}]}
        return self._once("number", "derived number", lambda: spec)

    def _padding(self, node: s.PaddingNode, at: Location) -> str:
        to = self.expressions.term(node.to, at)
        size = f"({to} - _io.pos % {to}) % {to}"
        if node.may_lack is None:
            return size
        left = "_io.size - _io.pos"
        return f"({self.expressions.condition(node.may_lack, at)}) and {size} > {left} ? {left} : {size}"


def times(count: str) -> Attr:
    """Returns the keys of an attribute that is repeated `count` times.

    The compiler writes ``i < count`` without parentheses, so a count with operators that bind less
    than ``<`` becomes an operand of a sum.
    """
    return {"repeat": "expr", "repeat-expr": f"({count}) + 0" if re.search("[&|^?]", count) else count}


def every(*conditions: str) -> str:
    """Returns the condition that all `conditions` hold."""
    return conditions[0] if len(conditions) == 1 else " and ".join(f"({text})" for text in conditions)


def _common_count(node: s.SwitchNode) -> Expression | None:
    """Returns the count of the lists in all cases if it is the same, else None."""
    counts = {case.node.count if isinstance(case.node, s.ListNode) else None for case in node.cases}
    return counts.pop() if len(counts) == 1 and not node.default else None
