"""A schema as a pattern of the hex editor ImHex, which draws a file's fields into its bytes.

The regions of a file are placed one after another as global variables, so that every struct can refer to them by name; each
payload is placed where its row says. Only constructs of the pattern language that its documentation has are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Constant, Expression, Length, Operation, Reference, Reversed, ValueOfKey
from glft_schema.describe.identifiers import Identifiers, count_name, identifier, in_order, length_name, one_line_of, rule_text

# fmt: off
KEYWORDS = """
    if else while for match return break continue struct enum union fn bitfield unsigned signed le be parent namespace using
    this in out ref null const _ try catch import as is from true false nan inf addressof sizeof typenameof
    padding auto any u8 u16 u24 u32 u48 u64 u96 u128 s8 s16 s24 s32 s48 s64 s96 s128 float double bool char char16 str
    std type hex builtin
"""  # the last line: namespaces of its libraries
# fmt: on
RESERVED = frozenset(KEYWORDS.split())
HIDDEN = RESERVED - {"type", "hex", "std", "builtin"}  # what no field can be called; no namespace hides one
NUMBERS = {f"u{bits}": f"u{bits}" for bits in (8, 16, 32, 64)} | {f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}
NUMBERS |= {"f16": "type::float16", "bf16": "u16", "f32": "float", "f64": "double"}
SIGNS = {"//": "/", "&": "&&", "|": "||"}  # those that Python writes otherwise
PARAMETERS = {"out": "n_out", "in": "n_in", "dims": "n_weights"}  # of a payload
LIMIT = 1 << 24  # patterns, elements of an array, steps of a loop: vocabularies have hundreds of thousands of strings


def as_imhex(schema: s.Schema) -> str:
    """Returns the pattern's text."""
    return _Pattern(schema).text()


class _Pattern:
    """Writes one pattern.

    Attributes:
        names: hands out the names of structs, enums, functions and global variables.
        structs: what the structs are called.
        enums: what the enums are called, by table and number.
        entries: what the codes are called, by enum and code.
        items: what the structs are called that stand for nodes that are more than one member, such as texts in a list.
        depths: how many structs each struct stands in, at least.
    """

    def __init__(self, schema: s.Schema) -> None:
        self.schema = schema
        self.lines: list[str] = []
        self.names = Identifiers(RESERVED)
        self.regions = {part.name: self.names.of(identifier(part.name, HIDDEN)) for part in self.root.fields}
        self.structs = {name: self.names.of(f"{name}_t") for name in schema.structs}
        self.enums: dict[tuple[str, str], str] = {}
        self.entries: dict[tuple[str, int], str] = {}
        self.items: dict[s.Node, str] = {}
        self.padding_to = self.names.of("padding_to")
        self.depths = {s.FILE: 0}
        self.find_depths(s.FILE)

    @property
    def root(self) -> s.StructOf:
        """The whole file; without fields where there is no format."""
        return self.schema.structs.get(s.FILE) or s.StructOf(s.FILE, (), (), (), None)

    def find_depths(self, name: str) -> None:
        for part in (self.schema.structs.get(name) or self.root).fields:
            for inner in s.refs(part.node):
                if inner not in self.depths:
                    self.depths[inner] = self.depths[name] + 1
                    self.find_depths(inner)

    def text(self) -> str:
        self.opening()
        ordered, early = in_order(self.schema)
        for struct in self.schema.structs.values():
            for part in struct.fields:
                if isinstance(part.node, s.Code):
                    self.enum(part.node)
        for name in early:
            self.put(f"using {self.structs[name]};", "")
        payloads = {type_.payload for type_ in self.schema.types}
        for name in ordered:
            if name != s.FILE:
                self.struct(self.schema.structs[name], is_payload=name in payloads)
        if self.schema.format:
            self.file(self.root)
        else:
            self.type_alone(self.schema.types[0])
        return "\n".join(self.lines) + "\n"

    def put(self, *lines: str) -> None:
        self.lines.extend(lines)

    def opening(self) -> None:
        title = one_line_of(self.schema.title)
        self.put(f"// {title}, as its declaration in glft_schema has it. Made by")
        self.put(f"//     glft schema {title.lower()} --as imhex > {title.lower()}.hexpat")
        self.put(f"#pragma description {title}")
        if self.schema.format:
            magic = self.schema.format.magics[0]
            self.put(f"#pragma magic [ {' '.join(f'{byte:02X}' for byte in magic)} ] @ 0x00")
        self.put("#pragma endian little")
        self.put(*(f"#pragma {what}_limit 0x{LIMIT:X}" for what in ("array", "pattern", "loop")), "")
        self.put("#include <std/core.pat>", "#include <std/mem.pat>", "#include <type/float16.pat>", "")

    def enum(self, code: s.Code) -> None:
        """Puts the enum of a table's codes, in the width that they have here."""
        if not isinstance(code.number, s.Number):
            raise NotImplementedError(f"a code is a number, not {code.number}")
        key = s.table_name(code.table), code.number.kind
        if key in self.enums:
            return
        self.enums[key] = name = self.names.of(key[0])
        names = Identifiers(RESERVED)
        self.put(f"enum {name} : {NUMBERS[code.number.kind]} {{")
        for type_ in sorted(code.table, key=lambda type_: type_.code):
            entry = names.of(type_.name)
            self.entries[name, type_.code] = f"{name}::{entry}"
            self.put(f"    {entry} = {type_.code},")
        self.put("};", "")

    def enum_of(self, code: s.Code) -> str:
        """Returns what the enum of a code is called."""
        assert isinstance(code.number, s.Number)
        return self.enums[s.table_name(code.table), code.number.kind]

    def case(self, on: s.Node | None, code: int) -> str:
        """Returns how a code is written in a match: by its name, where the number that is matched has an enum with it."""
        name = self.entries.get((self.enum_of(on), code)) if isinstance(on, s.Code) else None
        return name or str(code)

    # Structs

    def struct(self, struct: s.StructOf, is_payload: bool) -> None:
        lines = [line for part in struct.fields for line in self.field(part, struct)]
        named = {rule.id for part in struct.fields for rule in part.rules}
        notes = [f"// {one_line_of(rule_text(rule))}" for rule in struct.rules if rule.id not in named]
        parameters = f"<{', '.join(f'auto {name}' for name in PARAMETERS.values())}>" if is_payload else ""
        is_static = struct.name in {type_.block for type_ in self.schema.types}  # arrays of it are not evaluated one by one
        self.put(*notes, f"struct {self.structs[struct.name]}{parameters} {{", *(f"    {line}" for line in lines))
        self.put(f"}}{' [[static]]' if is_static else ''};", "")

    def field(self, part: s.Field, struct: s.StructOf) -> Iterator[str]:
        """Yields the lines of a field: its rules, and the members that it is."""
        yield from (f"// {one_line_of(rule_text(rule))}" for rule in part.rules)
        yield from self.members(part.node, part.name or "unnamed", part.doc, struct)

    def members(self, node: s.Node, name: str, doc: str, struct: s.StructOf, up: int = 0) -> Iterator[str]:
        """Yields the members that a node is. Expressions in it count from the struct `up` levels above."""
        called, attribute = identifier(name, HIDDEN), f"[[comment({quoted(doc)})]]"
        if isinstance(node, s.Text):
            yield from self.members(node.length, length_name(name), f"bytes of {name}", struct, up)
            yield f"char {called}[{identifier(length_name(name), HIDDEN)}] {attribute};"
        elif isinstance(node, s.Counted):
            yield from self.members(node.count, count_name(name), f"number of {name}", struct, up)
            yield from self.many(node.item, identifier(count_name(name), HIDDEN), name, doc, struct, up)
        elif isinstance(node, s.List):
            yield from self.many(node.item, self.expression(node.count, struct, up), name, doc, struct, up)
        elif isinstance(node, s.Either):
            yield f"if ({bare(self.expression(node.condition, struct, up))}) {{"
            yield from (f"    {line}" for line in self.members(node.then, name, doc, struct, up))
            yield "} else {"
            yield from (f"    {line}" for line in self.members(node.otherwise, name, doc, struct, up))
            yield "}"
        elif isinstance(node, s.Switch):
            on = next((part.node for part in struct.fields if (part.name,) == getattr(node.on, "names", ())), None)
            yield f"match ({self.expression(node.on, struct, up)}) {{"
            for case in node.cases:
                yield f"    ({self.case(on, case.code)}): {{"
                yield from (f"        {line}" for line in self.members(case.node, name, doc, struct, up))
                yield "    }"
            yield "}"
        elif isinstance(node, s.ByteOrder):
            yield f"// {one_line_of(f'{name}: {doc}')}"
        elif isinstance(node, s.Derived):
            yield f"// {one_line_of(f'{name}, no bytes: {doc} ({node.value})')}"
        else:
            kind, count = self.placed(node, name, struct, up)
            yield f"{kind} {called}{f'[{count}]' if count else ''} {attribute};"

    def many(self, item: s.Node, count: str, name: str, doc: str, struct: s.StructOf, up: int) -> Iterator[str]:
        """Yields the member that is `count` of one kind."""
        if isinstance(item, s.Either):
            yield f"if ({bare(self.expression(item.condition, struct, up))}) {{"
            yield from (f"    {line}" for line in self.many(item.then, count, name, doc, struct, up))
            yield "} else {"
            yield from (f"    {line}" for line in self.many(item.otherwise, count, name, doc, struct, up))
            yield "}"
        else:
            yield f"{self.element(item, name, struct)} {identifier(name, HIDDEN)}[{count}] [[comment({quoted(doc)})]];"

    def element(self, node: s.Node, name: str, struct: s.StructOf) -> str:
        """Returns the type of a list's elements."""
        if isinstance(node, (s.Number, s.Code, s.Ref)):
            return self.placed(node, name, struct)[0]
        return self.item(node, name, struct)

    def placed(self, node: s.Node, name: str, struct: s.StructOf, up: int = 0) -> tuple[str, str]:
        """Returns the type of a node, and how many of it there are, or nothing where it is one."""
        if isinstance(node, s.Number):
            return ("" if node.order == "file" else "le " if node.order == "little" else "be ") + NUMBERS[node.kind], ""
        if isinstance(node, s.Code):
            assert isinstance(node.number, s.Number)
            order = self.placed(node.number, name, struct)[0].rpartition(" ")[0]
            return f"{order} {self.enum_of(node)}".strip(), ""
        if isinstance(node, s.Ref):
            return self.structs[node.name], ""
        if isinstance(node, (s.Bytes, s.Lines)):
            size = self.expression(node.size, struct, up) if node.size else "std::mem::size() - $"
            return "char" if isinstance(node, s.Lines) else "u8", size
        if isinstance(node, s.Numbers):
            dims = [self.expression(dim, struct) for dim in node.dims]
            return NUMBERS[node.number.kind], "" if dims == ["1"] else " * ".join(dims)
        if isinstance(node, s.BlockArray):
            return self.structs[node.block], f"{PARAMETERS['out']} * ({PARAMETERS['in']} / {node.weights})"
        if isinstance(node, s.Padding):
            return "u8", f"{self.padding_to}({self.expression(node.to, struct, up)})"
        if isinstance(node, s.List):
            return self.element(node.item, name, struct), self.expression(node.count, struct, up)
        return self.item(node, name, struct), ""

    def item(self, node: s.Node, name: str, struct: s.StructOf) -> str:
        """Returns the name of a struct that is this node alone, where one type is needed."""
        if node not in self.items:
            kind = inner_name(node)
            self.items[node] = called = self.names.of(f"{kind}_t")
            lines = list(self.members(node, kind, f"of {name}", struct, 1))
            self.put(f"struct {called} {{", *(f"    {line}" for line in lines), "};", "")
        return self.items[node]

    def expression(self, expression: Expression, struct: s.StructOf, up: int = 0) -> str:
        """Returns an expression of a struct, as it is written `up` structs further in."""
        if isinstance(expression, Constant):
            return str(expression)
        if isinstance(expression, Reference):
            if not expression.of_root and not expression.up and not up and expression.names[0] in PARAMETERS:
                return PARAMETERS[expression.names[0]]
            path = [identifier(name, HIDDEN) for name in expression.names]
            levels = expression.up + up
            is_global = expression.of_root or expression.up >= self.depths.get(struct.name, 1)
            if is_global and (node := self.region(expression.names[0])) and not self.is_member(node):
                path.insert(1, inner_name(node))
            return ".".join([*([] if is_global else ["parent"] * levels), *path])
        if isinstance(expression, Operation):
            left, right = (self.expression(side, struct, up) for side in (expression.left, expression.right))
            sign = expression.sign
            return f"({left} {SIGNS.get(sign, sign)} {right})"
        if isinstance(expression, Length) and isinstance(expression.of, Reference):
            *before, last = expression.of.names
            name = length_name(last) if expression.in_bytes else count_name(last)
            return self.expression(Reference((*before, name), expression.of.up, expression.of.of_root), struct, up)
        raise NotImplementedError(f"no pattern has the expression {expression}")

    def region(self, name: str) -> s.Node | None:
        """Returns what a region of the file is."""
        return next((part.node for part in self.root.fields if part.name == name), None)

    @staticmethod
    def is_member(node: s.Node) -> bool:
        """Tells whether a node is one member of a struct, or no bytes."""
        return not isinstance(node, (s.Text, s.Counted, s.Either, s.Switch, s.ByteOrder))

    # What is placed

    def file(self, struct: s.StructOf) -> None:
        """Puts the regions, one after another, each where the one before it ends."""
        if any(isinstance(part.node, s.Padding) for part in struct.fields):
            self.put(
                "// The bytes from here up to a multiple, counted from the start of the file, or to its end",
                f"fn {self.padding_to}(u64 multiple) {{",
                "    u64 missing = (multiple - $ % multiple) % multiple;",
                "    u64 left = std::mem::size() - $;",
                "    if (missing < left) { return missing; }",
                "    return left;",
                "};",
                "",
            )
        self.byte_order()
        at = itertools.chain(["0x00"], itertools.repeat("$"))
        for part in struct.fields:
            self.put(*(f"// {one_line_of(rule_text(rule))}" for rule in part.rules))
            name = self.regions[part.name]
            if isinstance(part.node, s.Derived):
                self.derived(part, name, struct)
            elif isinstance(part.node, s.Payloads):
                self.payloads(part, name, struct)
            else:
                kind, count = self.placed(part.node, part.name, struct)
                suffix = f"[{count}]" if count else ""
                self.put(f"{kind} {name}{suffix} @ {next(at)} [[comment({quoted(part.doc)})]];", "")

    def byte_order(self) -> None:
        """Puts what finds the byte order of the file, before its first region: what a struct sets holds only within it."""
        for at, number in self.byte_orders(self.root, 0):
            if at is None:
                raise NotImplementedError("the byte order is told by a number whose place is not the same in all files")
            function, order = self.names.of("set_byte_order"), "std::mem::Endian::Little"
            self.put(
                "// Big-endian where the low half of this number reads as 0, and not all of it",
                f"fn {function}() {{",
                f"    u64 half = std::mem::read_unsigned({at}, {number.size // 2}, {order});",
                f"    u64 whole = std::mem::read_unsigned({at}, {number.size}, {order});",
                "    if (half == 0 && whole != 0) { std::core::set_endian(std::mem::Endian::Big); }",
                "};",
                f"{function}();",
                "",
            )

    def byte_orders(self, struct: s.StructOf, start: int | None) -> Iterator[tuple[int | None, s.Number]]:
        """Yields where numbers stand that tell the byte order, in a struct that begins at `start`."""
        for part, offset in zip(struct.fields, struct.offsets, strict=True):
            at = None if start is None or offset is None else start + offset
            if isinstance(part.node, s.ByteOrder):
                yield at, part.node.number
            elif isinstance(part.node, s.Ref):
                yield from self.byte_orders(self.schema.structs[part.node.name], at)

    def derived(self, part: s.Field, name: str, struct: s.StructOf) -> None:
        """Puts a global variable for what follows from the regions before it, where an expression says how."""
        self.put(f"// {one_line_of(f'{part.name}: {part.doc}')}")
        if isinstance(value := part.node, s.Derived) and isinstance(lookup := value.value, ValueOfKey):
            table = next(field for field in struct.fields if (field.name,) == getattr(lookup.mapping, "names", ()))
            assert isinstance(table.node, s.List)
            function = f"{self.names.of(f'{name}_or_default')}()"
            rows, count = self.expression(lookup.mapping, struct), self.expression(table.node.count, struct)
            self.put(
                f"fn {function} {{",
                "    u64 i = 0;",
                f"    while (i < {count}) {{",
                f"        if ({rows}[i].{table.node.key} == {quoted(lookup.key)}) {{ return {rows}[i].value; }}",
                "        i = i + 1;",
                "    }",
                f"    return {lookup.default};",
                "};",
                f"u64 {name} = {function};",
                "",
            )
        elif isinstance(value, s.Derived) and value.value is not None:
            self.put(f"u64 {name} = {self.expression(value.value, struct)};", "")

    def payloads(self, part: s.Field, name: str, struct: s.StructOf) -> None:
        """Puts what places each row's payload where its offset says."""
        assert isinstance(part.node, s.Payloads)
        table = next(field for field in struct.fields if field.name == part.node.table)
        assert isinstance(table.node, s.List)
        assert isinstance(table.node.item, s.Ref)
        row = {field.name: field.node for field in self.schema.structs[table.node.item.name].fields}
        shape, code = row["shape"], row["dtype"]
        assert isinstance(shape, s.Derived)
        assert isinstance(code, s.Code)
        count = identifier(count_name("dims"), HIDDEN)
        rows, start = identifier(table.name, HIDDEN), self.names.of(f"{name}_start")
        first = f"{rows}[i].{count} - 1" if isinstance(shape.value, Reversed) else "0"
        payload = self.names.of(f"{table.node.item.name}_payload_t")
        weights, first_of = self.names.of("weights_of"), self.names.of("rows_of")
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
        self.put(
            f"{payload} {name}[{self.expression(table.node.count, struct)}] @ {start} [[comment({quoted(part.doc)})]];", ""
        )

    def type_alone(self, type_: s.TypeOf) -> None:
        """Puts a tensor type's blocks over the whole file, or its payload, whose sizes the user is asked for."""
        if type_.block:
            name, size = self.structs[type_.block], self.schema.structs[type_.block].size
            self.put(f"{name} blocks[std::mem::size() / {size}] @ 0x00;")
        else:
            out, columns, _ = PARAMETERS.values()
            self.put(f"u64 {out} in;", f"u64 {columns} in;")
            self.put(f"{self.structs[type_.payload]}<{out}, {columns}, {out} * {columns}> payload @ 0x00;")


def inner_name(node: s.Node) -> str:
    """Returns what the member is called of a struct that is one node."""
    return type(node).__name__.lower()


def bare(expression: str) -> str:
    """Returns an expression without the brackets around an operation."""
    return expression[1:-1] if expression.startswith("(") else expression


def quoted(text: str) -> str:
    """Returns a literal of text."""
    safe = one_line_of(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{safe}"'
