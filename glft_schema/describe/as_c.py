"""A schema as a C99 header: packed structs whose sizes and offsets the compiler checks, constants, tables, payload sizes.

A struct of constant size is one packed struct. In another, each run of fields of constant size is one, with names such as
``glft_descriptor_after_dims``, and a comment says what stands between them. A run with numbers whose width a condition
decides comes once for each outcome, with names such as ``gguf_header_if_version_is_1``.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import Constant, Expression, Operation, Reference, read, subexpressions
from glft_schema.codec.rules import Check, Rule
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.c_language import BITS, C_TYPES, LOGIC, RESERVED, c_constant, c_string, number_kind, said
from glft_schema.describe.identifiers import (
    MATRIX,
    Identifiers,
    count_name,
    identifier,
    in_order,
    length_name,
    one_line_of,
    rule_text,
    words,
)


def as_c(schema: s.Schema) -> str:
    """Returns the header's text."""
    return _Header(schema).text()


@dataclass(frozen=True)
class _Piece:
    """A field, or the length that comes before it.

    Attributes:
        name: the member's.
        node: what it is.
        doc: its sentence.
        rules: those that guard it.
    """

    name: str
    node: s.Node
    doc: str
    rules: tuple[Check, ...] = ()

    @property
    def is_note(self) -> bool:
        """Whether it takes no bytes."""
        return isinstance(self.node, (s.Derived, s.ByteOrder))


class _Header:
    """Writes one header.

    Attributes:
        prefix: what all names begin with.
        macro: the same of macros.
    """

    def __init__(self, schema: s.Schema) -> None:
        self.schema = schema
        self.prefix = identifier(schema.title.lower(), RESERVED)
        self.macro = self.prefix.upper()
        self.lines: list[str] = []
        self.asserted = 0

    def text(self) -> str:
        self.opening()
        for name, table in self.schema.tables.items():
            self.table(name, table)
        self.constants()
        of_types = {name for type_ in self.schema.types for name in (type_.payload, type_.block)}
        for name in in_order(self.schema)[0]:
            if name not in of_types:
                self.struct(self.schema.structs[name])
        for type_ in self.schema.types:
            self.tensor_type(type_)
        self.types()
        self.payload_sizes()
        self.put(f"#undef {self.macro}_ASSERT", "", f"#endif /* GLFT_SCHEMA_{self.macro}_H */")
        return "\n".join(self.lines) + "\n"

    def put(self, *lines: str) -> None:
        self.lines.extend(lines)

    def comment(self, *paragraphs: str, indent: str = "") -> None:
        """Puts a comment: each paragraph is wrapped, and begins a line; spaces that it begins with indent all of it."""
        wrapped = []
        for paragraph in paragraphs:
            safe = one_line_of(paragraph).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
            inner = " " * (len(paragraph) - len(paragraph.lstrip(" ")))
            more, width = inner + "  " * bool(inner), 100 - len(indent)
            wrapped += textwrap.wrap(safe, width, initial_indent=inner, subsequent_indent=more, break_long_words=False)
        if len(wrapped) == 1:
            self.put(f"{indent}/* {wrapped[0]} */")
        elif wrapped:
            self.put(f"{indent}/* {wrapped[0]}", *(f"{indent} * {line}" for line in wrapped[1:]), f"{indent} */")

    def assertion(self, condition: str) -> None:
        """Puts an assertion that the compiler checks."""
        self.asserted += 1
        self.put(f"{self.macro}_ASSERT({self.asserted}, {condition});")

    def called(self, name: str) -> str:
        """Returns what a struct, enum or function is called: with the prefix, unless `name` begins with it."""
        has_prefix = name == self.prefix or name.startswith(f"{self.prefix}_")
        return identifier(name if has_prefix else f"{self.prefix}_{name}", RESERVED)

    # The parts of the header, in order

    def opening(self) -> None:
        title, orders = self.schema.title, self.schema.byte_orders
        if self.schema.format is None:
            order = "Numbers are in the byte order of the file that they are in."
        elif len(orders) > 1:
            order = f"Numbers are in the byte order of their file, {' or '.join(orders)}-endian."
        else:
            order = f"Numbers are {orders[0]}-endian."
        self.comment(
            f"{title}, as its declaration in glft_schema has it. Made by",
            f"    glft schema {title.lower()} --as c > {title.lower()}.h",
            f"{order} Nothing in a file is aligned: copy structs out of it with memcpy, or take single numbers from their"
            f" offsetof; do not cast pointers into it. Needs C99 or C++11; what is declared here and not used costs nothing.",
        )
        guard, check = f"GLFT_SCHEMA_{self.macro}_H", f"{self.macro}_ASSERT"
        self.put(f"#ifndef {guard}", f"#define {guard}", "", "#include <stddef.h>", "#include <stdint.h>", "")
        self.put("#if defined(__cplusplus)", f"#define {check}(number, condition) static_assert(condition, #condition)")
        self.put("#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L")
        self.put(f"#define {check}(number, condition) _Static_assert(condition, #condition)", "#else")
        self.put(f"#define {check}(number, condition) typedef char {self.prefix}_assertion_##number[(condition) ? 1 : -1]")
        self.put("#endif", "")
        self.assertion("sizeof(float) == 4 && sizeof(double) == 8")
        self.put("")

    def table(self, name: str, table: TypeTable[Any]) -> None:
        enum, names = self.called(name), Identifiers(())
        entries = [(names.of(f"{enum}_{type_.name}".upper()), type_) for type_ in sorted(table, key=lambda type_: type_.code)]
        self.comment(f"The codes of {table.kind} types.")
        rows = [f"    {constant} = {type_.code}" for constant, type_ in entries]
        self.put(f"enum {enum} {{", ",\n".join(rows), "};", "")
        self.comment("Returns the name of a code, or NULL where there is no such type.")
        self.put(f"static inline const char *{enum}_name(uint64_t code) {{", "    switch (code) {")
        self.put(*(f"    case {constant}: return {c_string(type_.name)};" for constant, type_ in entries))
        self.put("    default: return NULL;", "    }", "}", "")

    def constants(self) -> None:
        for struct in self.schema.structs.values():
            for part in struct.fields:
                if part.value is not None:
                    self.comment(f"{struct.name}: {part.name}: {part.doc}")
                    self.put(f"#define {self.called(f'{struct.name}_{part.name}').upper()} {c_constant(part.value)}", "")

    def struct(self, struct: s.StructOf) -> None:
        """Puts the packed structs of a struct's runs, and where these are not all of it, first what stands where."""
        pieces = list(self.pieces(struct))
        runs = self.runs(struct, pieces)
        whole = len(runs) == 1 and runs[0][1] == pieces
        if not whole:
            self.layout(struct, pieces, runs)
        general = [rule_text(rule) for rule in struct.rules if whole and not any(rule in piece.rules for piece in pieces)]
        for name, run in runs:
            for suffix, sentence, outcome in self.outcomes(run):
                self.packed(name + suffix, [*([sentence] if sentence else []), *general], run, outcome)

    def pieces(self, struct: s.StructOf) -> Iterator[_Piece]:
        """Yields a struct's fields, and before those of varying size the numbers that say how much of them there is."""
        names = Identifiers(RESERVED)
        for part in struct.fields:
            if isinstance(part.node, s.Text):
                yield _Piece(names.of(length_name(part.name)), part.node.length, f"bytes of {part.name}")
            elif isinstance(part.node, s.Counted):
                yield _Piece(names.of(count_name(part.name)), part.node.count, f"number of {part.name}")
            yield _Piece(names.of(part.name), part.node, part.doc, part.rules)

    def runs(self, struct: s.StructOf, pieces: list[_Piece]) -> list[tuple[str, list[_Piece]]]:
        """Returns the runs of pieces of constant size, each with the name of its packed struct."""
        name, before, run = self.called(struct.name), "", list[_Piece]()
        found = []
        for piece in [*pieces, None]:
            if piece and (piece.is_note or self.member(piece.node, {}) is not None):
                run.append(piece)
                continue
            if any(not (part.is_note or isinstance(part.node, s.Ref)) for part in run):
                where = f"_after_{before}" if before else f"_before_{piece.name}" if piece else ""
                found.append((identifier(name + where, RESERVED), run))
            run, before = [], piece.name if piece else ""
        return found

    def outcomes(self, run: list[_Piece]) -> Iterator[tuple[str, str, dict[Expression, bool]]]:
        """Yields, for each outcome of the conditions in a run, a part of a name, a sentence, and what holds."""
        conditions = list(dict.fromkeys(node.condition for piece in run if isinstance(node := piece.node, s.Either)))
        names = Identifiers(())
        named = {condition: names.of(words(condition)) for condition in conditions}
        for holds in itertools.product((True, False), repeat=len(conditions)):
            outcome = dict(zip(conditions, holds, strict=True))
            suffix = "".join(f"_{'if' if true else 'unless'}_{named[condition]}" for condition, true in outcome.items())
            where = " and ".join(f"{'where' if true else 'unless'} {said(condition)}" for condition, true in outcome.items())
            yield suffix, f"Stands {where}." if where else "", outcome

    def packed(self, name: str, sentences: list[str], run: list[_Piece], outcome: Mapping[Expression, bool]) -> None:
        """Puts a packed struct, and assertions of its size and offsets."""
        self.comment(*sentences)
        self.put("#pragma pack(push, 1)", f"struct {name} {{")
        offsets, at = [], 0
        for piece in run:
            rules = [rule_text(rule) for rule in piece.rules]
            if piece.is_note:
                self.comment(f"({piece.name}: {piece.doc})", *rules, indent="    ")
                continue
            member = self.member(piece.node, outcome)
            assert member
            kind, dims, size = member
            enum = f"enum {self.called(s.table_name(piece.node.table))}" if isinstance(piece.node, s.Code) else ""
            note = "; ".join(filter(None, [enum, BITS.get(number_kind(piece.node), "")]))
            self.comment(f"{at}: {piece.doc}{f' ({note})' if note else ''}", *rules, indent="    ")
            self.put(f"    {kind} {piece.name}{dims};")
            offsets.append((piece.name, at))
            at += size
        self.put("};", "#pragma pack(pop)")
        self.assertion(f"sizeof(struct {name}) == {at}")
        for field, offset in offsets:
            self.assertion(f"offsetof(struct {name}, {field}) == {offset}")
        self.put("")

    def member(self, node: s.Node, outcome: Mapping[Expression, bool]) -> tuple[str, str, int] | None:
        """Returns the type of a member, its dims in brackets and its bytes, or None where these vary."""
        if isinstance(node, s.Either):
            node = node.then if outcome.get(node.condition) else node.otherwise
        if isinstance(node, s.Code):
            return self.member(node.number, outcome)
        size = self.schema.size(node)
        if not size:
            return None
        if isinstance(node, s.Number):
            return C_TYPES[node.kind], "", size
        if isinstance(node, s.Bytes):
            return "uint8_t", f"[{size}]", size
        if isinstance(node, s.Numbers):
            dims = "".join(f"[{dim}]" for dim in node.dims) if size > node.number.size else ""
            return C_TYPES[node.number.kind], dims, size
        return (f"struct {self.called(node.name)}", "", size) if isinstance(node, s.Ref) else None

    def layout(self, struct: s.StructOf, pieces: list[_Piece], runs: list[tuple[str, list[_Piece]]]) -> None:
        """Puts the comment that says what a struct of varying size is made of, in order."""
        lines = [f"{struct.name}, one after another:"]
        in_run = {id(piece): (name, run) for name, run in runs for piece in run}
        for piece in pieces:
            if found := in_run.get(id(piece)):
                if found[1][0] is piece:
                    lines += [f"    struct {found[0]}{suffix}" for suffix, _, _ in self.outcomes(found[1])]
                continue
            lines.append(f"    {piece.name}: {self.described(piece)}. {piece.doc}")
            lines += [f"        {rule_text(rule)}" for rule in piece.rules]
            if isinstance(piece.node, s.Switch):
                lines += [f"        {case.name}: {self.words_of(case.node)}" for case in piece.node.cases]
        named = {rule.id for piece in pieces for rule in piece.rules}
        lines += [f"    {rule_text(rule)}" for rule in struct.rules if rule.id not in named]
        self.comment(*lines)
        self.put("")

    def described(self, piece: _Piece) -> str:
        """Returns what a field is, in words."""
        if isinstance(piece.node, s.Text):
            return f"{length_name(piece.name)} bytes of UTF-8"
        if isinstance(piece.node, s.Counted):
            return f"{count_name(piece.name)} times {self.words_of(piece.node.item)}"
        return self.words_of(piece.node)

    def words_of(self, node: s.Node) -> str:
        """Returns what a node is, in words."""
        match node:
            case s.Number():
                return C_TYPES[node.kind] + (f" ({BITS[node.kind]})" if node.kind in BITS else "")
            case s.Bytes():
                return f"bytes, {said(node.size)} of them" if node.size else "bytes, all that are left"
            case s.Text():
                return f"{self.words_of(node.length)}, the number of bytes, then so many bytes of UTF-8"
            case s.List():
                return f"{said(node.count)} times {self.words_of(node.item)}"
            case s.Counted():
                return f"{self.words_of(node.count)}, then so many times {self.words_of(node.item)}"
            case s.Numbers():
                note = f" ({BITS[node.number.kind]})" if node.number.kind in BITS else ""
                return f"{C_TYPES[node.number.kind]}{''.join(f'[{said(dim)}]' for dim in node.dims)}{note}"
            case s.BlockArray():
                return f"struct {self.called(node.block)}[out][in / {node.weights}]"
            case s.Either():
                then, otherwise = self.words_of(node.then), self.words_of(node.otherwise)
                return f"{then} where {said(node.condition)}, else {otherwise}"
            case s.Code():
                return f"{self.words_of(node.number)}, of enum {self.called(s.table_name(node.table))}"
            case s.Switch():
                return f"as {said(node.on)} says"
            case s.Ref():
                return f"the {node.name}"
            case s.Lines():
                return f"{said(node.size)} bytes of UTF-8, lines key=value"
            case s.Padding():
                return f"bytes up to a multiple of {said(node.to)}, counted from the start of the file"
            case s.ByteOrder():
                return "no bytes"
            case s.Derived():
                return f"no bytes, {said(node.value)}" if node.value else "no bytes, follows from the fields before"
            case s.Payloads():
                return f"the payloads of {node.table}, each at its offset"

    # Tensor types

    def tensor_type(self, type_: s.TypeOf) -> None:
        """Puts what a payload consists of, and the struct of its blocks."""
        fields = self.schema.structs[type_.payload].fields
        self.comment(
            f"{type_.type.name}, code {type_.type.code}. A payload of [out, in] weights, in order:",
            *(f"    {part.name}: {self.words_of(part.node)}. {part.doc}" for part in fields),
            *(f"    {rule_text(rule)}" for rule in type_.rules),
            f"A weight is {type_.formula}",
        )
        if type_.block:
            self.struct(self.schema.structs[type_.block])
        else:
            self.put("")

    def types(self) -> None:
        if not self.schema.types:
            return
        self.comment(
            "All tensor types, each as X(identifier, code, name, weights, bytes): `weights` is how many a block holds, or where"
            " there are no blocks the fewest that a row can have; `bytes` is what these take, beside what a whole row has."
        )
        names, rows = Identifiers(RESERVED), []
        for type_ in self.schema.types:
            known = type_.type
            rows.append(f"X({names.of(known.name)}, {known.code}, {c_string(known.name)}, {type_.weights}, {type_.nbytes})")
        self.put(f"#define {self.macro}_TENSOR_TYPES(X) \\", " \\\n".join(f"    {row}" for row in rows), "")

    def payload_sizes(self) -> None:
        """Puts the functions that count the bytes of a payload, and say where its fields begin."""
        if not self.schema.types:
            return
        self.put(f"#define {self.macro}_NO_SIZE ((uint64_t)-1)", "")
        for name, test, result in (
            ("plus", f"a > {self.macro}_NO_SIZE - b", "a + b"),
            ("times", f"b && a > {self.macro}_NO_SIZE / b", "a * b"),
            ("over", f"a == {self.macro}_NO_SIZE || !b", "a / b"),
        ):
            self.put(f"static inline uint64_t {self.prefix}_{name}(uint64_t a, uint64_t b) {{")
            self.put(f"    return {test} ? {self.macro}_NO_SIZE : {result};", "}", "")
        self.comment(
            f"Returns the bytes of a payload of [out, in] weights, or {self.macro}_NO_SIZE where the type is unknown or cannot"
            " hold rows of `in` weights, or 64 bits cannot count the bytes. Rules of the types that are not about `out` and"
            f" `in` are the caller's to check. {MATRIX}",
        )
        self.put(f"static inline uint64_t {self.called('payload_size')}(uint64_t type, uint64_t out, uint64_t in) {{")
        self.put("    (void)out;", "    (void)in;", "    switch (type) {")
        for type_ in self.schema.types:
            self.put(f"    case {type_.type.code}: /* {one_line_of(type_.type.name).replace('*/', '* /')} */")
            for condition in self.conditions(type_):
                self.put(f"        if (!{condition}) return {self.macro}_NO_SIZE;")
            self.put(f"        return {self.total(self.schema.structs[type_.payload].fields)};")
        self.put(f"    default: return {self.macro}_NO_SIZE;", "    }", "}", "")
        for type_ in self.schema.types:
            fields = self.schema.structs[type_.payload].fields
            for i, part in enumerate(fields[1:], 1):
                self.comment(f"Returns where {part.name} of a payload of {type_.type.name} begins, in bytes from its start.")
                name = self.called(f"{type_.type.scheme}_{part.name}_at")
                self.put(f"static inline uint64_t {name}(uint64_t out, uint64_t in) {{")
                self.put("    (void)out;", "    (void)in;", f"    return {self.total(fields[:i])};", "}", "")

    def conditions(self, type_: s.TypeOf) -> Iterator[str]:
        """Yields what must hold of `out` and `in`."""
        for part in self.schema.structs[type_.payload].fields:
            if isinstance(part.node, s.BlockArray):
                yield f"(in % {part.node.weights} == 0)"
        for rule in type_.rules:
            holds = read(rule.holds) if isinstance(rule, Rule) else None
            named = {part.names for part in subexpressions(holds) if isinstance(part, Reference)} if holds else set()
            if holds and named <= {("out",), ("in",)}:
                yield self.expression(holds)

    def total(self, fields: Iterable[s.Field]) -> str:
        """Returns the sum of the bytes of a payload's fields."""
        total = "0"
        for part in fields:
            size = self.nbytes(part.node)
            total = size if total == "0" else f"{self.prefix}_plus({total}, {size})"
        return total

    def nbytes(self, node: s.Node) -> str:
        """Returns the bytes of a payload's field."""
        if isinstance(node, s.Numbers):
            size, dims = str(node.number.size), [self.expression(dim) for dim in node.dims]
        elif isinstance(node, s.BlockArray):
            size, dims = f"sizeof(struct {self.called(node.block)})", ["out", f"in / {node.weights}"]
        else:
            raise NotImplementedError(f"a payload's field is an array of numbers or blocks, not {type(node).__name__}")
        for dim in dims:
            size = f"{self.prefix}_times({size}, {dim})" if size != "1" else dim
        return size

    def expression(self, expression: Expression) -> str:
        """Returns an expression on out, in and dims, which is their product; where it cannot be counted, NO_SIZE."""
        if isinstance(expression, Constant) and isinstance(expression.value, int):
            return str(expression.value)
        if isinstance(expression, Reference) and expression.names in (("out",), ("in",)):
            return expression.names[0]
        if isinstance(expression, Reference) and expression.names == ("dims",):
            return f"{self.prefix}_times(out, in)"
        if isinstance(expression, Operation):
            left, right = self.expression(expression.left), self.expression(expression.right)
            if function := {"+": "plus", "*": "times", "//": "over"}.get(expression.sign):
                return f"{self.prefix}_{function}({left}, {right})"
            if expression.sign == "%" or expression.sign in LOGIC:
                return f"({left} {LOGIC.get(expression.sign, '%')} {right})"
        raise NotImplementedError(f"expected an expression on out, in and dims, found {expression}")
