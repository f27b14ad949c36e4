"""Generated documents do not lie: each rule is enforced by the Kaitai readers or only stated.

The readers refuse the files that the package refuses by an enforced rule, and take the files that
break only another rule.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from construct import Array, Bytes, BytesInteger, Const, Default, If, IfThenElse, Pass, Switch, len_, this

from glft_schema import Container, FormatError
from glft_schema.codec import (
    Derived,
    Picked,
    Rule,
    Sizes,
    Struct,
    Text,
    TypeCode,
    TypeTable,
    ValueType,
    f16,
    i16,
    u8,
    u16,
    u32,
)
from glft_schema.codec.expressions import matches, nbytes_, reverse_
from glft_schema.codec.predicates import above, at_least, at_most, differs_from, equals, meets
from glft_schema.codec.rules import RULE_SETS
from glft_schema.codec.trace import STEP
from glft_schema.describe import as_data, schema_of, write
from glft_schema.describe.languages import WRITERS
from glft_schema.errors import LimitError, OptionError
from glft_schema.files.parsing import trace_fields
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.testing import containers, corruptions
from glft_schema.testing.corruption import distinct_rules, rule_locations
from tests.describe.test_c_header import header_of, run, structs_of
from tests.formats.own_formats import OWN, registered
from tests.formats.test_own_declarations import declared
from tests.formats.test_plain_formats import SCENE, TEXTURED, VALUES
from tests.fuzz.mutator import drawn
from tests.oracles.kaitai_readers import compiled, installed, python_reader
from tests.testing.test_corruptions import TOO_LARGE
from tests.tools.depth import FULL
from tests.tools.npm import node

FORMATS = {format.name: format for format in (GLFT, GGUF, SAFETENSORS, *OWN, SCENE, TEXTURED)}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kaitai.md"
# Other errors of files that break a rule that is only stated: padding that lacks, a second rule.
MISREAD = {
    "gguf-alignment": "ZeroDivisionError",
    "gguf-limit-alignment": "EndOfStreamError",
    "quantized-dims": "rule q4-groups",
}

# The rules of every reader that the generated readers do not enforce; `-rows` are those of blocks.
STATED = {
    "GLFT": {"glft-dims-fit-type", "glft-names-once", "quantized-dims"},
    "GGUF": {"gguf-alignment", "gguf-limit-alignment", "gguf-keys-once", "gguf-dims-fit-type", "gguf-names-once", "-rows"},
    "safetensors": {"safetensors-dims-fit-type", "safetensors-size", "f6_e3m2-bytes"},
    "lines": {"lines-dims", "lines-names", "-rows"},
    "typed": {"typed-keys", "typed-dims", "typed-names", "-rows"},
    "bare": {"bare-dims", "bare-names", "-rows"},
    "long": {"bare-dims", "long-names", "-rows"},
    "scene": set[str](),
    "textured": {"textured-dims", "textured-names", "-rows"},
}
RULES = [(name, rule) for name, format in FORMATS.items() for rule in distinct_rules(format)]


class Reader:
    """A generated reader, and its schema."""

    def __init__(self, folder: Path, name: str) -> None:
        self.spec = json.loads((folder / f"{name}.ksy").read_text("utf-8"))
        self.reader = python_reader(folder, self.spec["meta"]["id"])

    def refusal(self, stored: bytes, table: str) -> str | None:
        """Returns the sentences of the attribute that refuses a file, or another error's name; None
        if all is read. Bytes follow the file, so that larger payloads are inside of it."""
        kaitaistruct = pytest.importorskip("kaitaistruct")
        try:
            read = self.reader.from_bytes(stored + bytes(4096))
            for row in getattr(read, table, ()):
                with suppress(EOFError, OverflowError):  # outside of all files
                    getattr(row, "payload", None)
        except kaitaistruct.ValidationFailedError as error:
            attr = self.spec
            for step in error.src_path.strip("/").split("/"):
                attr = attr[int(step) if isinstance(attr, list) else step]
            return str(attr.get("doc", ""))
        except (EOFError, ZeroDivisionError, UnicodeDecodeError) as error:
            return type(error).__name__
        return None


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Reader]:
    schemas = {name: schema_of(format) for name, format in FORMATS.items()}
    schemas |= {kind: schema_of(Struct(*parts), kind) for kind, (_, *parts) in KINDS.items()}
    folder = compiled(installed(request), tmp_path_factory.mktemp("readers"), schemas)
    return cache(lambda name: Reader(folder, name))


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    with registered(*OWN, SCENE, TEXTURED):
        yield


@cache
def files(name: str) -> list[bytes]:
    """Returns files that break no rule."""
    strategy, random = containers(FORMATS[name], rules=RULE_SETS), Random(0)
    return list(islice(filter(None, (drawn(strategy, random) for _ in count())), 12 if FULL else 2))


@pytest.mark.network
@pytest.mark.parametrize(("name", "rule"), RULES)
def test_the_readers_enforce_a_rule_or_state_it(name: str, rule: str, readers: Callable[[str], Reader]) -> None:
    format, reader, random = FORMATS[name], readers(name), Random(0)
    is_required = next(at.check for at in rule_locations(format) if at.check.id == rule).is_required
    is_enforced = is_required and not any(map(rule.endswith, STATED[name]))
    try:
        broken = [made for stored in files(name) if (made := drawn(corruptions(stored, rule), random))]
    except OptionError:
        assert rule in TOO_LARGE
        return
    assert broken
    for made in broken:
        assert (made.problem(), bool(made.error)) == (None, is_required)
        found = reader.refusal(made.stored, format.table)
        if is_enforced or found:
            assert (f"rule {rule}, required: " if is_enforced else MISREAD[rule]) in str(found)


@pytest.mark.network
@pytest.mark.parametrize("name", FORMATS)
def test_the_readers_take_valid_files(name: str, readers: Callable[[str], Reader]) -> None:
    assert {readers(name).refusal(stored, FORMATS[name].table) for stored in files(name)} == {None}


@pytest.mark.network
def test_bits_have_names(readers: Callable[[str], Reader]) -> None:
    points = readers("scene").reader.from_bytes(Container.build(VALUES)).points
    assert [(point.flags_visible, point.flags_locked) for point in points] == [(True, False), (True, True), (False, False)]


Owner = Struct("name" / Text(u8, strict=True) * "who", "pin" / If(this._.version > 1, u16) * "a number")
# fmt: off
OPTIONAL = declared(
    "version"  / u8                                               * "0 to 4",
    "flags"    / u8                                               * "bits",
    "inner"    / Struct("version" / u8)                           * "another version",
    "first"     / Default(If(this.version >= 2, u32), None)        * "a number",
    "bit"      / If(this.flags & 2 != 0, Owner)                   * "a struct",
    "deep"     / If(this.flags & 1, If(this.version > 2, u8))     * "two conditions",
    "sizes"    / If(this.inner.version >= 9, Sizes(u8, u8, "dims")) * "a list",
    "either"   / IfThenElse(this.inner.version >= 9, u16, Owner)  * "a number or a struct",
    "unless"   / IfThenElse(this.version > 1, Pass, u8)           * "a number",
    "chosen"   / Switch(this.flags & 3, {0: Pass, 1: u8, 2: Owner}) * "a number, a struct or nothing",
    "other"    / Switch(this.version, {1: Pass, 2: u16}, Owner)   * "nothing, a number or a struct",
    "compared" / Switch(this.version < 2, {False: u8})            * "a number",
    "rows"     / Array(this.flags >> 1 & 1, Owner)                * "a struct, if the bit is set",
    Rule("optional-version", this.version, at_most(4)),
    Rule("optional-if", this.first, at_least(10), when=this.version >= 2),
    "end"      / Const(b"E")                                      * "the end",
)
# fmt: on
READ = """
const [folder] = process.argv.slice(1), fs = require("fs"), KaitaiStream = require("kaitai-struct/KaitaiStream")
const { Own } = require(`${folder}/Own.js`)
const plain = value => {
  if (typeof value != "object" || value instanceof Uint8Array) return value
  if (Array.isArray(value)) return value.map(plain)
  if (value.text !== undefined) return value.text
  return Object.fromEntries(Object.keys(value).filter(key => key[0] != "_").map(key => [key, plain(value[key])]))
}
const files = JSON.parse(fs.readFileSync(`${folder}/files.json`, "utf8"))
console.log(JSON.stringify(files.map(file => plain(new Own(new KaitaiStream(Uint8Array.from(file).buffer))))))
"""


def as_read(ours: Any, theirs: Any) -> Any:
    """Returns the fields of a generated reader that this package's value has; None for no bytes."""
    if isinstance(ours, Mapping):
        get = theirs.get if isinstance(theirs, Mapping) else lambda name, _: getattr(theirs, name, None)
        return {name: as_read(value, get(name, None)) for name, value in ours.items() if not isinstance(value, bytes)}
    if isinstance(ours, list):
        return [as_read(one, other) for one, other in zip(ours, theirs, strict=True)]
    if ours is None and not isinstance(theirs, (int, str, list)):
        fields = theirs if isinstance(theirs, Mapping) else vars(theirs or object)
        return None if theirs is None or all(name.startswith("_") for name in fields) else theirs
    return getattr(theirs, "text", theirs)


@pytest.mark.network
def test_parts_that_depend_on_others_are_read(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = compiled(cached := installed(request), tmp_path, {"own": schema_of(OPTIONAL)})
    reader, random = python_reader(folder, "own"), Random(0)
    with registered(OPTIONAL):
        files = [made for _ in range(200 if FULL else 60) if (made := drawn(containers(OPTIONAL), random))]
        parsed = [as_read(one := Container.parse(stored).regions, one) for stored in files]
    assert [as_read(ours, reader.from_bytes(stored)) for ours, stored in zip(parsed, files, strict=True)] == parsed
    (folder / "files.json").write_text(json.dumps([list(stored) for stored in files]))
    in_javascript = json.loads(node(cached, "-e", READ, folder))
    assert [as_read(ours, theirs) for ours, theirs in zip(parsed, in_javascript, strict=True)] == parsed
    for name in ("first", "bit", "deep", "sizes", "unless", "chosen", "other", "compared"):
        assert {ours[name] is None for ours in parsed} == {True, False}, name
    assert {(type(ours["either"]), len(ours["rows"])) for ours in parsed} == {(int, 0), (int, 1), (dict, 0), (dict, 1)}


FLIP = """
static inline void flip(void *member, size_t size) {
    unsigned char *bytes = (unsigned char *)member, swapped[8];
    for (size_t i = 0; i < size; i++) swapped[i] = bytes[size - 1 - i];
    memcpy(bytes, swapped, size);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
@pytest.mark.parametrize("name", FORMATS)
def test_constants_and_structs_in_c_have_the_values_of_files(name: str, tmp_path: Path) -> None:
    """Converted to u64 in C, so that signs count."""
    header, schema, code_of = header_of(FORMATS[name]), as_data(schema_of(FORMATS[name])), FORMATS[name].types.code_of
    shown, expected = re.findall(r"^#define (\w+) (?:0x|\d|\(UINT64_C)", header, re.MULTILINE), list[int]()
    for field in (field for struct in schema["structs"].values() for field in struct["fields"]):
        expected += [value] if isinstance(value := field.get("value"), int) else []
        expected += [1 << bit for bit in field["node"].get("bits", {}).values()]
    body = [f'printf("%" PRIu64 "\\n", (uint64_t){macro});' for macro in shown]
    for stored in files(name):
        rows = defaultdict[str, dict[str, tuple[int, Any]]](dict)
        for span in trace_fields(Container.parse(stored)):
            row, _, field = span.path.rpartition(STEP)
            rows[row][field] = span.start, code_of(span.value) if hasattr(span.value, "code") else span.value
            if isinstance(span.value, str):
                rows[row][f"{field}_len"] = span.start, NAMES["nbytes"](span.value)
            elif isinstance(span.value, list):
                rows[row].setdefault(f"n_{field}", (span.start, len(span.value)))
        for struct, members in structs_of(header).items():
            for row in rows.values():
                if not row.keys() >= {*members} or struct.endswith("_if_version_is_1"):  # in no file
                    continue
                octal = "".join(f"\\{byte:03o}" for byte in stored[row[members[0]][0] :][:64].ljust(64, b"\0"))
                body.append(f'{{ struct {struct} s; memcpy(&s, "{octal}", sizeof s);')
                for member in members:
                    if isinstance(value := row[member][1], int):
                        expected.append(value % 2**64)
                        flip = f"flip(&s.{member}, sizeof s.{member}); " if schema["byte_orders"] == ["big"] else ""
                        body.append(f'{flip}printf("%" PRIu64 "\\n", (uint64_t)s.{member});')
                body.append("}")
    assert list(map(int, run(tmp_path, header + FLIP, "\n".join(body)))) == expected
    assert expected


@pytest.mark.parametrize("name", FORMATS)
def test_all_documents_state_all_rules(name: str) -> None:
    """Except rules on entries of JSON texts, which Kaitai Struct does not describe."""
    texts, rules = [write(schema_of(FORMATS[name]), language) for language in WRITERS], distinct_rules(FORMATS[name])
    unstated = {"safetensors-dims-fit-type", "safetensors-size"} if name == "safetensors" else set()
    assert {rule for rule in rules for text in texts if rule not in text} == unstated


def test_the_page_names_the_rules_that_are_only_stated() -> None:
    limits = PAGE.read_text("utf-8").partition("## Limits")[2]
    assert [rule for name in ("GLFT", "GGUF") for rule in STATED[name] if f"`{rule}`" not in limits] == []


# fmt: off
TYPES = TypeTable("kind", ValueType("byte", 1, u8), ValueType("word", 2, u16))
A, B, SIZES = "a" / u8, "b" / u8, "a" / Sizes(u8, u8, "dims")
# By the kind of the rule `r`: whether the reader enforces it, and the parts of a Struct.
KINDS: dict[str, tuple[Any, ...]] = {
    "signed number":    (True,  "a" / i16, Rule("r", this.a, above(-3))),
    "half":             (False, "a" / f16, Rule("r", this.a, above(0))),  # read as bits
    "when and truth":   (True,  A, Rule("r", this.a, meets(this.a & 1, "odd"), when=this.a > 3)),
    "mixed and":        (False, A, Rule("r", this.a, meets((this.a > 1) & (this.a & 1), "odd"))),
    "field as truth":   (False, A, Rule("r", this.a, meets(this.a, "set"))),
    "when a text":      (False, "a" / Text(u8), B, Rule("r", this.b, above(2), when=this.a)),
    "list":             (True,  SIZES, Rule("r", len_(this.a), at_most(1))),
    "equal lists":      (False, SIZES, "b" / Derived(reverse_(this.a)), Rule("r", this.a, equals(this.b, "b"))),
    "bytes of a text":  (True,  "a" / Text(u8), Rule("r", nbytes_(this.a), at_most(1))),
    "text":             (False, "a" / Text(u8), Rule("r", len_(this.a), at_most(1))),  # which may not be UTF-8
    "equal texts":      (True,  "a" / Text(u8), "b" / Text(u8), Rule("r", this.a, equals(this.b))),
    "when a pattern":   (False, "a" / Text(u8), B, Rule("r", this.b, equals(0), when=matches("a*")(this.a))),
    "bytes":            (True,  "a" / Bytes(1), Rule("r", this.a, differs_from(b"a", "other than 'a'"))),
    "no bytes":         (False, A, "b" / Bytes(this.a), Rule("r", this.b, differs_from(b"", "some bytes"))),
    "number in bytes":  (False, "a" / BytesInteger(2), Rule("r", this.a, at_most(999))),
    "function":         (False, A, "b" / Derived(lambda at: at.a * 2), Rule("r", this.b, at_most(4))),
    "type":             (False, "a" / TypeCode(u8, TYPES), Rule("r", this.a, differs_from(TYPES["word"], "byte"))),
    "type in two widths": (True, A, "b" / TypeCode(Picked(this.a & 1, u8, u16), TYPES), Rule("r", this.a, at_most(3))),
    "value of a type":  (True,  A, "b" / Switch(this.a, {1: u8, 2: u16}), Rule("r", this.b, at_most(2), when=this.a == 1)),
    "value of other types": (True, A, "b" / Switch(this.a, {1: u8}, u16), "c" / u8, Rule("r", this.c, at_most(2))),
    "part that may lack": (True, A, "b" / If(this.a > 1, u8), Rule("r", this.b, at_most(2), when=this.a > 1)),
    "field in a struct": (True, "a" / Struct("x" / u8), Rule("r", this.a.x, at_most(1))),
}
# fmt: on
BYTES = b"\0\1\1\2\2\3aa\x7f\x80\xff"
NAMES = {  # the functions of docs/reference/json.md
    "len": len,
    "nbytes": lambda text: len(text.encode("utf-8", "surrogateescape")),
    "reversed": lambda items: [*items][::-1],
    "matches": lambda text, regex: bool(re.fullmatch(regex, text)),
    "value_or": lambda mapping, key, default: mapping.get(key, default),
}


@pytest.mark.network
@pytest.mark.parametrize("kind", KINDS)
def test_rules_of_all_kinds(kind: str, readers: Callable[[str], Reader]) -> None:
    """Also the condition in the JSON, evaluated as docs/reference/json.md says."""
    is_enforced, *parts = KINDS[kind]
    struct, bare = Struct(*parts), Struct(*(part for part in parts if not isinstance(part, Rule)))
    schema, reader, random, seen = schema_of(struct, kind), readers(kind), Random(0), set[bool]()
    condition = as_data(schema)["structs"]["file"]["rules"][0]["condition"]
    for _ in range(2000 if FULL else 150):
        stored = bytes(random.choices(BYTES, k=8)) + bytes(999)
        try:
            holds, rule = bool(struct.parse(stored)), ""
        except LimitError:
            continue
        except FormatError as error:
            holds, rule = False, error.rule
        assert (reader.refusal(stored, "") is None) == (holds or (rule == "r" and not is_enforced)), stored
        if rule not in ("", "r"):
            continue
        seen.add(holds)
        with suppress(FormatError):  # of a later field
            parsed = bare.parse(stored)
            values = {part.name: parsed[part.name] for part in bare.subcons}
            fields = {name: [*value] if isinstance(value, bytes) else value for name, value in values.items()}
            assert None in (condition, *values.values()) or bool(eval(condition, NAMES | fields)) == holds, stored
    assert seen == {True, False}
