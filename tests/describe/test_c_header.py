"""The C header, compiled: layouts, codes, tables and payload sizes match the declarations."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from construct import Default, this

from glft_schema.codec.numbers import Flags, Picked, f16, i64, u8, u32, u64
from glft_schema.codec.predicates import meets
from glft_schema.codec.rules import Rule
from glft_schema.codec.structs import Count, Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.describe.as_c import as_c
from glft_schema.describe.schema import schema_of
from glft_schema.errors import FormatError
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
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
FORMATS = [GLFT, GGUF, SAFETENSORS]
DESCRIBED = [*FORMATS, GLFT.types["q4_per_group_64"], *(GGML_TYPES[name] for name in ("q4_k", "iq1_m", "bf16"))]

by_format = pytest.mark.parametrize("format", FORMATS, ids=lambda described: described.name)
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@cache
def header_of(described: Format | TensorType) -> str:
    return as_c(schema_of(described))


def compiled(folder: Path, compiler: str, *units: str) -> Path:
    """Compiles translation units into a program, without a warning."""
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"needs a compiler of {compiler}, {COMPILERS[compiler][0]}")
    paths = [folder / f"unit{i}.c" for i in range(len(units))]
    for path, unit in zip(paths, units, strict=True):
        path.write_text(unit, "utf-8")
    command = [*COMPILERS[compiler], *STRICT, "-o", folder / "program", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "program"


def run(folder: Path, header: str, body: str, compiler: str = "C99") -> list[str]:
    """Compiles and runs `body` with the header; returns the lines that it prints."""
    (folder / "schema.h").write_text(header, "utf-8")
    includes = "#include <inttypes.h>\n#include <stdio.h>\n#include <string.h>\n" + '#include "schema.h"\n'
    program = compiled(folder, compiler, f"{includes}int main(void) {{\n{body}\nreturn 0; }}\n")
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def structs_of(header: str) -> dict[str, list[str]]:
    """Returns the members of each struct in a header."""
    bare = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    structs = re.findall(r"^struct (\w+) \{(.*?)^\};", bare, re.MULTILINE | re.DOTALL)
    return {name: re.findall(r"(\w+)(?:\[\d+\])*;", body) for name, body in structs}


def layout_of(name: str, struct: Any) -> str:
    """Returns the size of a construct and the offsets of its fields."""
    words, at = [], 0
    for field in struct.subcons:
        if field.name:
            words += [field.name, str(at)]
            at += field.sizeof()
    return " ".join([name, str(at), *words])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_headers_compile_twice_in_a_unit_and_link(tmp_path: Path, compiler: str) -> None:
    """Functions that a unit does not call cause no warning."""
    units = []
    for i, described in enumerate(DESCRIBED):
        (tmp_path / f"{i}.h").write_text(header_of(described), "utf-8")
        units.append(f'#include "{i}.h"\n#include "{i}.h"\nint unit{i}(void);\nint unit{i}(void) {{ return 0; }}\n')
    both = '#include "0.h"\n#include "1.h"\nint one(void);\n'
    units.append(f"{both}int one(void) {{ return gguf_dequantize(99, 1, 1, 0, 0); }}\n")
    units.append(f"{both}int main(void) {{ return one() + glft_dequantize(9, 1, 1, 0, 0); }}\n")
    subprocess.run([compiled(tmp_path, compiler, *units)], check=True)


LAYOUTS: list[tuple[Format | TensorType, str]] = [
    (
        GLFT,
        """glft_header 16 magic 0 version 4 n_tensors 8 metadata_len 12
glft_descriptor_before_name 2 name_len 0
glft_descriptor_after_name 1 n_dims 0
glft_descriptor_after_dims 9 dtype 0 offset 1""",
    ),
    (
        GGUF,
        """gguf_header_if_version_is_1 16 magic 0 version 4 n_tensors 8 n_kv 12
gguf_header_unless_version_is_1 24 magic 0 version 4 n_tensors 8 n_kv 16
gguf_array_before_elements_if_version_is_1 8 type 0 n 4
gguf_array_before_elements_unless_version_is_1 12 type 0 n 4
gguf_key_value_before_key_if_version_is_1 4 key_len 0
gguf_key_value_before_key_unless_version_is_1 8 key_len 0
gguf_key_value_after_key 4 type 0
gguf_tensor_info_before_name_if_version_is_1 4 name_len 0
gguf_tensor_info_before_name_unless_version_is_1 8 name_len 0
gguf_tensor_info_after_name 4 n_dims 0
gguf_tensor_info_after_dims 12 dtype 0 offset 4
"""
        + "\n".join(layout_of(f"gguf_{type_.scheme}", type_.block) for type_ in GGML_TYPES if type_.block),
    ),
    (SAFETENSORS, "safetensors_header 8 length 0"),
    (GGML_TYPES["iq1_m"], layout_of("iq1_m", GGML_TYPES["iq1_m"].block)),
]


@pytest.mark.parametrize(("described", "expected"), LAYOUTS, ids=lambda value: getattr(value, "name", ""))
def test_layouts(tmp_path: Path, described: Format | TensorType, expected: str) -> None:
    header, body = header_of(described), []
    for struct, members in structs_of(header).items():
        numbers = "".join(f", (int)offsetof(struct {struct}, {member})" for member in members)
        words = "".join(f" {member} %d" for member in members)
        body.append(f'printf("{struct} %d{words}\\n", (int)sizeof(struct {struct}){numbers});')
    assert sorted(run(tmp_path, header, "\n".join(body))) == sorted(expected.splitlines())


def test_texts() -> None:
    assert '#define GGUF_HEADER_MAGIC "GGUF"' in header_of(GGUF)
    assert "tensor_info, an object in the JSON text. Only this comment describes its values:" in header_of(SAFETENSORS)


@by_format
def test_codes_and_names(tmp_path: Path, format: Format) -> None:
    schema, body, expected = schema_of(format), [], []
    for name, table in schema.tables.items():
        enum = name if name.startswith(format.name.lower()) else f"{format.name.lower()}_{name}"
        for i, type_ in enumerate(table):
            code = i if format is SAFETENSORS else type_.code  # files have names
            body.append(f'printf("%d %s\\n", {enum.upper()}_{type_.name.upper()}, {enum}_name({code}));')
            expected.append(f"{code} {type_.name}")
        body.append(f'printf("%d\\n", {enum}_name(1000) == NULL);')
        expected.append("1")
    assert run(tmp_path, as_c(schema), "\n".join(body)) == expected


def test_table_of_tensor_types(tmp_path: Path) -> None:
    body = """
    #define ROW(identifier, code, name, weights, bytes) printf("%d %s %d %d\\n", code, name, weights, bytes);
    GGUF_TENSOR_TYPES(ROW)"""
    names = {type_.code: type_.name for type_ in GGUF.types}
    expected = [f"{code} {names[code]} {weights} {nbytes}" for code, (weights, nbytes) in gguf_reference.BLOCKS.items()]
    assert run(tmp_path, header_of(GGUF), body) == expected


SHAPES = [(1, 1), (1, 32), (3, 64), (5, 96), (2, 256), (7, 768), (49152, 576), (1, 2**31), (2**20, 2**20), (2**31, 2**31)]
SHAPES += [(2**32, 2**32), (2**40, 2**30), (2**31, 2**30 + 1), (2**60, 64), (2**60, 256), (2**63, 512), (3, 2**63)]
EMPTY = [(0, 5), (5, 0), (NO_SIZE, 0), (0, NO_SIZE)]  # of types without rules


@pytest.mark.parametrize("described", [*FORMATS, GGML_TYPES["q4_k"], GGML_TYPES["bf16"]], ids=lambda described: described.name)
def test_bytes_of_payloads(tmp_path: Path, described: Format | TensorType) -> None:
    types = [described] if isinstance(described, TensorType) else list(described.types)
    prefix, calls = described.name.lower(), dict[str, int]()
    for type_ in types:
        code = types.index(type_) if described is SAFETENSORS else type_.code
        for out, columns in SHAPES + EMPTY * (type_.name in ("F32", "F16")):
            weights = 2 * columns if type_.name == "F4" else columns  # of which torch counts halves
            if weights >= 2**64:
                continue
            try:
                bits = 6 * out * columns if type_.name.startswith("F6") else 0  # C counts them in 64 bits
                nbytes = min(type_.nbytes([out, columns]) if bits < 2**64 else NO_SIZE, NO_SIZE)
            except FormatError:
                nbytes = NO_SIZE
            calls[f"payload_size({code}, {out}ull, {weights}ull)"] = nbytes
        for name, (at, _) in list(type_.field_spans([6, 128 * 64]).items())[1:]:
            calls[f"{type_.scheme}_{name}_at(6, {128 * 64})"] = at
    if described is SAFETENSORS:
        calls["payload_size(SAFETENSORS_TYPE_F4, 3, 5)"] = NO_SIZE
    calls["payload_size(1000, 1, 1)"] = NO_SIZE
    body = "".join(f'printf("%" PRIu64 "\\n", {prefix}_{call});\n' for call in calls)
    body += f'printf("%d\\n", {prefix.upper()}_NO_SIZE == UINT64_MAX);'
    assert [int(line) for line in run(tmp_path, header_of(described), body)] == [*calls.values(), 1]


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
    names = [f"struct_{a}_magic_is_1_{b}_raw_is_above_3" for a in ("if", "unless") for b in ("if", "unless")]
    structs = structs_of(header)
    fields = "point: x new_", *(f"{name}: magic raw point a b int_" for name in names), "made__up_____d: class_ qs"
    assert [f"{name}: {' '.join(members)}" for name, members in structs.items()] == [f"made_up_{struct}" for struct in fields]
    body = "".join(f'printf("%d\\n", (int)sizeof(struct {name}));' for name in structs)
    body += r"""
    printf("%d %d\n", MADE_UP_STRUCT_MAGIC == UINT64_MAX / (1 << 24) + 1, (int)MADE_UP_STRUCT_RAW);
    #define ROW(identifier, code, name, weights, bytes) printf("%s %d %d\n", name, weights, bytes);
    MADE_UP_TENSOR_TYPES(ROW)
    float w[16]; uint8_t block[10] = {0, 0, 7, 250};
    int written = made_up_dequantize(77, 1, 16, block, w);
    printf("%d %d %d\n", written, (int)w[0], (int)w[9]);"""
    sizes = [14, *(8 + 4 + 14 + a + b + 4 for a in (1, 8) for b in (1, 4)), 10]
    expected = [*map(str, sizes), "1 7", 'made "up" \\ %d 16 10', "1 14 509"]
    assert run(tmp_path, header, body, compiler) == expected


def test_names_that_would_clash_get_numbers(tmp_path: Path) -> None:
    bits = Struct("b" / Default(Flags(u8, c=1), 2), "b_c" / Default(u8, 7), "B" / Default(u8, 3), title="x_a")
    points = (name / Struct("p" / Struct("v" / number)) for name, number in (("one", u8), ("two", u64)))
    header = as_c(schema_of(Struct("x" / Struct("a_b" / Default(u8, 1)), "y" / bits, *points), "t"))
    names = ["T_X_A_B", "T_X_A_B_2", "T_X_A_B_C", "T_X_A_B_C_2", "T_X_A_B_3", "sizeof(struct t_p)", "sizeof(struct t_p_)"]
    assert run(tmp_path, header, "".join(f'printf("%d\\n", (int){name});' for name in names)) == list("1227318")


def test_weights_that_are_refused(tmp_path: Path) -> None:
    """Without a write: the destination is NULL."""
    sizes = ["99, 1, 32", "GGUF_GGML_TYPE_Q4_0, 1, 33", f"GGUF_GGML_TYPE_Q1_0, 1ull << 55, {128 << 3}"]
    sizes += ["GGUF_GGML_TYPE_I8, 1ull << 31, 1ull << 31", "GGUF_GGML_TYPE_Q4_0, 0, 32"]
    body = "uint8_t block[99] = {0};\n" + "".join(f'printf("%d\\n", gguf_dequantize({size}, block, 0));\n' for size in sizes)
    assert run(tmp_path, header_of(GGUF), body) == ["0"] * 4 + ["1"]
    body = 'uint8_t block[99] = {0};\nprintf("%d\\n", glft_dequantize(GLFT_TYPE_Q8_PER_CHANNEL, 1, 1ull << 31, block, 0));'
    assert run(tmp_path, header_of(GLFT), body) == ["0"]
