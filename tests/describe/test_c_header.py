"""The C header, compiled: layouts, codes, tables and payload sizes match the declarations."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as safetensors
import torch
from construct import Default, this

from glft_schema.codec.numbers import Picked, f16, i64, u8, u32, u64
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.as_c import as_c
from glft_schema.describe.schema import schema_of
from glft_schema.errors import FormatError
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT, Header
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.scalar.language import float32
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import TensorType
from tests.oracles import gguf_reference

COMPILERS = {
    "C99": ["cc", "-std=c99"],
    "C11": ["cc", "-std=c11"],
    "C++11": ["g++", "-std=c++11", "-x", "c++"],
    "clang": ["clang", "-std=c11"],
}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
NO_SIZE = 2**64 - 1
DESCRIBED: dict[str, Format | TensorType] = {
    "glft": GLFT,
    "gguf": GGUF,
    "safetensors": SAFETENSORS,
    "q4_per_group_64": GLFT.types["q4_per_group_64"],
}
DESCRIBED |= {name: GGML_TYPES[name] for name in ("q4_k", "iq1_m", "bf16")}

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@cache
def header_of(described: Format | TensorType) -> str:
    return as_c(schema_of(described))


def run(folder: Path, header: str, body: str, compiler: str = "C99", *arguments: str) -> list[list[str]]:
    """Compiles and runs `body` with the header; returns the tab-separated words of each line."""
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"needs a compiler of {compiler}, {COMPILERS[compiler][0]}")
    (folder / "schema.h").write_text(header, "utf-8")
    includes = "#include <inttypes.h>\n#include <stdio.h>\n#include <string.h>\n" + '#include "schema.h"\n#include "schema.h"\n'
    (folder / "program.c").write_text(f"{includes}int main(int argc, char **argv) {{ (void)argc, (void)argv;\n{body}\n}}\n")
    command = [*COMPILERS[compiler], *STRICT, "-o", str(folder / "program"), str(folder / "program.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    out = subprocess.run([folder / "program", *arguments], capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in out.splitlines()]


def structs_of(header: str) -> dict[str, list[str]]:
    """Returns the members of each struct in a header."""
    bare = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    structs = re.findall(r"^struct (\w+) \{(.*?)^\};", bare, re.MULTILINE | re.DOTALL)
    return {name: re.findall(r"(\w+)(?:\[\d+\])*;", body) for name, body in structs}


def layouts(folder: Path, header: str) -> dict[str, tuple[int, dict[str, int]]]:
    """Returns the size of each struct and the offsets of its members, from the compiler."""
    structs = structs_of(header)
    body = []
    for name, members in structs.items():
        numbers = [f"sizeof(struct {name})", *(f"offsetof(struct {name}, {member})" for member in members)]
        body += [f'printf("%d\\n", (int){number});' for number in numbers]
    printed = (int(number) for (number,) in run(folder, header, "\n".join(body)))
    return {name: (next(printed), {member: next(printed) for member in members}) for name, members in structs.items()}


def layout_of(struct: Any) -> tuple[int, dict[str, int]]:
    """Returns the size of a construct and the offsets of its fields."""
    offsets, at = {}, 0
    for field in struct.subcons:
        if field.name:
            offsets[field.name] = at
            at += field.sizeof()
    return at, offsets


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", DESCRIBED)
def test_the_header_compiles_without_a_warning(tmp_path: Path, name: str, compiler: str) -> None:
    assert run(tmp_path, header_of(DESCRIBED[name]), "return 0;", compiler) == []


BLOCKS = {f"gguf_{type_.scheme}": layout_of(type_.block) for type_ in GGML_TYPES if type_.block}
LAYOUTS: dict[str, tuple[Format | TensorType, dict[str, tuple[int, dict[str, int]]]]] = {
    "glft": (
        GLFT,
        {
            "glft_header": layout_of(Header),
            "glft_descriptor_before_name": (2, {"name_len": 0}),
            "glft_descriptor_after_name": (1, {"n_dims": 0}),
            "glft_descriptor_after_dims": (9, {"dtype": 0, "offset": 1}),
        },
    ),
    "gguf": (
        GGUF,
        BLOCKS
        | {
            "gguf_header_if_version_is_1": (16, {"magic": 0, "version": 4, "n_tensors": 8, "n_kv": 12}),
            "gguf_header_unless_version_is_1": (24, {"magic": 0, "version": 4, "n_tensors": 8, "n_kv": 16}),
            "gguf_array_before_elements_if_version_is_1": (8, {"type": 0, "n": 4}),
            "gguf_array_before_elements_unless_version_is_1": (12, {"type": 0, "n": 4}),
            "gguf_key_value_before_key_if_version_is_1": (4, {"key_len": 0}),
            "gguf_key_value_before_key_unless_version_is_1": (8, {"key_len": 0}),
            "gguf_key_value_after_key": (4, {"type": 0}),
            "gguf_tensor_info_before_name_if_version_is_1": (4, {"name_len": 0}),
            "gguf_tensor_info_before_name_unless_version_is_1": (8, {"name_len": 0}),
            "gguf_tensor_info_after_name": (4, {"n_dims": 0}),
            "gguf_tensor_info_after_dims": (12, {"dtype": 0, "offset": 4}),
        },
    ),
}
LAYOUTS["safetensors"] = SAFETENSORS, {"safetensors_header": (8, {"length": 0})}
LAYOUTS |= {name: (GGML_TYPES[name], {name: layout_of(GGML_TYPES[name].block)}) for name in ("iq1_m", "q6_k", "q4_1")}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path: Path, name: str) -> None:
    described, expected = LAYOUTS[name]
    assert len(BLOCKS) > 20
    assert layouts(tmp_path, header_of(described)) == expected


def test_a_file_is_read_through_the_structs(tmp_path: Path) -> None:
    """Needs a little-endian machine: numbers are copied as stored. test_c_reader reads GLFT."""
    file = tmp_path / "model.gguf"
    for version, struct in ((1, "if_version_is_1"), (3, "unless_version_is_1")):
        file.write_bytes(gguf_reference.File([(b"a", 0, 1), (b"b", 0, 2)], version=version).bytes())
        body = f"""
        struct gguf_header_{struct} header;
        FILE *stream = fopen(argv[1], "rb");
        if (!stream || !fread(&header, sizeof header, 1, stream)) return 1;
        printf("%d\\t%d\\t%d\\n", memcmp(header.magic, GGUF_HEADER_MAGIC, 4), (int)header.n_tensors, (int)header.n_kv);
        return 0;"""
        assert run(tmp_path, header_of(GGUF), body, "C99", str(file)) == [["0", "0", "2"]]


def test_a_file_with_json_is_read_through_the_struct(tmp_path: Path) -> None:
    """The C program finds the JSON text and the data; the payload's size is that of its type."""
    path, weights = tmp_path / "model.safetensors", torch.arange(6, dtype=torch.int16).view(2, 3)
    safetensors.save_file({"w": weights}, path)
    body = """
    struct safetensors_header header;
    char text[999] = {0};
    int16_t weights[6];
    uint64_t type = 0;
    FILE *stream = fopen(argv[1], "rb");
    if (!stream || !fread(&header, sizeof header, 1, stream) || !fread(text, header.length, 1, stream)) return 1;
    while (strcmp(safetensors_type_name(type), "I16")) type++;
    if (safetensors_payload_size(type, 2, 3) != sizeof weights || !fread(weights, sizeof weights, 1, stream)) return 1;
    printf("%s\\t%d\\t%d\\n", text, weights[5], fgetc(stream) == EOF);
    return 0;"""
    header = header_of(SAFETENSORS)
    ((text, last, is_end),) = run(tmp_path, header, body.replace("\\\\", "\\"), "C99", str(path))
    assert json.loads(text)["w"] == {"dtype": "I16", "shape": [2, 3], "data_offsets": [0, 12]}
    assert (last, is_end) == ("5", "1")
    assert "tensor_info, an object in the JSON text. Only this comment describes its values:" in header


@pytest.mark.parametrize("format", [GLFT, GGUF, SAFETENSORS], ids=["glft", "gguf", "safetensors"])
def test_codes_and_names(tmp_path: Path, format: Format) -> None:
    schema, body, expected = schema_of(format), [], []
    for name, table in schema.tables.items():
        enum = name if name.startswith(format.name.lower()) else f"{format.name.lower()}_{name}"
        for i, type_ in enumerate(table):
            code = i if format is SAFETENSORS else type_.code  # files have names
            body.append(f'printf("%d\\t%s\\n", {enum.upper()}_{type_.name.upper()}, {enum}_name({code}));')
            expected.append([str(code), type_.name])
        body.append(f'printf("%d\\t-\\n", {enum}_name(1000) == NULL);')
        expected.append(["1", "-"])
    assert run(tmp_path, as_c(schema), "\n".join(body)) == expected


@pytest.mark.parametrize("format", [GLFT, GGUF, SAFETENSORS], ids=["glft", "gguf", "safetensors"])
def test_table_of_tensor_types(tmp_path: Path, format: Format) -> None:
    body = f"""
    #define ROW(identifier, code, name, weights, bytes) printf("%d\\t%s\\t%d\\t%d\\n", code, name, weights, bytes);
    {format.name.upper()}_TENSOR_TYPES(ROW)"""
    rows = run(tmp_path, header_of(format), body)
    assert [row[1] for row in rows] == [type_.name for _, type_ in format.types.by_code()]
    found = {int(code): (int(weights), int(nbytes)) for code, _, weights, nbytes in rows}
    if format is GGUF:
        assert found == gguf_reference.BLOCKS
    elif format is SAFETENSORS:
        assert [8 * nbytes / weights for weights, nbytes in found.values()] == BITS
    else:
        assert found == {0: (1, 4), 1: (1, 2), 2: (1, 1), 3: (64, 32 + 2)}


# of the dtypes of safetensors, in the order of the library
BITS = [8, 4, 6, 6, *[8] * 7, *[16] * 4, *[32] * 3, *[64] * 4]
SHAPES = [(1, 1), (1, 32), (3, 64), (5, 96), (2, 256), (7, 768), (49152, 576), (1, 2**31), (2**20, 2**20), (2**31, 2**31)]
SHAPES += [(2**32, 2**32), (2**40, 2**30), (2**31, 2**30 + 1), (2**60, 64), (2**60, 256), (2**63, 512), (3, 2**63)]
EMPTY = [(0, 5), (5, 0), (NO_SIZE, 0), (0, NO_SIZE)]  # of types without rules


@pytest.mark.parametrize(
    "described", [GLFT, GGUF, SAFETENSORS, GGML_TYPES["q4_k"], GGML_TYPES["bf16"]], ids=lambda described: described.name
)
def test_bytes_of_payloads(tmp_path: Path, described: Format | TensorType) -> None:
    types = [described] if isinstance(described, TensorType) else list(described.types)
    prefix = (described.name).lower()
    body, expected = [], []
    for type_ in types:
        for out, columns in SHAPES + EMPTY * (type_.name in ("F32", "F16")):
            code = types.index(type_) if described is SAFETENSORS else type_.code
            weights = 2 * columns if type_.name == "F4" else columns  # of which torch counts halves
            call = f"{prefix}_payload_size({code}, {out}ull, {weights}ull)"
            if weights >= 2**64:
                continue
            body.append(f'printf("%" PRIu64 "\\n", {call});')
            try:
                bits = 6 * out * columns if type_.name.startswith("F6") else 0  # C counts them in 64 bits
                expected.append(min(type_.nbytes([out, columns]) if bits < 2**64 else NO_SIZE, NO_SIZE))
            except FormatError:
                expected.append(NO_SIZE)
        for i, (name, (at, _)) in enumerate(type_.field_spans([6, 128 * 64]).items()):
            if i:
                body.append(f'printf("%" PRIu64 "\\n", {prefix}_{type_.scheme}_{name}_at(6, {128 * 64}));')
                expected.append(at)
    if described is SAFETENSORS:
        body.append(f'printf("%" PRIu64 "\\n", {prefix}_payload_size({prefix.upper()}_TYPE_F4, 3, 5));')
        expected.append(NO_SIZE)
    body.append(f'printf("%" PRIu64 "\\n", {prefix}_payload_size(1000, 1, 1));')
    body.append(f'printf("%d\\n", {prefix.upper()}_NO_SIZE == UINT64_MAX);')
    assert [int(line) for (line,) in run(tmp_path, header_of(described), "\n".join(body))] == [*expected, NO_SIZE, 1]
    assert {NO_SIZE} < set(expected)


def times(unix, f32):
    """Has names of the header, of macros and of types, and ends as a line that goes on \\ ??/"""
    return 2 * unix + f32


def decode_made_up(w, qs):
    """the sum of two codes; */"""
    for i in range(16):
        root = times(qs[i % 8], i)
        w[i] = float32(root)


@cache
def made_up() -> Format:
    """Returns a format with keywords as names, two conditions, and comment delimiters in docs."""
    point = Struct("x" / u8[2, 3] * "*/ int no; /* ??/", "new" / i64 * "signed", title="point")
    block = Struct("class" / f16[1] * "scale", "qs" / u8[4, 2] * "codes")
    type_ = block_type('made "up" \\ %d', 77, 16, block, dequantize=decode_made_up)
    header = Struct(
        "magic" / Default(u64, 1 << 40) * "a large number",
        "raw" / Default(u32, 7) * "two\nlines",
        Rule("x", this.raw, meets(this.raw < 8, "less than eight */")),
        "point" / point * "a struct in a struct",
        "a" / Picked(this.magic == 1, u8, u64) * "one of two",
        "b" / Picked(this.raw > 3, u8, u32) * "one of two others",
        "int" / Count(u32, lambda at: 0) * "a keyword",
        title="struct",
    )
    return Format("Made up", (b"abcd",), TypeTable("made up", type_), Struct("head" / header * "all"))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_format_of_ones_own(tmp_path: Path, compiler: str) -> None:
    header = header_of(made_up())
    names = [f"made_up_struct_{a}_magic_is_1_{b}_raw_is_above_3" for a in ("if", "unless") for b in ("if", "unless")]
    structs = structs_of(header)
    assert list(structs) == ["made_up_point", *names, "made_up_made__up_____d"]
    assert structs["made_up_point"] == ["x", "new_"]
    assert structs[names[0]] == ["magic", "raw", "point", "a", "b", "int_"]
    body = "".join(f'printf("%d\\n", (int)sizeof(struct {name}));' for name in structs)
    body += 'printf("%d\\t%d\\n", MADE_UP_STRUCT_MAGIC == UINT64_MAX / (1 << 24) + 1, (int)MADE_UP_STRUCT_RAW);\n'
    body += '#define ROW(identifier, code, name, weights, bytes) printf("%s\\t%d\\t%d\\n", name, weights, bytes);\n'
    body += "MADE_UP_TENSOR_TYPES(ROW)\n"
    body += "float w[16]; uint8_t block[10] = {0, 0, 7, 250};\n"
    body += "int written = made_up_dequantize(77, 1, 16, block, w);\n"
    body += 'printf("%d\\t%d\\t%d\\n", written, (int)w[0], (int)w[9]);\n'
    sizes = [8 + 4 + 14 + a + b + 4 for a in (1, 8) for b in (1, 4)]
    expected = [
        ["14"],
        *([str(size)] for size in sizes),
        ["10"],
        ["1", "7"],
        ['made "up" \\ %d', "16", "10"],
        ["1", "14", "509"],
    ]
    assert run(tmp_path, header, body, compiler) == expected


@pytest.mark.parametrize("compiler", COMPILERS)
def test_two_headers_in_two_translation_units(tmp_path: Path, compiler: str) -> None:
    """They link, and functions that a unit does not call cause no warning."""
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"needs {COMPILERS[compiler][0]}")
    for format in (GGUF, GLFT):
        (tmp_path / f"{format.name.lower()}.h").write_text(header_of(format), "utf-8")
    include = '#include "gguf.h"\n#include "glft.h"\n'
    (tmp_path / "one.c").write_text(f"{include}int one(void);\nint one(void) {{ return gguf_dequantize(99, 1, 1, 0, 0); }}\n")
    (tmp_path / "two.c").write_text(
        f"{include}int one(void);\nint main(void) {{ return one() + glft_dequantize(9, 1, 1, 0, 0); }}\n"
    )
    command = [*COMPILERS[compiler], *STRICT, "-o", tmp_path / "program", tmp_path / "one.c", tmp_path / "two.c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    subprocess.run([tmp_path / "program"], check=True)


def test_weights_that_are_refused(tmp_path: Path) -> None:
    """Without a write: the destination is NULL."""
    calls = ["gguf_dequantize(99, 1, 32, block, 0)", "gguf_dequantize(GGUF_GGML_TYPE_Q4_0, 1, 33, block, 0)"]
    calls += [f"gguf_dequantize(GGUF_GGML_TYPE_Q1_0, 1ull << 55, {128 << 3}, block, 0)"]
    calls += ["gguf_dequantize(GGUF_GGML_TYPE_I8, 1ull << 31, 1ull << 31, block, 0)"]
    body = "".join(f'printf("%d\\n", {call});\n' for call in [*calls, "gguf_dequantize(GGUF_GGML_TYPE_Q4_0, 0, 32, block, 0)"])
    assert run(tmp_path, header_of(GGUF), f"uint8_t block[99] = {{0}};\n{body}") == [["0"]] * 4 + [["1"]]
    rows = "uint8_t block[99] = {0};\n" + 'printf("%d\\n", glft_dequantize(GLFT_TYPE_Q8_PER_CHANNEL, 1, 1ull << 31, block, 0));'
    assert run(tmp_path, header_of(GLFT), rows) == [["0"]]


def test_a_header_has_the_decoders_of_all_types() -> None:
    assert len(header_of(GGUF)) <= 200_000
    for format in (GGUF, GLFT):
        assert len(re.findall(r"^    case \d+: ", header_of(format).partition("_dequantize(uint64_t")[2], re.MULTILINE)) == len(
            list(format.types)
        )


def test_the_pages_example_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "other-languages.md"
    (program,) = re.findall(r"^```c\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "gguf.h").write_text(header_of(GGUF), "utf-8")
    (tmp_path / "example.c").write_text(program, "utf-8")
    subprocess.run(["cc", "-std=c99", *STRICT, "-o", tmp_path / "example", tmp_path / "example.c"], check=True)
    out = subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=True).stdout
    assert "Q4_K     256 weights in 144 bytes\n" in out
