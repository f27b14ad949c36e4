"""A schema as a C99 header: packed structs with checked layouts, constants, tables, payload sizes,
and functions that compute weights.

A Struct of constant size becomes one packed C struct. In any other Struct, each run of fields of
constant size becomes a packed C struct, such as ``glft_descriptor_after_dims``; a comment lists the
fields between the runs. A run with numbers whose width depends on a condition is written once per
outcome, such as ``gguf_header_if_version_is_1``.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import glft_schema.describe.nodes as s
from glft_schema.codec.expressions import ROOT, Constant, Expression, Operation, Reference, outermost, references_in
from glft_schema.codec.rules import Check
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.identifiers import Identifiers, identifier, name_of
from glft_schema.describe.sentences import (
    HALVES,
    MATRIX,
    NodeWords,
    condition_of,
    one_line_of,
    origin,
    rule_text,
    rules_of_no_field,
)
from glft_schema.errors import UnsupportedError
from glft_schema.scalar.as_c import KEYWORDS as RESERVED
from glft_schema.scalar.as_c import with_prelude
from glft_schema.scalar.kinds import KINDS
from glft_schema.tensor_types.library.printing import TypesInC

WIDTH = 100  # of a comment

SIGNS = {sign: sign for sign in ("==", "!=", "<", "<=", ">", ">=", "%")} | {"&": "&&", "|": "||"}  # in C, by Python's sign
READ = {"f16": "of_half", "bf16": "of_bfloat"}  # functions to float
FUNCTIONS = {"+": "plus", "*": "times", "//": "over"}  # that report overflow

OPENING = """\
#ifndef GLFT_SCHEMA_{macro}_H
#define GLFT_SCHEMA_{macro}_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define {macro}_ASSERT(number, condition) static_assert(condition, #condition)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define {macro}_ASSERT(number, condition) _Static_assert(condition, #condition)
#else
#define {macro}_ASSERT(number, condition) typedef char {prefix}_assertion_##number[(condition) ? 1 : -1]
#endif
"""
SIZES = """\
#define {macro}_NO_SIZE ((uint64_t)-1)

static inline uint64_t {prefix}_plus(uint64_t a, uint64_t b) {{
    return a > {macro}_NO_SIZE - b ? {macro}_NO_SIZE : a + b;
}}

static inline uint64_t {prefix}_times(uint64_t a, uint64_t b) {{
    return b && a > {macro}_NO_SIZE / b ? {macro}_NO_SIZE : a * b;
}}

static inline uint64_t {prefix}_over(uint64_t a, uint64_t b) {{
    return a == {macro}_NO_SIZE || !b ? {macro}_NO_SIZE : a / b;
}}
"""
DEQUANTIZE = """\
static inline int {name}(uint64_t type, uint64_t out, uint64_t in, const void *payload, float *w) {{
    const uint8_t *bytes = (const uint8_t *)payload;
    uint64_t i, n = {prefix}_times(out, in);
    (void)bytes, (void)w, (void)i;
    if ({prefix}_times(n, sizeof *w) == {macro}_NO_SIZE || {size}(type, out, in) == {macro}_NO_SIZE) return 0;
    switch (type) {{
{cases}    default: return 0;
    }}
}}
"""


def as_c(schema: s.Schema) -> str:
    """Returns the text of the header.

    Raises:
        UnsupportedError: if a payload size or a condition has an expression without a form in C.
        ScalarError: if a scalar function does not follow the scalar language.
    """
    return _Header(schema).text()


@dataclass(frozen=True)
class _Member:
    """A field of a struct, or the length or count before it."""

    name: str  # as in C
    node: s.Node
    doc: str
    rules: tuple[Check, ...] = ()

    @property
    def is_comment(self) -> bool:
        """Whether the member takes no bytes."""
        return isinstance(self.node, (s.DerivedNode, s.ByteOrderNode))


class _Header(NodeWords):
    """Writes one header."""

    def __init__(self, schema: s.Schema) -> None:
        self.schema = schema
        self.prefix = identifier(schema.title.lower(), RESERVED)  # of all names
        self.macro = self.prefix.upper()  # the prefix of macros
        self.constant = Identifiers((), *(f"{self.macro}_{name}" for name in ("ASSERT", "NO_SIZE", "TENSOR_TYPES"))).new
        self.lines: list[str] = []
        self.assertions = 0

    def text(self) -> str:
        self.opening()
        for name, table in self.schema.tables.items():
            self.table(name, table)
        self.constants()
        structs = self.schema.container_structs
        for name in in_order(self.schema):
            if name in structs and structs[name].is_json:
                self.json(structs[name])
            elif name in structs:
                self.write_struct(structs[name])
        for type_ in self.schema.types:
            self.tensor_type(type_)
        if self.schema.types:
            self.list_of_types()
            self.payload_sizes()
            self.weights()
        self.write(f"#undef {self.macro}_ASSERT", "", f"#endif /* GLFT_SCHEMA_{self.macro}_H */")
        return "\n".join(self.lines) + "\n"

    def write(self, *lines: str) -> None:
        self.lines.extend(lines)

    def template(self, text: str, **names: str) -> None:
        self.write(text.format(macro=self.macro, prefix=self.prefix, **names))

    def comment(self, *paragraphs: str, indent: str = "") -> None:
        """Writes a comment with wrapped paragraphs. Leading spaces indent a whole paragraph."""
        wrapped = []
        for paragraph in paragraphs:
            safe = one_line_of(paragraph).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
            inner = " " * (len(paragraph) - len(paragraph.lstrip(" ")))
            after, width = inner + "  " * bool(inner), WIDTH - len(indent)
            wrap = textwrap.TextWrapper(width, inner, after, break_long_words=False, break_on_hyphens=False)
            wrapped += wrap.wrap(safe)
        if len(wrapped) == 1:
            self.write(f"{indent}/* {wrapped[0]} */")
        elif wrapped:
            self.write(f"{indent}/* {wrapped[0]}", *(f"{indent} * {line}" for line in wrapped[1:]), f"{indent} */")

    def assertion(self, condition: str) -> None:
        self.assertions += 1
        self.write(f"{self.macro}_ASSERT({self.assertions}, {condition});")

    def name(self, name: str) -> str:
        """Returns the identifier of a struct, enum or function: `name` with the prefix."""
        has_prefix = name == self.prefix or name.startswith(f"{self.prefix}_")
        return identifier(name if has_prefix else f"{self.prefix}_{name}", RESERVED)

    def function(self, signature: str, *body: str) -> None:
        self.write(f"static inline {signature} {{", *(f"    {line}" for line in body), "}", "")

    # The parts of the header, in order

    def opening(self) -> None:
        orders = self.schema.byte_orders
        if self.schema.format is None:
            order = "Numbers are in the byte order of the containing file."
        elif len(orders) > 1:
            order = f"Numbers are in the byte order of their file, {' or '.join(orders)}-endian."
        else:
            order = f"Numbers are {orders[0]}-endian."
        self.comment(
            *origin(self.schema, "c", "h"),
            f"{order} Nothing in a file is aligned: copy structs out of the file with memcpy, or read single numbers at their"
            " offsetof; do not cast pointers into the file. Needs C99 or C++11. Unused declarations cost nothing.",
        )
        self.template(OPENING)
        self.assertion("sizeof(float) == 4 && sizeof(double) == 8")
        self.write("")

    def table(self, name: str, table: TypeTable[Any]) -> None:
        enum = self.name(name)
        by_code = [(code if isinstance(code, int) else i, type_.name) for i, (code, type_) in enumerate(table.by_code())]
        entries = [(self.constant(f"{enum}_{type_name}".upper()), code, type_name) for code, type_name in by_code]
        if all(isinstance(code, int) for code, _ in table.by_code()):
            self.comment(f"The codes of {table.kind} types.")
        else:
            self.comment(f"The {table.kind} types. Files store their names; the numbers are of this header only.")
        rows = [f"    {constant} = {code}" for constant, code, _ in entries]
        self.write(f"enum {enum} {{", ",\n".join(rows), "};", "")
        self.comment("Returns the name of a type by its code, or NULL if there is no such type.")
        cases = (f"case {constant}: return {c_string(type_name)};" for constant, _, type_name in entries)
        self.function(f"const char *{enum}_name(uint64_t code)", "switch (code) {", *cases, "default: return NULL;", "}")

    def constants(self) -> None:
        for struct in self.schema.structs.values():
            for part in struct.fields:
                prefix = self.name(f"{struct.name}_{part.name}").upper()
                if part.value is not None:
                    self.comment(f"{struct.name}: {part.name}: {part.doc}")
                    self.write(f"#define {self.constant(prefix)} {c_constant(part.value)}", "")
                for name, bit in part.node.bits if isinstance(part.node, s.NumberNode) else ():
                    self.write(f"#define {self.constant(f'{prefix}_{name}'.upper())} (UINT64_C(1) << {bit})", "")

    def write_struct(self, struct: s.StructOf) -> None:
        """Writes the packed structs of a struct's runs, after a comment if it has other parts."""
        runs = self.runs(struct)
        is_whole = len(runs) == 1 and bool(runs[0][0])
        if not is_whole:
            self.layout(struct, runs)
        general = [rule_text(rule) for rule in rules_of_no_field(struct)] if is_whole else []
        for name, run in runs:
            for suffix, sentence, outcome in self.outcomes(run) if name else ():
                self.write_packed(name + suffix, [*filter(None, [sentence]), *general], run, outcome)

    def json(self, struct: s.StructOf) -> None:
        """Writes a comment about the objects of a JSON text, for which the header has no struct."""
        lines = [f"{struct.name}, an object in the JSON text. Only this comment describes its values:"]
        for part in struct.fields:
            lines.append(f"    {part.name}: {self.words(part.node)}. {part.doc}")
            lines += [f"        {rule_text(rule)}" for rule in part.rules]
        self.comment(*lines)
        self.write("")

    def members(self, struct: s.StructOf) -> Iterator[_Member]:
        """Yields a struct's fields, each preceded by its length or count, if any."""
        names = Identifiers(RESERVED)
        for part in struct.fields:
            if isinstance(part.node, s.TextNode):
                yield _Member(names.new(f"{part.name}_len"), part.node.length, f"bytes of {part.name}")
            elif isinstance(part.node, s.CountedNode):
                yield _Member(names.new(f"n_{part.name}"), part.node.count, f"number of {part.name}")
            yield _Member(names.new(part.name), part.node, part.doc, part.rules)

    def runs(self, struct: s.StructOf) -> list[tuple[str, list[_Member]]]:
        """Returns the runs of members of constant size, each with the name of its packed struct,
        and all members between them, without a name."""
        name, before, run = self.name(struct.name), "", list[_Member]()
        runs = []
        for member in [*self.members(struct), None]:
            if member and (member.is_comment or self.declaration(member.node, {}) is not None):
                run.append(member)
                continue
            is_packed = any(not (inner.is_comment or isinstance(inner.node, s.RefNode)) for inner in run)
            suffix = f"_after_{before}" if before else f"_before_{member.name}" if member else ""
            runs.append((identifier(name + suffix, RESERVED) if is_packed else "", run))
            runs.append(("", [member] if member else []))
            run, before = [], member.name if member else ""
        return [(name, run) for name, run in runs if run]

    def outcomes(self, run: list[_Member]) -> Iterator[tuple[str, str, dict[Expression, bool]]]:
        """Yields suffix, sentence and truth values for each combination of a run's conditions."""
        conditions = list(dict.fromkeys(node.condition for member in run if isinstance(node := member.node, s.EitherNode)))
        names = Identifiers()
        named = {condition: names.new(name_of(condition)) for condition in conditions}
        for holds in itertools.product(("if", "unless"), repeat=len(conditions)):
            outcome = dict(zip(conditions, holds, strict=True))
            suffix = "".join(f"_{word}_{named[condition]}" for condition, word in outcome.items())
            sentence = " and ".join(f"{word} {self.expression(condition)}" for condition, word in outcome.items())
            truth = {condition: word == "if" for condition, word in outcome.items()}
            yield suffix, f"The layout {sentence}." if sentence else "", truth

    def write_packed(self, name: str, sentences: list[str], run: list[_Member], outcome: Mapping[Expression, bool]) -> None:
        """Writes a packed struct, and assertions of its size and offsets."""
        self.comment(*sentences)
        self.write("#pragma pack(push, 1)", f"struct {name} {{")
        offsets, at = [], 0
        for member in run:
            rules = [rule_text(rule) for rule in member.rules]
            if member.is_comment:
                self.comment(f"({member.name}: {member.doc})", *rules, indent="    ")
                continue
            declaration = self.declaration(member.node, outcome)
            assert declaration
            kind, dims, size = declaration
            enum = self.type_code(member.node) if isinstance(member.node, s.CodeNode) else ""
            number = member.node.item if isinstance(member.node, (s.ArrayNode, s.ListNode)) else member.node
            note = "; ".join(filter(None, [enum, HALVES.get(getattr(number, "kind", ""), "")]))
            self.comment(f"{at}: {member.doc}{f' ({note})' if note else ''}", *rules, indent="    ")
            self.write(f"    {kind} {member.name}{dims};")
            offsets.append((member.name, at))
            at += size
        self.write("};", "#pragma pack(pop)")
        self.assertion(f"sizeof(struct {name}) == {at}")
        for field, offset in offsets:
            self.assertion(f"offsetof(struct {name}, {field}) == {offset}")
        self.write("")

    def declaration(self, node: s.Node, outcome: Mapping[Expression, bool]) -> tuple[str, str, int] | None:
        """Returns a member's type, dims in brackets and size; None if the size varies."""
        if isinstance(node, s.EitherNode):
            node = node.then if outcome.get(node.condition) else node.otherwise
        if isinstance(node, s.CodeNode):
            return self.declaration(node.number, outcome)
        size = self.schema.size(node)
        if not size:
            return None
        if isinstance(node, s.NumberNode):
            return c_type(node), "", size
        if isinstance(node, s.BytesNode):
            return "uint8_t", f"[{size}]", size
        if isinstance(node, (s.ArrayNode, s.ListNode)):
            kind, inner, item = self.declaration(node.item, outcome) or ("", "", 0)
            dims = "".join(f"[{dim}]" for dim in node.dims) if size > item else ""
            return (kind, dims + inner, size) if kind else None
        return (f"struct {self.name(node.name)}", "", size) if isinstance(node, s.RefNode) else None

    def layout(self, struct: s.StructOf, runs: list[tuple[str, list[_Member]]]) -> None:
        """Writes a comment that lists the parts of a struct of varying size, in order."""
        lines = [f"{struct.name}, in order:"]
        for name, run in runs:
            if name:
                lines += [f"    struct {name}{suffix}" for suffix, _, _ in self.outcomes(run)]
                continue
            for member in run:
                lines.append(f"    {member.name}: {self.words_after_count(member)}. {member.doc}")
                lines += [f"        {rule_text(rule)}" for rule in member.rules]
                if isinstance(member.node, s.SwitchNode) and member.node.is_of_types:
                    lines += [f"        {case.name}: {self.words(case.node)}" for case in member.node.cases]
        self.comment(*lines, *(f"    {rule_text(rule)}" for rule in rules_of_no_field(struct)))
        self.write("")

    # Nodes in words

    def words_after_count(self, member: _Member) -> str:
        """Returns the description of a member, which refers to the length or count before it."""
        if isinstance(member.node, s.TextNode):
            return f"{member.name}_len bytes of UTF-8"
        if isinstance(member.node, s.CountedNode):
            return f"n_{member.name} times {self.words(member.node.item)}"
        return self.words(member.node)

    def expression(self, expression: Expression) -> str:
        return outermost(expression).replace(f"{ROOT}.", "")

    def number(self, number: s.NumberNode) -> str:
        note = HALVES.get(number.kind, "" if number.kind in KINDS else f"the bits of {number.kind}")
        return c_type(number) + (f" ({note})" if note else "")

    def array(self, node: s.ArrayNode) -> str:
        if isinstance(node.item, s.RefNode):
            return f"struct {self.name(node.item.name)}[out][in / {node.weights}]"
        kind, space, note = self.number(node.item).partition(" ")
        return f"{kind}{''.join(f'[{self.expression(dim)}]' for dim in node.dims)}{space}{note}"

    def type_code(self, node: s.CodeNode) -> str:
        return f"enum {self.name(s.table_name(node.table))}"

    # Tensor types

    def tensor_type(self, type_: s.TypeOf) -> None:
        fields = type_.struct.fields
        self.comment(
            f"{type_.type.name}, code {self.number_of(type_)}. A payload of [out, in] weights, in order:",
            *(f"    {part.name}: {self.words(part.node)}. {part.doc}" for part in fields),
            *(f"    {rule_text(rule)}" for rule in type_.struct.rules),
            *([] if type_.type.formula else [f"A weight is {type_.formula}"]),
        )
        if type_.block:
            self.write_struct(self.schema.structs[type_.block])
        else:
            self.write("")

    def number_of(self, type_: s.TypeOf) -> int:
        """Returns the code of a type, or its number in this header if files store its name."""
        return type_.code if isinstance(type_.code, int) else self.schema.types.index(type_)

    def list_of_types(self) -> None:
        self.comment(
            "All tensor types, each as X(identifier, code, name, weights, bytes). `weights` is the number of weights in a"
            " block, or the fewest in a row for types without blocks; `bytes` is the size of these weights, without the"
            " fields that a row has once."
        )
        names, rows = Identifiers(RESERVED), []
        for type_ in self.schema.types:
            name, code = type_.type.name, self.number_of(type_)
            rows.append(f"    X({names.new(name)}, {code}, {c_string(name)}, {type_.weights}, {type_.nbytes})")
        self.write(f"#define {self.macro}_TENSOR_TYPES(X) \\", " \\\n".join(rows), "")

    def payload_sizes(self) -> None:
        """Writes the functions that compute the size of a payload and the offsets of its fields."""
        self.template(SIZES)
        self.comment(
            f"Returns the size in bytes of a payload of [out, in] weights. Returns {self.macro}_NO_SIZE if the type is"
            " unknown, if it cannot hold rows of `in` weights, or if the size overflows 64 bits. Rules on anything but `out`"
            f" and `in` are not checked. {MATRIX}",
        )
        body = ["(void)out;", "(void)in;", "switch (type) {"]
        for type_ in self.schema.types:
            body.append(self.case(type_))
            body += [f"    if (!{condition}) return {self.macro}_NO_SIZE;" for condition in self.conditions(type_)]
            body += [f"    in /= {type_.packed}; /* as torch counts */"] if type_.packed > 1 else []
            body.append(f"    return {self.total(type_.struct.fields)};")
        signature = f"uint64_t {self.name('payload_size')}(uint64_t type, uint64_t out, uint64_t in)"
        self.function(signature, *body, f"default: return {self.macro}_NO_SIZE;", "}")
        for type_ in self.schema.types:
            fields = type_.struct.fields
            for i, part in enumerate(fields[1:], 1):
                self.comment(f"Returns the offset in bytes of {part.name} in a payload of {type_.type.name}.")
                signature = f"uint64_t {self.field_offset(type_, part)}(uint64_t out, uint64_t in)"
                self.function(signature, "(void)out;", "(void)in;", f"return {self.total(fields[:i])};")

    def case(self, type_: s.TypeOf) -> str:
        return f"case {self.number_of(type_)}: /* {one_line_of(type_.type.name).replace('*/', '* /')} */"

    def field_offset(self, type_: s.TypeOf, field: s.Field) -> str:
        """Returns the name of the function that computes the offset of a field in a payload."""
        return self.name(f"{type_.type.scheme}_{field.name}_at")

    def weights(self) -> None:
        """Writes the functions that compute weights: one per type, and one that selects by type."""
        function, size = self.name("dequantize"), self.name("payload_size")
        unit = TypesInC(f"{self.prefix}_", {function, *re.findall(r"\w+", "\n".join(self.lines))})
        names, cases = Identifiers(), list[str]()
        for type_ in self.schema.types:
            if calls := self.decoding(type_, unit, names):
                cases += [f"    {self.case(type_)}", *(f"        {call}" for call in calls), "        return 1;"]
        start = len(self.lines)
        self.write(unit.text)
        self.comment(
            "Writes the out * in weights of a payload as float32, and returns 1. Returns 0 if there is no function for the"
            f" type, if it cannot hold rows of `in` weights, or if their size overflows. The payload has {size} bytes, at any"
            " address, in the byte order of this machine."
        )
        self.template(DEQUANTIZE, name=function, size=size, cases="".join(f"{line}\n" for line in cases))
        section = with_prelude("\n".join(self.lines[start:]), f"{self.prefix}_")
        del self.lines[start:]
        self.comment(
            "Functions that compute weights, for gcc, clang and other compilers with their builtins. Weights are float32,"
            " rounded after each operation: if the compiler fuses operations, compile with -ffp-contract=off."
        )
        self.write("#if defined(__GNUC__)", section, "#endif", "")

    def decoding(self, type_: s.TypeOf, unit: TypesInC, names: Identifiers) -> list[str]:
        """Returns statements that write n weights `w` of the payload `bytes`, and adds the
        functions that they call to `unit`. Returns none for a type that has no function and is not
        a C number."""
        fields = type_.struct.fields
        functions = type_.type.functions
        if functions and functions.decoder:
            layout = functions.layout
            name = names.new(f"dequantize_{type_.type.scheme}")
            decoder = unit.decoder(replace(layout, name=name), functions.decoder)
            if layout.weights:
                return [f"{decoder}(bytes, w, n / {layout.weights});"]
            arrays = ["bytes", *(f"bytes + {self.field_offset(type_, part)}(out, in)" for part in fields[1:])]
            return ["if (in > 0x7FFFFFFF) return 0;", f"{decoder}({', '.join(arrays)}, w, out, in);"]
        number = fields[0].node.item if isinstance(fields[0].node, s.ArrayNode) else None
        if not isinstance(number, s.NumberNode) or (kind := number.kind) not in KINDS:
            return []
        return [f"for (i = 0; i < n; i++) w[i] = {READ.get(kind, '')}(((const {KINDS[kind].unaligned} *)bytes)[i]);"]

    def conditions(self, type_: s.TypeOf) -> Iterator[str]:
        blocks = (part.node for part in type_.struct.fields if isinstance(part.node, s.ArrayNode))
        for weights in (type_.packed, *(node.weights for node in blocks)):
            if weights > 1:
                yield f"(in % {weights} == 0)"
        for rule in type_.struct.rules:
            condition = condition_of(rule)
            if condition and {reference.names for reference in references_in(condition)} <= {("out",), ("in",)}:
                yield self.in_c(condition)

    def total(self, fields: Iterable[s.Field]) -> str:
        sizes = [self.nbytes(part.node) for part in fields] or ["0"]
        return reduce(lambda total, size: f"{self.prefix}_plus({total}, {size})", sizes)

    def nbytes(self, node: s.Node) -> str:
        if not isinstance(node, s.ArrayNode):
            raise UnsupportedError(f"expected a payload field of numbers or blocks, found {type(node).__name__}")
        factors = [str(node.size), *map(self.in_c, node.dims)]
        if isinstance(node.item, s.RefNode):
            factors = [f"sizeof(struct {self.name(node.item.name)})", "out", f"in / {node.weights}"]
        return reduce(lambda size, dim: f"{self.prefix}_times({size}, {dim})", [one for one in factors if one != "1"] or ["1"])

    def in_c(self, expression: Expression) -> str:
        """Returns an expression on out, in and dims (the product of out and in) as C code."""
        match expression:
            case Constant(int(value)):
                return str(value)
            case Reference(("out" | "in" as name,)):
                return name
            case Reference(("dims",)):
                return f"{self.prefix}_times(out, in)"
            case Operation(sign, left, right) if sign in FUNCTIONS:
                return f"{self.prefix}_{FUNCTIONS[sign]}({self.in_c(left)}, {self.in_c(right)})"
            case Operation(sign, left, right) if sign in SIGNS:
                return f"({self.in_c(left)} {SIGNS[sign]} {self.in_c(right)})"
        raise UnsupportedError(f"expected an expression on out, in and dims, found {expression}")


def c_type(number: s.NumberNode) -> str:
    """Returns the type of a number, or an unsigned integer of its size if C has none."""
    return KINDS[number.kind].c if number.kind in KINDS else f"uint{8 * number.size}_t"


def in_order(schema: s.Schema) -> list[str]:
    """Returns the names of the structs, each after those that it contains."""
    ordered: list[str] = []
    visited = set[str]()

    def visit(name: str) -> None:
        if name not in visited:
            visited.add(name)
            for part in schema.structs[name].fields:
                for inner in s.refs(part.node):
                    visit(inner)
            ordered.append(name)

    for name in schema.structs:
        visit(name)
    return ordered


def c_string(text: str | bytes) -> str:
    """Returns a string literal of bytes, or of a text in UTF-8."""
    stored = text.encode() if isinstance(text, str) else text
    letters = (chr(byte) if re.match(rb"[\w .-]", bytes([byte])) else f"\\{byte:03o}" for byte in stored)
    return f'"{"".join(letters)}"'


def c_constant(value: int | bytes) -> str:
    """Returns a literal of a number or of bytes."""
    if isinstance(value, bytes):
        return c_string(value)
    if value < 0:
        return f"({value})"
    return f"{f'0x{value:X}' if value > 0xFFFF else value}{'u' if value < 1 << 32 else 'ull'}"
