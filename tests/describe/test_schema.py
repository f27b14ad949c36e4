"""The tree of nodes has all that declarations have, and the writers have all of the tree."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import construct
import numpy as np
import pytest
from construct import Const, GreedyBytes, Int16ub, Int32ul, PascalString, PrefixedArray, this

from glft_schema.cli.schema import find
from glft_schema.codec.expressions import Reference
from glft_schema.codec.numbers import f16, i8
from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe import nodes as s
from glft_schema.describe.as_json import as_data, as_json
from glft_schema.describe.as_markdown import as_markdown, definitions
from glft_schema.describe.bit_picture import picture, weights_of_bits
from glft_schema.describe.languages import write
from glft_schema.describe.schema import node_of, schema_of, tree_of
from glft_schema.errors import OptionError
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.tools.command_line import in_this_process as glft
from tests.tools.depth import FULL, some, some_by_default

formats = pytest.mark.parametrize("format", [GLFT, GGUF], ids=["GLFT", "GGUF"])


def dicts(data: Any) -> list[dict[str, Any]]:
    """Returns every dict in JSON data."""
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [data] * isinstance(data, dict) + [found for part in parts for found in dicts(part)]


@formats
def test_every_struct_that_is_referred_to_is_there_and_named_once(format: Any) -> None:
    data = as_data(schema_of(format))
    assert data == json.loads(as_json(schema_of(format)))
    referred = {node[key] for node in dicts(data) for key in ("struct", "payload", "block") if isinstance(node.get(key), str)}
    assert referred | {data["root"]} == set(data["structs"])
    assert {node["table"] for node in dicts(data) if node.get("kind") == "code"} == set(data["tables"])


@formats
def test_every_expression_is_in_pythons_grammar(format: Any) -> None:
    keys = ("count", "condition", "on", "to", "from", "length", "dims")
    values = [node.get(key) for node in dicts(as_data(schema_of(format))) for key in keys]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    assert len(texts) > 10
    for text in texts:
        ast.parse(text, mode="eval")


def test_a_header_says_where_its_offsets_vary() -> None:
    header = schema_of(GGUF).structs["header"]
    assert (header.offsets, header.size) == ((0, 4, 4, 8, None), None)
    version = header.fields[2]
    assert (version.value, [rule.id for rule in version.rules]) == (3, ["gguf-version", "gguf-version-2", "gguf-big-endian"])


def test_a_struct_of_a_users_own() -> None:
    schema = s.Schema("own")
    item = construct.Struct("name" / PascalString(Int16ub, "utf8"), "sizes" / PrefixedArray(Int16ub, Int32ul))
    fields = "n" / Int16ub, "items" / item[this.n], "word" / construct.Array(2, Int32ul), "rest" / GreedyBytes
    assert node_of(Struct("magic" / Const(b"OWN1") * "always", *fields), schema, "own") == s.RefNode("own")
    u16, u32 = s.NumberNode("u16", "big"), s.NumberNode("u32", "little")
    magic, *others = schema.structs["own"].fields
    assert (magic.value, magic.doc, magic.node) == (b"OWN1", "always", s.BytesNode(tree_of(4)))
    items = s.ListNode(Reference(("n",)), s.RefNode("items"))
    assert [part.node for part in others] == [u16, items, s.ListNode(tree_of(2), u32), s.BytesNode(None)]
    assert [part.node for part in schema.structs["items"].fields] == [s.TextNode(u16), s.CountedNode(u16, u32)]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (construct.VarInt, r"VarInt has no node: register a function with @glft_schema.describe.node_of.register\(VarInt\)"),
        (construct.Check(this.a > 1), "Check has no node"),
        (construct.StopIf(this.a == 0), "StopIf has no node"),
        (construct.Array(lambda at: 2, Int16ub), "expected an expression such as this.count, found the function"),
        (construct.CString("utf8"), "only length-prefixed strings are supported"),
        (construct.FocusedSeq("a", "a" / Int16ub), "construct's FocusedSeq is supported only as PrefixedArray"),
        (construct.Padded(4, Int16ub), "construct's Padded is supported only as Padding"),
    ],
)
def test_what_has_no_node_says_so(declared: Any, problem: str) -> None:
    inner = Struct("inner" / Struct("field" / declared))
    for field, path in ((declared, ""), ("field" / declared, "field: "), (inner, "inner -> field: ")):
        with pytest.raises(NotImplementedError, match=f"^{path}{problem}"):
            node_of(construct.Struct("a" / Int16ub, field), s.Schema("own"), "own")


def test_a_choice_among_alternatives() -> None:
    small, large = s.NumberNode("u8", "little"), s.NumberNode("u16", "little")
    switch = s.SwitchNode(Reference(("type",)), (s.SwitchCase("u8", 0, small), s.SwitchCase("u16", 1, large)), None)
    assert [s.choose(switch, {"type": code}) for code in (0, 1)] == [small, large]
    assert s.choose(replace(switch, default=small), {"type": 2}) == small
    assert s.choose(switch, {"type": 2}) == s.DerivedNode(None)  # construct then reads nothing


def test_an_array_that_holds_itself_is_read_once() -> None:
    array = schema_of(GGUF).structs["array"]
    assert array.field("n").is_count
    nested = s.choose(array.field("elements").node, {"type": GGUF.metadata.types["array"]})
    assert nested == s.ListNode(Reference(("n",)), s.RefNode("array"))


@formats
def test_markdown_has_every_field_sentence_rule_and_type(format: Any) -> None:
    """By default with a sixth of the types. The pages of docs/ show all of them."""
    types = TypeTable("shown", *some(list(format.types), 6))
    schema = schema_of(format if FULL else replace(format, types=types))
    text = as_markdown(schema)
    payloads = {type_.payload for type_ in schema.types if type_.block}
    for name, struct in schema.structs.items():
        for part in struct.fields if name not in payloads else ():
            doc = part.doc.replace("|", "\\|")
            assert part.doc
            assert any(f"| `{part.name}` |" in line and doc in line for line in text.splitlines())
            assert all(f"`{part.name}`: never {fault.sentence}" in text for fault in part.refuses)
        assert all(f"- `{rule.field}`: {rule.sentence} (`{rule.id}`, " in text for rule in struct.rules)
    for type_ in schema.types:
        assert f"### {type_.type.name}, code {type_.code}\n\n" in text
        assert type_.type.formula is None or text.count(f"```py\ndef {type_.type.formula.__name__}(w, ") == 1


def test_definitions_of_scalar_functions() -> None:
    """Each comes with what it refers to, at the first type that does."""
    shown, found = set[str](), {}
    for type_ in schema_of(GGUF).types:
        parts = list(definitions(type_.type.formula, shown)) if type_.type.formula else []
        found[type_.type.name] = [part.removeprefix("def ").replace("(", " ").split()[0] for part in parts]
    assert {name: found[name] for name in ("Q8_0", "Q4_K", "Q5_K", "MXFP4")} == {
        "Q8_0": ["decode_q8_0"],
        "Q4_K": ["decode_q4_k", "scale_and_minimum"],
        "Q5_K": ["decode_q5_k"],
        "MXFP4": ["decode_mxfp4", "half_power", "e2m1_doubled", "DOUBLED"],
    }
    text = ['def decode_q8_0(w, d, qs):\n    """d * code."""\n    for i in range(32):\n        w[i] = d[0] * float32(qs[i])']
    assert list(definitions(GGML_TYPES["q8_0"].formula, set())) == text
    _, *others = definitions(GGML_TYPES["iq2_xs"].formula, set())
    assert [part.partition("(")[0] for part in others] == ["def even", "# IQ2_XS_GRID has 4096 numbers", "def sign"]


def test_bits_of_q4_0_and_of_plain_numbers() -> None:
    """Q4_0 has a half for all weights, then low nibbles 0 to 15 and high nibbles 16 to 31."""
    bits = weights_of_bits(GGML_TYPES["q4_0"], 32)
    assert bits == [tuple(range(32))] * 16 + [(i + high,) for i in range(16) for high in [0] * 4 + [16] * 4]
    assert weights_of_bits(GGML_TYPES["i64"], 2) == [(0,)] * 64 + [(1,)] * 64
    assert weights_of_bits(GLFT.types["q8_per_channel"], 2) == [(0, 1)] * 16 + [(0,)] * 8 + [(1,)] * 8


def test_bits_that_no_weight_needs() -> None:
    """The sums s in Q8_1 and bsums in Q8_K are for products of matrices alone."""
    assert set(weights_of_bits(GGML_TYPES["q8_1"], 32)[16:32]) == {()}
    assert set(weights_of_bits(GGML_TYPES["q8_k"], 256)[-256:]) == {()}


INDICES = [("iq1_s", 3), ("iq1_m", 12), ("iq2_xs", 10), ("iq2_s", 5), ("iq3_s", 13), ("tq1_0", 35), ("nvfp4", 2)]


@pytest.mark.parametrize(("name", "byte"), some_by_default(INDICES, 2))
def test_bits_of_indices_against_all_values_of_their_byte(name: str, byte: int) -> None:
    """Flips each bit of the byte, for all of its values, in random blocks."""
    type_ = GGML_TYPES[name]
    assert type_.block
    found: list[set[int]] = [set() for _ in range(8)]
    generator, every, nbytes = np.random.default_rng(0), np.arange(256), type_.nbytes([1, type_.least_row])
    for _ in range(40):
        blocks = np.tile(generator.integers(0, 256, nbytes, np.uint8), (256, 1))
        blocks[:, byte] = every
        weights = type_.decode({"blocks": blocks}, type_.least_row)
        for bit, seen in enumerate(found):
            changed = (weights != weights[every ^ 1 << bit]) & ~np.isnan(weights)
            seen.update(np.flatnonzero(changed.any(0)).tolist())
    assert [set(bit) for bit in weights_of_bits(type_, type_.least_row)[8 * byte :][:8]] == found


def test_types_may_have_the_names_of_structs() -> None:
    type_ = block_type("Header", 201, 32, Struct("d" / f16[1] * "scale", "codes" / i8[32] * "made-up codes"))
    schema = schema_of(replace(GGUF, types=TypeTable("own", *GGUF.types, type_)))
    assert (schema.types[-1].block, schema.types[-1].payload) == ("header_", "header_payload")
    first = {name: schema.structs[name].fields[0].name for name in ("header", "header_")}
    assert first == {"header": "magic", "header_": "d"}


def test_a_picture() -> None:
    fields = {0: "d", 2: "qs"}
    bits = [(0, 1, 2, 3)] * 16 + [(0,)] * 4 + [(2,)] * 4 + [(1,)] * 4 + [(3,)] * 4
    expected = """
           7   6   5   4   3   2   1   0
d      0 |              0-3              |
       1 |              0-3              |
qs     2 |       2       |       0       |
       3 |       3       |       1       |"""
    assert "\n" + "\n".join(picture(bits, fields)) == expected
    planes = [(weight,) for start in (0, 100, 200, 300) for i in range(4) for weight in [start + i] * 8]
    starts = [line.partition("|")[0].strip() for line in picture(planes, {})[1:]]
    assert starts == ["0", "1", "...", "4", "5", "...", "... by 4", "15"]
    rows = picture([bit for i in range(9) for bit in [(i, i + 9)] * 7 + [()]], {})
    assert rows[1] == "     0 | - |            0,9            |"
    assert [line.split("|")[0].strip() for line in rows[1:]] == ["0", "1", "...", "8"]


def test_finding_by_name() -> None:
    assert (find("GLFT"), find("gguf"), find("Q4_K")) == (GLFT, GGUF, GGML_TYPES["q4_k"])
    assert find("q8_per_channel") is GLFT.types["q8_per_channel"]
    with pytest.raises(OptionError, match=r"expected glft or gguf or safetensors, or one of f32, .*; found 'q4_l'"):
        find("q4_l")


def test_the_command() -> None:
    schema = schema_of(GGML_TYPES["q4_0"])
    for arguments, expected in ((["--as", "json"], as_json(schema)), ([], as_markdown(schema))):
        done = glft("schema", "q4_0", *arguments)
        assert (done.returncode, done.stdout) == (0, expected)
    with pytest.raises(OptionError, match="expected one of markdown, json, kaitai, c, found 'rust'"):
        write(schema, "rust")
