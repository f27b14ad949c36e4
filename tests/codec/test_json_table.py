"""Tables in JSON, on a table of one text, two sizes and a pair of numbers."""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import pytest
from construct import this

from glft_schema import FormatError, LimitError, Limits, TruncatedError
from glft_schema.codec.construct_errors import our_errors
from glft_schema.codec.context import new_context
from glft_schema.codec.json_table import (
    IRREGULARITIES,
    MOST_LEVELS,
    IntegerAt,
    IntegersAt,
    JsonTable,
    JsonTexts,
    Key,
    TextAt,
    json_rules,
    nbytes_of_json,
)
from glft_schema.codec.numbers import u16
from glft_schema.codec.predicates import at_most
from glft_schema.codec.rules import SPEC, Rule
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.trace import Trace
from glft_schema.storage.cursor import Cursor
from glft_schema.storage.source import BytesSource
from tests.codec.assertions import build_error, parse_error

Row = Struct(
    "name" / Key(),
    "kind" / TextAt("kind"),
    "sizes" / IntegersAt("sizes", "dims", paired=this.kind == "half"),
    "first" / IntegerAt("span", 0, of=2),
    "last" / IntegerAt("span", 1, of=2),
    Rule("first", this.first, at_most(9), sets=(SPEC,)),
)
File = Struct(
    "header" / Struct("length" / Count(u16, nbytes_of_json("table"))),
    "table" / JsonTable(this.header.length, Row, reserved="meta", metadata="texts"),
    "texts" / JsonTexts("table"),
    *json_rules("json", "table", spec=" ".join(IRREGULARITIES)),
)
SIZES = "table -> 0 -> sizes"
BYTES = "since two numbers share a byte"
ONCE = "expected each name once, and none that is reserved"
A = '"a":{"kind":"k","sizes":[2,3],"span":[0,6]}'
ROW = {"name": "a", "kind": "k", "sizes": [2, 3], "first": 0, "last": 6}


def stored(text: str | bytes) -> bytes:
    text = text if isinstance(text, bytes) else text.encode()
    return len(text).to_bytes(2, "little") + text


def parsed(text: str | bytes, **params: Any) -> Any:
    with our_errors():
        return File._parse(Cursor(BytesSource(stored(text))), new_context(True, **params), "(parsing)")


def error_of(text: str | bytes, **params: Any) -> FormatError:
    with pytest.raises(FormatError) as caught:
        parsed(text, **params)
    return caught.value


def findings(text: str) -> list[tuple[str, str, str]]:
    """Returns path, what was found, and the bytes at the offset, of each broken rule."""
    found: list[Any] = []
    parsed(text, trace=Trace(), findings=found)
    expected = {f"json-{kind}": sentence for kind, sentence in IRREGULARITIES.items()}
    assert all(finding.problem.startswith(f"expected {expected[finding.rule]}, found ") for finding in found)
    bytes_at = [stored(text)[finding.offset : finding.offset + 7].decode("latin-1") for finding in found]
    return [(each.path, each.problem.rpartition(", found ")[2], at) for each, at in zip(found, bytes_at, strict=True)]


def test_a_table() -> None:
    file = parsed('{"meta":{"x":"1","y":""},' + A + ',"b":{"span":[1,2],"sizes":[],"kind":"é\\u00e9"}}')
    assert file.table == [ROW, {"name": "b", "kind": "éé", "sizes": [], "first": 1, "last": 2}]
    assert dict(file.texts) == {"x": "1", "y": ""}
    assert pickle.loads(pickle.dumps(file.table)) == file.table


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        " {\n} \t\r\n",
        '{"meta":null}',
        '{"meta":{}}',
        '{"meta":{"x":"1","x":"2"}}',
        '{"meta":{"z":"9"},"meta":{"x":"1"}}',
        "{" + A + "," + A + "}",
        '{"b" : {"span":[ 1,2 ], "more":[1.50,{"x":1,"x":2}], "sizes":[],"kind":"\\u00e9\\/"}, ' + A + "}   ",
        '{"a":["k",[2,3],[0,6]]}',
        '{"a":{"kind":{"k":null},"sizes":[2],"span":[0,18446744073709551615]}}',
    ],
)
def test_what_is_unchanged_is_built_as_it_was(text: str) -> None:
    file = parsed(text)
    assert File.build(file) == stored(text)
    assert File.build({"table": file.table, "texts": dict(file.texts)}) == stored(text)


def test_what_is_new_has_no_spaces_but_padding() -> None:
    text = '{"meta":{"ü":"\\n\\u001f\x7f\\""},' + A + "}"
    assert File.build({"table": [ROW], "texts": {"ü": '\n\x1f\x7f"'}}) == stored(text + " " * (-len(text.encode()) % 8))
    assert File.build({"table": ()}) == stored("{}      ")
    changed = parsed("{ " + A + "}")
    assert File.build({"table": changed.table, "texts": {"k": "v"}}) == stored('{"meta":{"k":"v"},' + A + "}" + " " * 2)
    built = File.build({"table": [{**changed.table[0], "kind": "j"}], "texts": changed.texts})
    assert built[2:].rstrip().decode() == "{" + A.replace('"k"', '"j"') + "}"


def test_the_last_of_several_entries_is_the_row() -> None:
    other = A.replace("[2,3]", "[7]")
    file = parsed("{" + A + ',"b":' + A[4:] + "," + other + "}")
    assert [(row.name, row.sizes) for row in file.table] == [("b", [2, 3]), ("a", [7])]
    assert dict(parsed('{"meta":{"x":"1","y":"2","x":"3"}}').texts) == {"x": "3", "y": "2"}


def test_halves_of_an_element() -> None:
    file = parsed('{"a":{"kind":"half","sizes":[3,4],"span":[0,6]}}')
    assert file.table[0].sizes == [3, 2]
    assert File.build({"table": [dict(file.table[0])]})[2:].rstrip() == file.table.stored


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "table: expected a JSON object, found []"),
        (b'{"\xff":1}', "table: expected UTF-8, found b'\\xff\":1}' (at byte 4)"),
        ('{"é":[0,{"x":[1e999]}]}', "table: expected a number that a 64-bit float can hold, found '1e999' (at byte 17)"),
        ('{"é":1e999,}', "table: expected JSON, found '}' (Expecting property name enclosed in double quotes) (at byte 14)"),
        ('{"\\udc00":1}', "table: expected pairs of surrogates, found '\\udc00' alone (at byte 3)"),
        ('{"a":5}', "table -> 0: expected an object with kind, sizes, span, found 5 (tensor 'a', at byte 7)"),
        ('{"a":["k",[]]}', "table -> 0: expected an object with kind, sizes, span, found ['k', []] (tensor 'a', at byte 7)"),
        ('{"a":{"kind":"k"}}', "table -> 0 -> sizes: expected a value for 'sizes', found none"),
        ("{" + A.replace('"k"', "7") + "}", "table -> 0 -> kind: expected text, found 7"),
        ("{" + A.replace("[2,3]", "[2,-0]") + "}", "table -> 0 -> sizes: expected integers, found [2, -0.0]"),
        ("{" + A.replace("[2,3]", f"[{1 << 64}]") + "}", f"{SIZES}: expected integers, found [{float(1 << 64)}]"),
        ("{" + A.replace("[0,6]", "[0,6,7]") + "}", "table -> 0 -> first: expected 2 integers, found [0, 6, 7]"),
        ("{" + A.replace('"k"', '"half"') + "}", f"{SIZES}: expected an even last integer, {BYTES}, found [2, 3]"),
        ('{"a":{"kind":1},' + A + "}", "table -> 'a' -> kind: expected text, found 1 (tensor 'a', at byte 7)"),
        ('{"meta":[]}', "texts: expected an object of texts, found [] (at byte 10)"),
        ('{"meta":{"x":null}}', "texts -> 0 -> value: expected text, found None (key 'x')"),
    ],
)  # fmt: skip
def test_bad_texts(text: str | bytes, message: str) -> None:
    assert str(error_of(text)) == message


def test_limits() -> None:
    for limits, where in (({"metadata": 1}, "table"), ({"objects": 0}, "table"), ({"dims": 1}, "table -> 0 -> sizes")):
        with Limits(**limits):
            for error in (error_of("{" + A + "}"), build_error(File, {"table": [ROW]})):
                assert (type(error), error.path) == (LimitError, where)
    assert type(error_of('{"a":' + "[" * 20_000 + "]" * 20_000 + "}")) is LimitError


def test_a_table_that_is_cut_off() -> None:
    error = parse_error(File, "0900 7B7D")
    assert (type(error), str(error)) == (TruncatedError, "table: expected 9 bytes, found 2 (at byte 2)")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"texts": 5, "table": []}, "texts: expected a mapping of text to text, found 5"),
        ({"texts": {"x": 5}, "table": []}, "texts: expected text, found 5"),
        ({"texts": {"\ud800": ""}, "table": []}, "texts: expected text that can be encoded as UTF-8, found '\\ud800'"),
        ({"table": "ab"}, "table: expected a sequence of rows, found 'ab'"),
        ({"table": [ROW, ROW]}, f"table -> 1 -> name: {ONCE}, found 'a' (tensor 'a')"),
        *(
            ({"table": [{**ROW, **changed}]}, f"table -> 0 -> {problem}")
            for changed, problem in (
                ({"name": "meta"}, f"name: {ONCE}, found 'meta' (tensor 'meta')"),
                ({"name": 5}, "name: expected text, found 5"),
                ({"kind": 5}, "kind: expected text, found 5"),
                ({"sizes": [-1]}, "sizes: expected an integer from 0 to 2**64 - 1, found -1"),
                ({"sizes": [True]}, "sizes: expected an integer from 0 to 2**64 - 1, found True"),
                ({"last": 1.0}, "last: expected an integer from 0 to 2**64 - 1, found 1.0"),
                ({"kind": "half", "sizes": ()}, f"sizes: expected a last integer to double, {BYTES}, found none"),
            )
        ),
    ],
)  # fmt: skip
def test_values_that_cannot_be_built(value: dict[str, Any], message: str) -> None:
    assert str(build_error(File, value)) == message


def test_positions() -> None:
    text = '{ "é":{"span":[10, 2],"x":0,"kind":"k","sizes":[ 4 ]},"meta":{"ü" :"v"},"c":["k",[],[3,4]]} '
    trace, whole = Trace(), stored(text)
    parsed(text, trace=trace)
    spans = {span.path: (whole[span.start : span.end].decode(), span.value) for span in trace.spans}
    assert spans.pop("table")[0] == text
    assert spans.pop("texts")[0] == ""
    assert spans == {
        "header": (whole[:2].decode(), {}),
        "header -> length": (whole[:2].decode(), len(text.encode())),
        "table -> 0 -> name": ('"é"', "é"),
        "table -> 0 -> kind": ('"k"', "k"),
        "table -> 0 -> sizes": ("[ 4 ]", [4]),
        "table -> 0 -> first": ("10", 10),
        "table -> 0 -> last": ("2", 2),
        "table -> 1 -> name": ('"c"', "c"),
        "table -> 1 -> kind": ('"k"', "k"),
        "table -> 1 -> sizes": ("[]", []),
        "table -> 1 -> first": ("3", 3),
        "table -> 1 -> last": ("4", 4),
        "texts -> 0 -> key": ('"ü"', "ü"),
        "texts -> 0 -> value": ('"v"', "v"),
    }


def test_irregularities() -> None:
    assert findings("{" + A + "}  ") == []
    assert findings('\n{"a":["k",[],[0,1]],"meta":null,"meta":{"x":"1","x":"2"},"a":["j",[],[0,1]]}\t ') == [
        ("table", r"b'\n'", '\n{"a":['),
        ("table -> padding", r"b'\t '", "\t "),
        ("table -> 'a'", "'a' again", '"a":["j'),
        ("table -> 'meta'", "'meta' again", '"meta":'),
        ("table -> 'meta'", "null", 'null,"m'),
        ("table -> 'meta' -> 'x'", "'x' again", '"x":"2"'),
        ("table -> 'a'", "an array", '["k",[]'),
        ("table -> 'a'", "an array", '["j",[]'),
    ]
    deep = MOST_LEVELS - 2
    arrays, objects = "[" * deep + "]" * deep, '{"x":' * deep + "[]" + "}" * deep
    text = '{"a":{"kind":"j","kind":"k","sizes":[],"span":[1,1],"y":' + arrays + ',"\\u00e9":' + objects + "}}"
    assert findings(text) == [
        ("table -> 'a' -> 'y'", "'y'", '"y":[[['),
        ("table -> 'a' -> 'é'", "'é'", '"\\u00e9'),
        ("table -> 'a' -> 'kind'", "'kind' again", '"kind":'),
        ("table -> 'a' -> 'é'", str(MOST_LEVELS + 1), '{"x":{"'),
    ]
    assert findings("{" + A.replace('"k"', '{"k":null}') + "}") == [("table -> 'a' -> 'kind'", "an object", '{"k":nu')]


def test_rules_of_rows_are_checked() -> None:
    found: list[Any] = []
    parsed("{" + A.replace("[0,6]", "[10,6]") + "}", trace=Trace(), findings=found)
    assert [(each.rule, each.path, each.offset) for each in found] == [
        ("first", "table -> 0 -> first", 2 + A.index("[0,6]") + 2)
    ]
    file = parsed('{"meta":null}')
    with (
        pytest.raises(FormatError, match=r"^table -> 'meta': expected an object in the reserved entry, found null$"),
        our_errors(),
    ):
        File._build(file, BytesIO(), new_context(False, rules=(SPEC,)), "(building)")
