"""GGUF files: golden files, typed metadata, byte orders, unknown types."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glft_schema
from glft_schema import ClosedError, Container, File, FormatError, OptionError, TensorError, convert, load_file, save_file
from glft_schema.codec.typed_values import Typed
from glft_schema.files.parsing import check_rules, parse_source
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


def test_golden_files_hold_what_their_comments_say(file: File) -> None:
    assert dict(file.header) == {"magic": b"GGUF", "byte_order": file.header.byte_order, "version": 3}
    assert (file.header.n_tensors, file.header.n_kv, file.alignment) == (3, 6, 32)
    assert [f"{key}: {file.metadata.type_of(key)} = {value}" for key, value in file.metadata.items()] == [
        "g.name: string = tü",
        "g.flags: array[bool] = [True, False]",
        "g.empty: array[int16] = []",
        "g.nested: array[array[uint8],array[string]] = [[1, 2], ['x']]",
        "g.nan: float32 = nan",
        "g.big: uint64 = 1099511627777",
    ]
    assert [
        f"{t.name} {t.dims} {t.shape} {t.type.name} at {t.offset}, {t.position}: {t.nbytes}" for t in file.tensors.values()
    ] == [
        "w (32, 1) (1, 32) Q5_0 at 0, 352: 22",
        "v (2,) (2,) F32 at 32, 384: 8",
        "i () () I16 at 64, 416: 2",
    ]
    codes = [0x10, 2, *[0] * 13, 3, 1, 15, *[0] * 13, 0x14]  # 0x10 is the fifth bit, from qh
    numbers = {name: tensor.dequantize().tolist() for name, tensor in file.tensors.items()}
    assert numbers == {"w": [[(code - 16) / 2 for code in codes]], "v": [1.5, -2.0], "i": -300}
    assert (file.tensors["v"][1], file.tensors["w"][0, 31]) == (-2.0, 2.0)


def test_golden_files_build_back_and_are_one_another_swapped() -> None:
    little, big = (Container.parse(golden(f"gguf_{order}")) for order in ORDERS)
    for file, other in ((little, big), (big, little)):
        assert Container.build(file) == file.source.view(0, file.nbytes)
        swapped = Container.build({"format": "GGUF", **file.regions, "header": {"byte_order": other.header.byte_order}})
        assert swapped == other.source.view(0, other.nbytes)
    assert little != big


def test_values_build_the_golden_file(file: File) -> None:
    raw = bytes.fromhex("0038 01000080 10F2") + bytes(13) + b"\x43"
    built = Container.build(
        {
            "format": "GGUF",
            "header": {"byte_order": file.header.byte_order},
            "metadata": {
                "g.name": "tü",
                "g.flags": [True, False],
                "g.empty": Typed([], "array[int16]"),
                "g.nested": [Typed([1, 2], "array[uint8]"), ["x"]],
                "g.nan": np.frombuffer(bytes.fromhex("0100a07f"), "<f4")[0],
                "g.big": 2**40 + 1,
            },
            "tensor_infos": [
                {"name": "w", "dims": [32, 1], "dtype": "q5_0"},
                {"name": "v", "dims": [2], "dtype": 0},
                {"name": "i", "dims": [], "dtype": GGML_TYPES["I16"]},
            ],
            "data": {
                "w": {"blocks": torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(1, 1, 22)},
                "v": {"weights": torch.tensor([1.5, -2.0])},
                "i": {"weights": torch.tensor(-300, dtype=torch.int16)},
            },
        }
    )
    assert built == golden(f"gguf_{file.header.byte_order}")


def test_values_of_a_closed_file_are_refused() -> None:
    with Container.parse(golden("gguf_little")) as file:
        metadata = file.metadata
        names = metadata.stored_value("g.nested").value[1].value
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
    path, header = tmp_path / "model.gguf", {"version": version, "byte_order": order}
    written = save_file(tensors, path, {"general.architecture": "toy"}, schemes={"*weight": "q8_0"}, header=header)
    assert [f"{tensor.name}: {tensor.type.name} {tensor.note or ''}" for tensor in written] == [
        "w.weight: Q8_0 ",
        "h: F16 ",
        "b: BF16 ",
        "d: F64 ",
        "i: I64 ",
        "n.weight: F32 not q8_0: it has fewer than two dims, and no scheme selects it by its full name",
        "u: I16 uint8 widened to I16, exactly",
        "f: I8 bool widened to I8, exactly",
    ]
    with glft_schema.open(path) as file:
        assert (file.header.version, file.header.byte_order) == (version, order)
        found = {finding.rule for finding in check_rules(file, "spec")}
        assert found == {"gguf-quantization-version"} | ({"gguf-big-endian"} if order == "big" and version < 3 else set())
        assert {position % 32 for position in (file.nbytes, *(tensor.position for tensor in file.tensors.values()))} == {0}
    rounded = torch.from_numpy(GGML_TYPES["Q8_0"].round_trip(tensors["w.weight"], "w"))
    expected = tensors | {"w.weight": rounded, "u": tensors["u"].short(), "f": tensors["f"].char()}
    torch.testing.assert_close(load_file(path), expected, rtol=0, atol=0)


@pytest.mark.parametrize("order", ORDERS)
def test_slices_read_only_the_blocks_they_need(order: str) -> None:
    infos = [Info(b"w", [256, 4, 3], reference.Q8_0, bytes(range(256)) * 102)]  # 3 x 4 rows of 8 blocks of 34 bytes
    source = RecordingSource(reference.File([], infos, order="<" if order == "little" else ">").bytes())
    tensor = parse_source(source).tensors["w"]
    whole = tensor.dequantize()
    for index, first, blocks in (((2, 1, 40), 8 * 9 + 1, 1), ((1,), 8 * 4, 8 * 4), ((0, 3, slice(30, 70)), 8 * 3, 3)):
        source.asked.clear()
        assert torch.equal(tensor[index], whole[index])
        assert source.asked == [(tensor.position + 34 * first, 34 * blocks)]


def test_the_fields_of_blocks(tmp_path: Path) -> None:
    weights = torch.randn(2, 64)
    save_file({"w": weights, "f": torch.ones(2)}, tmp_path / "model.gguf", {}, schemes={"w": "q4_1"})
    with glft_schema.open(tmp_path / "model.gguf") as file:
        tensor = file.tensors["w"]
        fields = {name: (field.shape, field.dtype) for name, field in tensor.fields.items()}
        assert fields == {"d": ((4, 1), np.float16), "m": ((4, 1), np.float16), "qs": ((4, 16), np.uint8)}
        assert np.array_equal(tensor.fields["m"].flatten(), weights.reshape(4, 32).amin(1).half())
        assert file.tensors["f"].fields["weights"].tolist() == [1, 1]


def test_dtypes_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_file({"w": torch.randn(2, 64)}, path, {}, schemes={"w": "q4_1"})
    with glft_schema.open(path) as file:
        tensor = file.tensors["w"]
        assert (tensor.get_shape(), tensor.get_dtype()) == ([2, 64], "Q4_1")
        for found in (
            tensor.dequantize("bfloat16"),
            file.get_tensor("w", "torch.bfloat16"),
            tensor.read(..., dtype="bfloat16"),
        ):
            assert torch.equal(found, tensor.dequantize(torch.bfloat16))
    for dtype in ("bfloat17", "Tensor", 7):
        problem = f"^expected a dtype of torch, such as torch.float16 or 'float16', found {dtype!r}$"
        with pytest.raises(OptionError, match=problem):
            load_file(path, dtype=dtype)


def test_alignment_is_stated_and_kept_to(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_file({"a": torch.zeros(1), "b": torch.zeros(3)}, path, format="GGUF", alignment=256)
    with glft_schema.open(path) as file:
        assert (file.alignment, file.metadata, file.nbytes) == (256, {"general.alignment": 256}, 768)
        assert file.metadata.type_of("general.alignment") == "uint32"
        assert [tensor.position % 256 for tensor in file.tensors.values()] == [0, 0]
        assert [finding.rule for finding in check_rules(file, ("spec", "ggml"))] == ["gguf-architecture"]
    with pytest.raises(FormatError, match=r"expected a power of two for general.alignment, found 24"):
        save_file({"a": torch.zeros(1)}, path, alignment=24)
    save_file({"a": torch.zeros(1)}, path, alignment=24, rules=["spec"])
    with glft_schema.open(path) as file:
        assert [finding.rule for finding in check_rules(file, "ggml")] == ["gguf-alignment-power"]


UNKNOWN = reference.File(
    [],
    [Info(b"a", [5], 200, b"abcde", 0), Info(b"b", [2], I8, b"xy", 32), Info(b"c", [9, 9], 201, b"", 64)],
    b"abcde".ljust(32, b"\1") + b"xy" + bytes(30) + b"z",
).bytes()


ADD_IT = "type 200 is unknown; add it with glft_schema.types.register_type"


def test_a_tensor_of_an_unknown_type_keeps_its_bytes() -> None:
    file = Container.parse(UNKNOWN)
    a, b, c = file.tensors.values()
    assert (a.type.name, a.type.code, a.nbytes, bytes(a.raw)) == ("type 200", 200, 32, b"abcde".ljust(32, b"\1"))
    assert (b.dequantize().tolist(), c.nbytes, bytes(c.raw)) == ([120, 121], 1, b"z")
    for access in (a.dequantize, lambda: a.payload, lambda: a[0], lambda: list(a.pieces("big"))):
        with pytest.raises(TensorError, match=f"tensor 'a': {ADD_IT}"):
            access()
    assert pickle.loads(pickle.dumps(a.type)) == a.type != c.type
    with pytest.raises(FormatError, match="expected a type of known size, found type 200"):
        a.type.nbytes([1])


def test_unknown_types_are_copied_if_possible(tmp_path: Path) -> None:
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    source.write_bytes(UNKNOWN)
    assert [(tensor.copied, tensor.nbytes) for tensor in convert(source, out)] == [(True, 32), (True, 2), (True, 1)]
    with glft_schema.open(out) as file:
        payloads = [bytes(file.tensors[name].raw) for name in "ac"]
        assert payloads == [b"abcde".ljust(32, b"\1"), b"z" + bytes(31)]  # of unknown size: it includes the padding
    first, *_ = convert(source, out, schemes={"*": "i16"})
    assert (first.type.name, first.note) == ("type 200", ADD_IT)
    glft = tmp_path / "out.glft"
    for target, options in ((out, {"schemes": {"a": "q8_0"}}), (glft, {}), (out, {"header": {"byte_order": "big"}})):
        with pytest.raises(TensorError, match=f"tensor 'a': .*{ADD_IT}"):
            convert(source, target, **options)


def test_unknown_types_are_built_from_bytes() -> None:
    a, b = {"name": "a", "dims": [3], "dtype": 77}, {"name": "b", "dims": [1], "dtype": OpaqueType.of(78)}
    file = build(tensor_infos=[a, b], data={"a": b"abc", "b": memoryview(b"defg")})
    assert [bytes(tensor.raw).rstrip(b"\0") for tensor in file.tensors.values()] == [b"abc", b"defg"]
    for change, payload, problem in (
        *(({}, payload, "data -> 'a': expected a payload of bytes, found") for payload in (None, 5, {})),
        *(({"dtype": dtype}, b"", "tensor_infos -> 0 -> dtype: expected a ggml type") for dtype in ([1], "q4_x")),
    ):
        with pytest.raises(FormatError, match=problem):
            build(tensor_infos=[{**a, **change}], data={"a": payload})


def test_huge_dims_beside_a_zero_take_no_time() -> None:
    for code, dims in ((reference.Q4_0, [0, 1 << 50]), (F32, [0, 1 << 58]), (F32, [1 << 58, 0])):
        tensor = Container.parse(reference.File([], [Info(b"w", dims, code)]).bytes()).tensors["w"]
        assert tensor.dequantize(torch.bfloat16).shape == tuple(reversed(dims))
        assert tensor.type.round_trip(tensor.dequantize(), "w").size == 0


ROW = {"name": "a", "dims": [1, 2], "dtype": 0}


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({"metadata": [1]}, "metadata: expected a mapping of keys to values, found [1]"),
        ({"header": {"byte_order": "middle"}}, "header -> byte_order: expected 'little' or 'big', found 'middle'"),
        ({"header": {"version": 4}}, "header -> version: expected 1, 2 or 3, found 4"),
        ({"padding": 3}, "padding: expected bytes, found 3"),
        ({"alignment": 64}, "alignment: expected 32 (computed from the other fields), found 64"),
        ({"tensor_infos": [{**ROW, "shape": [1, 2]}]}, "shape: expected [2, 1] (computed from the other fields), found [1, 2]"),
    ],
)
def test_values_that_are_not_a_file(regions: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        build(**regions, data={"a": bytes(8)})
    assert message in str(caught.value)


def test_padding_of_another_length_becomes_zeros() -> None:
    stored = reference.File([], [Info(b"w", [1], F32, bytes(4))], padding=b"\1" * 7).bytes()
    file = Container.parse(stored)
    assert (file.padding, Container.build(file)) == (b"\1" * 7, stored)
    longer = build(**{**file.regions, "metadata": {"k": "longer"}})
    assert (any(longer.padding), longer.metadata) == (False, {"k": "longer"})
