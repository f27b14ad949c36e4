"""A schema as a pattern for the hex editor ImHex.

The regions of a file are global variables, placed one after another, so that every struct can refer
to them by name. Each payload is placed at the offset in its row. Only documented constructs of the
pattern language are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Constant, Expression, Length, Operation, Reference, Reversed, ValueOfKey
from glft_schema.codec.rules import Check
from glft_schema.describe.c_language import SIGNS
from glft_schema.describe.identifiers import Identifiers, count_name, identifier, length_name
from glft_schema.describe.sentences import one_line_of, origin, rule_text, rules_of_no_field
from glft_schema.describe.traversal import by_code, byte_order_number, field_of, in_order, rows_of

# fmt: off
KEYWORDS = """
    if else while for match return break continue struct enum union fn bitfield unsigned signed le be parent namespace using
    this in out ref null const _ try catch import as is from true false nan inf addressof sizeof typenameof
    padding auto any u8 u16 u24 u32 u48 u64 u96 u128 s8 s16 s24 s32 s48 s64 s96 s128 float double bool char char16 str
    std type hex builtin
"""  # the last line: namespaces of its libraries
# fmt: on
RESERVED = frozenset(KEYWORDS.split())
RESERVED_FIELDS = RESERVED - {"type", "hex", "std", "builtin"}  # a namespace does not hide a field
NUMBERS = {f"u{bits}": f"u{bits}" for bits in (8, 16, 32, 64)} | {f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}
NUMBERS |= {"f16": "type::float16", "bf16": "u16", "f32": "float", "f64": "double"}
PARAMETERS = {"out": "n_out", "in": "n_in", "dims": "n_weights"}  # of a payload
LIMIT = 1 << 24  # patterns, array elements, loop steps: vocabularies have hundreds of thousands of strings


def as_imhex(schema: s.Schema) -> str:
    """Returns the text of the pattern.

    Raises:
        NotImplementedError: if the pattern language cannot express a field.
    """
    return _Pattern(schema).text()


class _Pattern:
    """Writes one pattern.

    Attributes:
        names: identifiers of structs, enums, functions and global variables.
        structs: identifiers of the schema's structs, by name.
        enums: identifiers of enums, by table and number.
        entries: identifiers of codes, by enum and code.
        wrappers: identifiers of structs for nodes with several members, such as texts in a list.
        depths: the least number of structs around each struct.
    """

    def __init__(self, schema: s.Schema) -> None:
        self.schema = schema
        self.lines: list[str] = []
        self.names = Identifiers(RESERVED)
        self.root = schema.structs.get(s.FILE) or s.StructOf(s.FILE, (), (), (), None)
        self.regions = {part.name: self.names.new(member_name(part.name)) for part in self.root.fields}
        self.structs = {name: self.names.new(f"{name}_t") for name in schema.structs}
        self.enums: dict[tuple[str, str], str] = {}
        self.entries: dict[tuple[str, int], str] = {}
        self.wrappers: dict[s.Node, str] = {}
        self.padding_to = self.names.new("padding_to")
        self.depths = {s.FILE: 0}
        self.find_depths(self.root)

    def find_depths(self, struct: s.StructOf) -> None:
        for part in struct.fields:
            for inner in s.refs(part.node):
                if inner not in self.depths:
                    self.depths[inner] = self.depths[struct.name] + 1
                    self.find_depths(self.schema.structs[inner])

    def text(self) -> str:
        self.opening()
        for struct in self.schema.structs.values():
            for part in struct.fields:
                if isinstance(part.node, s.Code):
                    self.enum(part.node)
        ordered, recursive = in_order(self.schema)
        for name in recursive:
            self.put(f"using {self.structs[name]};", "")
        for name in ordered:
            if name != s.FILE:
                self.struct(self.schema.structs[name])
        if self.schema.format:
            self.file(self.root)
        else:
            self.type_alone(self.schema.types[0])
        return "\n".join(self.lines) + "\n"

    def put(self, *lines: str) -> None:
        self.lines.extend(lines)

    def opening(self) -> None:
        self.put(*map(comment, origin(self.schema, "imhex", "hexpat")))
        self.put(f"#pragma description {one_line_of(self.schema.title)}")
        if self.schema.format:
            magic = self.schema.format.magics[0]
            self.put(f"#pragma magic [ {' '.join(f'{byte:02X}' for byte in magic)} ] @ 0x00")
        self.put("#pragma endian little")
        self.put(*(f"#pragma {what}_limit 0x{LIMIT:X}" for what in ("array", "pattern", "loop")), "")
        self.put("#include <std/core.pat>", "#include <std/mem.pat>", "#include <type/float16.pat>", "")

    def enum(self, code: s.Code) -> None:
        if not isinstance(code.number, s.Number):
            raise NotImplementedError(f"a code is a number, not {code.number}")
        key = s.table_name(code.table), code.number.kind
        if key in self.enums:
            return
        self.enums[key] = name = self.names.new(key[0])
        names = Identifiers(RESERVED)
        self.put(f"enum {name} : {NUMBERS[code.number.kind]} {{")
        for type_ in by_code(code.table):
            entry = names.new(type_.name)
            self.entries[name, type_.code] = f"{name}::{entry}"
            self.put(f"    {entry} = {type_.code},")
        self.put("};", "")

    def enum_of(self, code: s.Code) -> str:
        assert isinstance(code.number, s.Number)
        return self.enums[s.table_name(code.table), code.number.kind]

    def case(self, on: s.Node | None, code: int) -> str:
        """Returns a code in a match: its name if the matched number has an enum with it."""
        name = self.entries.get((self.enum_of(on), code)) if isinstance(on, s.Code) else None
        return name or str(code)

    # Structs

    def struct(self, struct: s.StructOf) -> None:
        lines: list[str] = []  # before the struct is put: wrappers of its members precede it
        for part in struct.fields:
            lines += [*comments(part.rules), *self.members(part.node, part.name or "unnamed", part.doc, struct)]
        is_payload = any(type_.payload == struct.name for type_ in self.schema.types)
        parameters = f"<{', '.join(f'auto {name}' for name in PARAMETERS.values())}>" if is_payload else ""
        self.put(*comments(rules_of_no_field(struct)), f"struct {self.structs[struct.name]}{parameters} {{", *indented(lines))
        is_block = any(type_.block == struct.name for type_ in self.schema.types)
        self.put(f"}}{' [[static]]' if is_block else ''};", "")  # static: ImHex does not evaluate each element

    def members(self, node: s.Node, name: str, doc: str, struct: s.StructOf, up: int = 0) -> Iterator[str]:
        """Yields the members of a node, whose expressions count from `up` structs above."""
        match node:
            case s.Text():
                yield from self.members(node.length, length_name(name), f"bytes of {name}", struct, up)
                yield member("char", name, member_name(length_name(name)), doc)
            case s.Counted():
                yield from self.members(node.count, count_name(name), f"number of {name}", struct, up)
                yield from self.array(node.item, member_name(count_name(name)), name, doc, struct, up)
            case s.List():
                yield from self.array(node.item, self.expression(node.count, struct, up), name, doc, struct, up)
            case s.Either():
                then, otherwise = (self.members(number, name, doc, struct, up) for number in (node.then, node.otherwise))
                yield from choice(self.expression(node.condition, struct, up), then, otherwise)
            case s.Switch():
                on = field_of(struct, ".".join(getattr(node.on, "names", ())))
                yield f"match ({self.expression(node.on, struct, up)}) {{"
                for case in node.cases:
                    yield f"    ({self.case(on.node if on else None, case.code)}): {{"
                    yield from indented(indented(self.members(case.node, name, doc, struct, up)))
                    yield "    }"
                yield "}"
            case s.ByteOrder():
                yield comment(f"{name}: {doc}")
            case s.Derived():
                yield comment(f"{name}, no bytes: {doc} ({node.value})")
            case _:
                yield member(*self.placed(node, name, struct, up), doc=doc)

    def array(self, item: s.Node, count: str, name: str, doc: str, struct: s.StructOf, up: int) -> Iterator[str]:
        if isinstance(item, s.Either):
            then, otherwise = (self.array(number, count, name, doc, struct, up) for number in (item.then, item.otherwise))
            yield from choice(self.expression(item.condition, struct, up), then, otherwise)
        else:
            yield member(self.element(item, name, struct), name, count, doc)

    def element(self, node: s.Node, name: str, struct: s.StructOf) -> str:
        if isinstance(node, (s.Number, s.Code, s.Ref)):
            return self.placed(node, name, struct)[0]
        return self.wrapper(node, name, struct)

    def placed(self, node: s.Node, name: str, struct: s.StructOf, up: int = 0) -> tuple[str, str, str]:
        """Returns the type, the name and the array length of a node; no length is empty."""
        match node:
            case s.Number():
                order = {"file": "", "little": "le ", "big": "be "}[node.order]
                return order + NUMBERS[node.kind], name, ""
            case s.Code():
                assert isinstance(node.number, s.Number)
                order = self.placed(node.number, name, struct)[0].rpartition(" ")[0]
                return f"{order} {self.enum_of(node)}".strip(), name, ""
            case s.Ref():
                return self.structs[node.name], name, ""
            case s.Bytes() | s.Lines():
                size = self.expression(node.size, struct, up) if node.size else "std::mem::size() - $"
                return "char" if isinstance(node, s.Lines) else "u8", name, size
            case s.Numbers():
                dims = [self.expression(dim, struct) for dim in node.dims]
                return NUMBERS[node.number.kind], name, "" if dims == ["1"] else " * ".join(dims)
            case s.BlockArray():
                return self.structs[node.block], name, f"{PARAMETERS['out']} * ({PARAMETERS['in']} / {node.weights})"
            case s.Padding():
                return "u8", name, f"{self.padding_to}({self.expression(node.to, struct, up)})"
            case s.List():
                return self.element(node.item, name, struct), name, self.expression(node.count, struct, up)
        return self.wrapper(node, name, struct), name, ""

    def wrapper(self, node: s.Node, name: str, struct: s.StructOf) -> str:
        """Returns the name of a struct of this node alone, for use as a single type."""
        if node not in self.wrappers:
            kind = wrapped_name(node)
            self.wrappers[node] = wrapper = self.names.new(f"{kind}_t")
            lines = list(self.members(node, kind, f"of {name}", struct, 1))
            self.put(f"struct {wrapper} {{", *indented(lines), "};", "")
        return self.wrappers[node]

    def expression(self, expression: Expression, struct: s.StructOf, up: int = 0) -> str:
        """Returns an expression of a struct, as written `up` structs further in.

        Raises:
            NotImplementedError: if the pattern language has no such expression.
        """
        if isinstance(expression, Constant):
            return str(expression)
        if isinstance(expression, Reference):
            if not expression.of_root and not expression.up and not up and expression.names[0] in PARAMETERS:
                return PARAMETERS[expression.names[0]]
            path = [*map(member_name, expression.names)]
            is_global = expression.of_root or expression.up >= self.depths.get(struct.name, 1)
            if is_global and (region := field_of(self.root, expression.names[0])) and is_wrapped(region.node):
                path.insert(1, wrapped_name(region.node))
            return ".".join([*([] if is_global else ["parent"] * (expression.up + up)), *path])
        if isinstance(expression, Operation):
            left, right = (self.expression(side, struct, up) for side in (expression.left, expression.right))
            return f"({left} {SIGNS.get(expression.sign, expression.sign)} {right})"
        if isinstance(expression, Length) and isinstance(expression.of, Reference):
            *before, last = expression.of.names
            name = length_name(last) if expression.in_bytes else count_name(last)
            return self.expression(Reference((*before, name), expression.of.up, expression.of.of_root), struct, up)
        raise NotImplementedError(f"no pattern has the expression {expression}")

    # Regions

    def file(self, struct: s.StructOf) -> None:
        if any(isinstance(part.node, s.Padding) for part in struct.fields):
            self.put(
                "// Bytes up to the next multiple from the start of the file, or up to the end of the file",
                f"fn {self.padding_to}(u64 multiple) {{",
                "    u64 missing = (multiple - $ % multiple) % multiple;",
                "    u64 left = std::mem::size() - $;",
                "    if (missing < left) { return missing; }",
                "    return left;",
                "};",
                "",
            )
        self.byte_order()
        offsets = itertools.chain(["0x00"], itertools.repeat("$"))
        for part in struct.fields:
            self.put(*comments(part.rules))
            name = self.regions[part.name]
            if isinstance(part.node, s.Derived):
                self.derived(part, part.node, name, struct)
            elif isinstance(part.node, s.Payloads):
                self.payloads(part, part.node, name, struct)
            else:
                kind, _, count = self.placed(part.node, part.name, struct)
                self.put(member(kind, name, count, part.doc, next(offsets)), "")

    def byte_order(self) -> None:
        """Puts code that sets the byte order, outside of structs, where it would not last."""
        if found := byte_order_number(self.schema, s.FILE):
            offset, number = found
            function, order = self.names.new("set_byte_order"), "std::mem::Endian::Little"
            self.put(
                "// Big-endian if the low half of this number reads as 0 and the whole does not",
                f"fn {function}() {{",
                f"    u64 half = std::mem::read_unsigned({offset}, {number.size // 2}, {order});",
                f"    u64 whole = std::mem::read_unsigned({offset}, {number.size}, {order});",
                "    if (half == 0 && whole != 0) { std::core::set_endian(std::mem::Endian::Big); }",
                "};",
                f"{function}();",
                "",
            )

    def derived(self, part: s.Field, node: s.Derived, name: str, struct: s.StructOf) -> None:
        self.put(comment(f"{part.name}: {part.doc}"))
        if isinstance(lookup := node.value, ValueOfKey):
            _, table, _ = rows_of(struct, ".".join(getattr(lookup.mapping, "names", ())))
            function = f"{self.names.new(f'{name}_or_default')}()"
            rows, count = self.expression(lookup.mapping, struct), self.expression(table.count, struct)
            self.put(
                f"fn {function} {{",
                "    u64 i = 0;",
                f"    while (i < {count}) {{",
                f"        if ({rows}[i].{table.key} == {quoted(lookup.key)}) {{ return {rows}[i].value; }}",
                "        i = i + 1;",
                "    }",
                f"    return {lookup.default};",
                "};",
                f"u64 {name} = {function};",
                "",
            )
        elif node.value is not None:
            self.put(f"u64 {name} = {self.expression(node.value, struct)};", "")

    def payloads(self, part: s.Field, node: s.Payloads, name: str, struct: s.StructOf) -> None:
        table, list_, row = rows_of(struct, node.table)
        fields = {field.name: field.node for field in self.schema.structs[row].fields}
        shape, code = fields["shape"], fields["dtype"]
        assert isinstance(shape, s.Derived)
        assert isinstance(code, s.Code)
        count = member_name(count_name("dims"))
        rows, start = member_name(table.name), self.names.new(f"{name}_start")
        first = f"{rows}[i].{count} - 1" if isinstance(shape.value, Reversed) else "0"
        payload = self.names.new(f"{row}_payload_t")
        weights, first_of = self.names.new("weights_of"), self.names.new("rows_of")
        self.put(
            "// The product of the sizes of row i, and the first of them in torch's order",
            f"fn {weights}(u64 i) {{",
            "    u64 product = 1;",
            "    u64 d = 0;",
            f"    while (d < {rows}[i].{count}) {{",
            f"        product = product * {rows}[i].dims[d];",
            "        d = d + 1;",
            "    }",
            "    return product;",
            "};",
            f"fn {first_of}(u64 i) {{",
            f"    if ({rows}[i].{count} < 2) {{ return 1; }}",
            f"    return {rows}[i].dims[{first}];",
            "};",
            "",
            f"u64 {start} = $;",
            f"struct {payload} {{",
            "    u64 i = std::core::array_index();",
            f"    u64 n = {weights}(i);",
            f"    u64 rows = {first_of}(i);",
            f"    u64 at = {start} + {rows}[i].offset;",
            "    if (n > 0) {",
            f"        match ({rows}[i].dtype) {{",
        )
        for type_ in self.schema.types:
            case, kind = self.case(code, type_.type.code), self.structs[type_.payload]
            self.put(f"            ({case}): {kind}<rows, n / rows, n> payload @ at")
            self.put(f"                [[name({rows}[i].name), comment({quoted(type_.type.name)})]];")
        self.put("        }", "    }", "};")
        self.put(member(payload, name, self.expression(list_.count, struct), part.doc, start), "")

    def type_alone(self, type_: s.TypeOf) -> None:
        """Puts a type's blocks over the whole file, or its payload, whose sizes the user enters."""
        if type_.block:
            name, size = self.structs[type_.block], self.schema.structs[type_.block].size
            self.put(f"{name} blocks[std::mem::size() / {size}] @ 0x00;")
        else:
            out, columns, _ = PARAMETERS.values()
            self.put(f"u64 {out} in;", f"u64 {columns} in;")
            self.put(f"{self.structs[type_.payload]}<{out}, {columns}, {out} * {columns}> payload @ 0x00;")


def is_wrapped(node: s.Node) -> bool:
    """Tells whether a region needs a struct because it has several members."""
    return isinstance(node, (s.Text, s.Counted, s.Either, s.Switch, s.ByteOrder))


def wrapped_name(node: s.Node) -> str:
    """Returns the name of the member in a struct of one node."""
    return type(node).__name__.lower()


def member_name(name: str) -> str:
    return identifier(name, RESERVED_FIELDS)


def member(kind: str, name: str, count: str, doc: str, offset: str = "") -> str:
    """Returns a declaration: an array if it has a count, placed if it has an offset."""
    size, place = f"[{count}]" if count else "", f" @ {offset}" if offset else ""
    return f"{kind} {name if offset else member_name(name)}{size}{place} [[comment({quoted(doc)})]];"


def choice(condition: str, then: Iterator[str], otherwise: Iterator[str]) -> Iterator[str]:
    yield f"if ({condition[1:-1] if condition.startswith('(') else condition}) {{"
    yield from indented(then)
    yield "} else {"
    yield from indented(otherwise)
    yield "}"


def indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def comment(text: str) -> str:
    return f"// {one_line_of(text)}"


def comments(rules: Iterable[Check]) -> Iterator[str]:
    return (comment(rule_text(rule)) for rule in rules)


def quoted(text: str) -> str:
    safe = one_line_of(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{safe}"'
