"""GGUF files: golden files, typed metadata, byte orders, unknown types."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, File, FormatError, TensorError, convert, load_file, save_file
from glft_schema.codec.typed_values import Typed
from glft_schema.files.parsing import check_rules, parse_source
from glft_schema.formats.gguf import BUILT_IN_TYPES
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import OpaqueType
from tests.files.test_file import RecordingSource
from tests.golden import golden
from tests.oracles import gguf_reference as reference
from tests.oracles.gguf_reference import F32, I8, Info

ORDERS = ("little", "big")


@pytest.fixture(params=ORDERS)
def file(request: pytest.FixtureRequest) -> File:
    return Container.parse(golden(f"gguf_{request.param}"))


def build(**regions: object) -> File:
    return Container.parse(Container.build({"format": "GGUF", **regions}))


def test_golden_header_and_metadata(file: File) -> None:
    assert dict(file.header) == {"magic": b"GGUF", "byte_order": file.header.byte_order, "version": 3}
    assert (file.header.n_tensors, file.header.n_kv, file.alignment) == (3, 6, 32)
    nan = file.metadata["g.nan"]
    assert math.isnan(nan)
    assert {**file.metadata, "g.nan": None} == {
        "g.name": "tü",
        "g.flags": [True, False],
        "g.empty": [],
        "g.nested": [[1, 2], ["x"]],
        "g.nan": None,
        "g.big": 2**40 + 1,
    }
    assert [type(value) for value in file.metadata.values()] == [str, list, list, list, float, int]
    types = ["string", "array[bool]", "array[int16]", "array[array[uint8],array[string]]", "float32", "uint64"]
    assert [file.metadata.type_of(key) for key in file.metadata] == types


def test_golden_tensors(file: File) -> None:
    assert [(t.name, t.dims, t.shape, t.type.name, t.offset, t.position, t.nbytes) for t in file.tensors.values()] == [
        ("w", (32, 1), (1, 32), "Q5_0", 0, 352, 22),
        ("v", (2,), (2,), "F32", 32, 384, 8),
        ("i", (), (), "I16", 64, 416, 2),
    ]
    codes = [0x10, 2, *[0] * 13, 3, 1, 15, *[0] * 13, 0x14]  # 0x10 is the fifth bit, from qh
    assert file.tensors["w"].dequantize().tolist() == [[(code - 16) / 2 for code in codes]]
    assert file.tensors["v"].dequantize().tolist() == [1.5, -2.0]
    assert file.tensors["i"].dequantize() == torch.tensor(-300, dtype=torch.int16)
    assert file.tensors["v"][1] == -2.0
    assert file.tensors["w"][0, 31] == 2.0


def test_golden_files_build_back_and_are_one_another_swapped() -> None:
    little, big = (Container.parse(golden(f"gguf_{order}")) for order in ORDERS)
    for file, other in ((little, big), (big, little)):
        assert Container.build(file) == file.source.view(0, file.nbytes)
        swapped = Container.build({"format": "GGUF", **file.regions, "header": {"byte_order": other.header.byte_order}})
        assert swapped == other.source.view(0, other.nbytes)
    assert little != big


def test_values_build_the_golden_file(file: File) -> None:
    nan = np.frombuffer(bytes.fromhex("0100a07f"), "<f4")[0]
    raw = bytes.fromhex("0038 01000080 10F2") + bytes(13) + b"\x43"
    blocks = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(1, 1, 22)
    built = Container.build(
        {
            "format": "GGUF",
            "header": {"byte_order": file.header.byte_order},
            "metadata": {
                "g.name": "tü",
                "g.flags": [True, False],
                "g.empty": Typed([], "array[int16]"),
                "g.nested": [Typed([1, 2], "array[uint8]"), ["x"]],
                "g.nan": nan,
                "g.big": 2**40 + 1,
            },
            "tensor_infos": [
                {"name": "w", "dims": [32, 1], "dtype": "q5_0"},
                {"name": "v", "dims": [2], "dtype": 0},
                {"name": "i", "dims": [], "dtype": GGML_TYPES["I16"]},
            ],
            "data": {
                "w": {"blocks": blocks},
                "v": {"weights": torch.tensor([1.5, -2.0])},
                "i": {"weights": torch.tensor(-300, dtype=torch.int16)},
            },
        }
    )
    assert built == golden(f"gguf_{file.header.byte_order}")


def test_a_file_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(golden("gguf_little"))
    with glft_schema.open(path) as file, glft_schema.open(path, mmap=False) as unmapped:
        assert file == unmapped == pickle.loads(pickle.dumps(file)) == copy.deepcopy(file)
        assert dict(unmapped.metadata)["g.nested"] == file.metadata["g.nested"]
        assert "  g.name    string                             'tü'\n" in str(file)
        assert "Q5_0" in str(file)
        names, metadata = file.metadata.stored_value("g.nested").value[1].value, file.metadata
        assert repr(names) == "['x']"
    for access in (lambda: file.metadata, lambda: metadata["g.flags"], lambda: names[0], lambda: list(names)):
        with pytest.raises(ClosedError, match="is closed"):
            access()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_save_and_load(tmp_path: Path, order: str, version: int) -> None:
    tensors = {
        "w.weight": torch.randn(4, 64),
        "h": torch.randn(3).half(),
        "b": torch.randn(2, 2).bfloat16(),
        "d": torch.randn(2, dtype=torch.float64),
        "i": torch.arange(-3, 3),
        "n.weight": torch.randn(64),
        "u": torch.tensor([[250]], dtype=torch.uint8),
        "f": torch.tensor([True]),
    }
    path, metadata = tmp_path / "model.gguf", {"general.architecture": "toy"}
    header = {"version": version, "byte_order": order}
    written = save_file(tensors, path, metadata, schemes={"*weight": "q8_0"}, format="gguf", header=header)
    assert [tensor.type.name for tensor in written] == ["Q8_0", "F16", "BF16", "F64", "I64", "F32", "I16", "I8"]
    assert {tensor.name: tensor.note for tensor in written if tensor.note} == {
        "n.weight": "not q8_0: it has fewer than two dims, and no scheme selects it by its full name",
        "u": "uint8 widened to I16, exactly",
        "f": "bool widened to I8, exactly",
    }
    with glft_schema.open(path) as file:
        assert (file.header.version, file.header.byte_order) == (version, order)
        found = {finding.rule for finding in check_rules(file, "spec")}
        assert found == {"gguf-quantization-version"} | ({"gguf-big-endian"} if order == "big" and version < 3 else set())
        assert all(tensor.position % 32 == 0 for tensor in file.tensors.values())
        assert file.nbytes % 32 == 0
    loaded = load_file(path)
    for name, tensor in tensors.items():
        expected = torch.from_numpy(GGML_TYPES["Q8_0"].round_trip(tensor, name)) if name == "w.weight" else tensor
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].to(expected.dtype), expected)
        assert loaded[name].dtype == (expected.dtype if name not in "uf" else [torch.int16, torch.int8][name == "f"])


@pytest.mark.parametrize("order", ORDERS)
def test_slices_read_only_the_blocks_they_need(order: str) -> None:
    infos = [Info(b"w", [256, 4, 3], reference.Q8_0, bytes(range(256)) * 102)]  # 3 x 4 rows of 8 blocks of 34 bytes
    source = RecordingSource(reference.File([], infos, order="<" if order == "little" else ">").bytes())
    tensor = parse_source(source).tensors["w"]
    whole = tensor.dequantize()
    for index, first, nbytes in (
        ((2, 1, 40), 34 * (8 * 9 + 1), 34),
        ((1,), 34 * 8 * 4, 34 * 8 * 4),
        ((0, 3, slice(30, 70)), 34 * 8 * 3, 34 * 3),
    ):
        source.asked.clear()
        assert torch.equal(tensor[index], whole[index])
        assert source.asked == [(tensor.position + first, nbytes)]


def test_the_fields_of_blocks(tmp_path: Path) -> None:
    weights = torch.randn(2, 64)
    save_file({"w": weights, "f": torch.ones(2)}, tmp_path / "model.gguf", {}, schemes={"w": "q4_1"})
    with glft_schema.open(tmp_path / "model.gguf") as file:
        tensor = file.tensors["w"]
        fields = tensor.fields
        assert {name: (field.shape, field.dtype) for name, field in fields.items()} == {
            "d": ((4, 1), np.float16),
            "m": ((4, 1), np.float16),
            "qs": ((4, 16), np.uint8),
        }
        assert np.array_equal(fields["m"].flatten(), weights.reshape(4, 32).amin(1).half())
        assert (tensor.get_shape(), tensor.get_dtype()) == ([2, 64], "Q4_1")
        assert file.tensors["f"].fields["weights"].tolist() == [1, 1]
        found = (tensor.dequantize("bfloat16"), file.get_tensor("w", "torch.bfloat16"), tensor.read(..., dtype="bfloat16"))
        assert all(torch.equal(values, tensor.dequantize(torch.bfloat16)) for values in found)
        for dtype, text in (("bfloat17", "'bfloat17'"), ("Tensor", "'Tensor'"), (7, "7")):
            problem = f"^expected a dtype of torch, such as torch.float16 or 'float16', found {text}$"
            for read in (tensor.dequantize, lambda dtype: glft_schema.load_file(tmp_path / "model.gguf", dtype=dtype)):
                with pytest.raises(glft_schema.OptionError, match=problem):
                    read(dtype)


def test_alignment_is_stated_and_kept_to(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_file({"a": torch.zeros(1), "b": torch.zeros(3)}, path, format="GGUF", alignment=256)
    with glft_schema.open(path) as file:
        assert (file.alignment, file.metadata) == (256, {"general.alignment": 256})
        assert file.metadata.type_of("general.alignment") == "uint32"
        assert [tensor.position % 256 for tensor in file.tensors.values()] == [0, 0]
        assert (file.nbytes, check_rules(file, "ggml")) == (768, [])
        assert [finding.rule for finding in check_rules(file, "spec")] == ["gguf-architecture"]
    with pytest.raises(FormatError, match=r"expected a power of two for general.alignment, found 24"):
        save_file({"a": torch.zeros(1)}, path, format="gguf", alignment=24)
    save_file({"a": torch.zeros(1)}, path, format="gguf", alignment=24, rules=["spec"])
    with glft_schema.open(path) as file:
        assert [finding.rule for finding in check_rules(file, "ggml")] == ["gguf-alignment-power"]


def test_what_llama_cpp_would_refuse_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for tensors, metadata, message in (
        ({"n" * 64: torch.zeros(1)}, {}, "tensor_infos -> 0 -> name: expected at most 63 bytes"),
        ({"w": torch.zeros(1, 1, 1, 1, 1)}, {}, "tensor_infos -> 0 -> dims: expected at most 4"),
        ({}, {"k": [[1]]}, "metadata -> 0 -> value: expected no nested arrays"),
        ({}, {"No": 1}, "metadata -> 0 -> key: expected lower_snake_case segments joined by dots"),
    ):
        with pytest.raises(FormatError) as caught:
            save_file(tensors, path, metadata, format="gguf")
        assert message in str(caught.value)
        assert not path.exists()
        save_file(tensors, path, metadata, format="gguf", rules=["required"])
        path.unlink()


def test_tied_tensors_are_stored_apart(tmp_path: Path) -> None:
    weight = torch.randn(2, 2)
    written = save_file({"a": weight, "b": weight}, tmp_path / "model.gguf", format="gguf")
    assert [(tensor.nbytes, tensor.alias_of) for tensor in written] == [(16, None), (16, None)]


UNKNOWN = reference.File(
    [],
    [Info(b"a", [5], 200, b"abcde", 0), Info(b"b", [2], I8, b"xy", 32), Info(b"c", [9, 9], 201, b"", 64)],
    b"abcde".ljust(32, b"\1") + b"xy" + bytes(30) + b"z",
).bytes()


def test_a_tensor_of_an_unknown_type_keeps_its_bytes() -> None:
    file = Container.parse(UNKNOWN)
    a, b, c = file.tensors.values()
    assert (a.type.name, a.type.code, a.nbytes, bytes(a.raw)) == ("type 200", 200, 32, b"abcde".ljust(32, b"\1"))
    assert (b.dequantize().tolist(), c.nbytes, bytes(c.raw)) == ([120, 121], 1, b"z")
    problem = r"tensor 'a': type 200 is unknown; add it with glft_schema.types.register_type"
    for access in (a.dequantize, lambda: a.payload, lambda: a[0], lambda: list(a.pieces("big"))):
        with pytest.raises(TensorError, match=problem):
            access()
    assert Container.build(file) == UNKNOWN
    assert pickle.loads(pickle.dumps(a.type)) == a.type != c.type
    with pytest.raises(FormatError, match="expected a type of known size, found type 200"):
        a.type.nbytes([1])


def test_unknown_types_are_copied_if_possible(tmp_path: Path) -> None:
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    source.write_bytes(UNKNOWN)
    assert [(tensor.copied, tensor.nbytes) for tensor in convert(source, out)] == [(True, 32), (True, 2), (True, 1)]
    with glft_schema.open(out) as file:
        assert file.tensors["a"].raw == b"abcde".ljust(32, b"\1")
        assert bytes(file.tensors["c"].raw) == b"z" + bytes(31)  # its size is unknown: it includes the padding
    first, *_ = convert(source, out, schemes={"*": "i16"})
    assert (first.type.name, first.note) == ("type 200", "type 200 is unknown; add it with glft_schema.types.register_type")
    for target, options in (
        (out, {"schemes": {"a": "q8_0"}}),
        (tmp_path / "out.glft", {}),
        (out, {"header": {"byte_order": "big"}}),
    ):
        with pytest.raises(TensorError, match=r"tensor 'a': .*type 200 is unknown; add it"):
            convert(source, target, **options)


def test_unknown_types_are_built_from_bytes() -> None:
    infos = [{"name": "a", "dims": [3], "dtype": 77}, {"name": "b", "dims": [1], "dtype": OpaqueType.of(78)}]
    file = build(tensor_infos=infos, data={"a": b"abc", "b": memoryview(b"defg")})
    assert [bytes(tensor.raw).rstrip(b"\0") for tensor in file.tensors.values()] == [b"abc", b"defg"]
    for payload in (None, 5, {}):
        with pytest.raises(FormatError, match="data -> 'a': expected a payload of bytes, found"):
            build(tensor_infos=infos[:1], data={"a": payload})
    for dtype in ([1], "q4_x"):
        with pytest.raises(FormatError, match="tensor_infos -> 0 -> dtype: expected a ggml type"):
            build(tensor_infos=[{**infos[0], "dtype": dtype}], data={"a": b""})


def test_the_types_of_ggml_are_those_that_its_rule_knows() -> None:
    assert {type_.name for type_ in BUILT_IN_TYPES} >= {"F32", "BF16", "I64", "Q8_K", "NVFP4"}
    assert len(BUILT_IN_TYPES) == 35


def test_huge_dims_beside_a_zero_take_no_time() -> None:
    for code, dims in ((reference.Q4_0, [0, 1 << 50]), (F32, [0, 1 << 58]), (F32, [1 << 58, 0])):
        stored = reference.File([], [Info(b"w", dims, code)]).bytes()
        tensor = Container.parse(stored).tensors["w"]
        assert tensor.dequantize(torch.bfloat16).shape == tuple(reversed(dims))
        assert tensor.type.round_trip(tensor.dequantize(), "w").size == 0


def test_values_that_are_not_a_file() -> None:
    for regions, message in (
        ({"metadata": [1]}, "metadata: expected a mapping of keys to values, found [1]"),
        ({"header": {"byte_order": "middle"}}, "header -> byte_order: expected 'little' or 'big', found 'middle'"),
        ({"header": {"version": 4}}, "header -> version: expected 1, 2 or 3, found 4"),
        ({"header": {"n_kv": 3}}, "header -> n_kv: expected 0 (computed from the other fields), found 3"),
        ({"tensor_infos": [{"name": "a", "dims": [1], "dtype": 77}], "data": None}, "data -> 'a': expected a payload of bytes"),
        ({"padding": 3}, "padding: expected bytes, found 3"),
        (
            {"tensor_infos": [{"name": "a", "dims": [1, 2], "dtype": 0, "shape": [1, 2]}], "data": {"a": bytes(8)}},
            "shape: expected [2, 1] (computed from the other fields), found [1, 2]",
        ),
        ({"alignment": 64}, "expected only the regions header, metadata, tensor_infos, padding, data, found 'alignment'"),
        ({"tensor_infos": [{"name": "a", "dims": [1] * 65, "dtype": 0}]}, "dims: expected at most 64 (a limit of glft_schema)"),
        ({"tensor_infos": [{"name": 3, "dims": [1], "dtype": 0}]}, "tensor_infos -> 0 -> name: expected text, found 3"),
        (
            {"header": {"version": 1}, "tensor_infos": [{"name": "a", "dims": [1 << 32, 0], "dtype": 0}]},
            "tensor_infos -> 0 -> dims: expected a number in the range of u32, found 4294967296",
        ),
    ):
        with pytest.raises(FormatError) as caught:
            build(**regions)
        assert message in str(caught.value)


def test_padding_of_another_length_becomes_zeros() -> None:
    stored = reference.File([], [Info(b"w", [1], F32, bytes(4))], padding=b"\1" * 7).bytes()
    file = Container.parse(stored)
    assert (file.padding, Container.build(file)) == (b"\1" * 7, stored)
    longer = Container.parse(Container.build({"format": "GGUF", **file.regions, "metadata": {"k": "longer"}}))
    assert not any(longer.padding)
    assert longer.metadata == {"k": "longer"}
