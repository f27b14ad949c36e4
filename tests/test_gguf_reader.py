"""The facade beside gguf-py's own class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema as glft
from glft_schema import Typed
from glft_schema.formats.gguf import GGUF
from glft_schema.gguf_reader import GGMLQuantizationType, GGUFReader, GGUFValueType
from tests.families.conftest import any_fingerprint, libraries  # noqa: F401
from tests.families.tiny_folders import make_folder
from tests.golden import golden

gguf = pytest.importorskip("gguf", reason="needs gguf: pip install 'glft_schema[hf]'")


def assert_same_field(ours: Any, theirs: Any) -> None:
    assert (ours.offset, ours.name, list(ours.data), list(ours.types)) == (
        theirs.offset,
        theirs.name,
        list(theirs.data),
        list(theirs.types),
    )
    assert len(ours.parts) == len(theirs.parts)
    for mine, its in zip(ours.parts, theirs.parts, strict=True):
        assert (mine.dtype, mine.shape) == (its.dtype, its.shape)
        assert mine.tobytes() == its.tobytes()
    assert repr(ours.contents()) == repr(theirs.contents())  # of NaN, too


def assert_same(path: Path) -> None:
    ours, theirs = GGUFReader(path), gguf.GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        assert_same_field(ours.fields[name], field)
    assert (ours.byte_order, int(ours.endianess), ours.alignment, ours.data_offset) == (
        theirs.byte_order,
        int(theirs.endianess),
        theirs.alignment,
        theirs.data_offset,
    )
    assert len(ours.tensors) == len(theirs.tensors)
    for mine, its in zip(ours.tensors, theirs.tensors, strict=True):
        assert mine[:2] == its[:2]
        assert mine[3:6] == its[3:6]
        assert list(mine.shape) == list(its.shape)
        assert (mine.data.dtype, mine.data.shape) == (its.data.dtype, its.data.shape)
        assert mine.data.tobytes() == its.data.tobytes()
        assert_same_field(mine.field, its.field)


VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "na\u00efve",
    "a.uint8": Typed(1, "uint8"),
    "a.int8": Typed(-1, "int8"),
    "a.uint16": Typed(2, "uint16"),
    "a.int16": Typed(-2, "int16"),
    "a.uint32": Typed(3, "uint32"),
    "a.int32": Typed(-3, "int32"),
    "a.uint64": Typed(4, "uint64"),
    "a.int64": Typed(-4, "int64"),
    "a.float32": Typed(0.5, "float32"),
    "a.float64": Typed(0.25, "float64"),
    "a.bool": Typed(True, "bool"),
    "a.empty": "",
    "a.bools": Typed([True, False], "array[bool]"),
    "a.numbers": Typed([1.0, 2.0, 3.0], "array[float32]"),
    "a.texts": Typed(["x", "", "\u00e9t\u00e9"], "array[string]"),
    "a.none": Typed([], "array[uint16]"),
    "a.long": Typed(list(range(2000)), "array[int32]"),
}


def file_of_all(path: Path) -> Path:
    """Writes a file with every type of values and of tensors that gguf-py knows."""
    known = {member.name for member in gguf.GGMLQuantizationType}
    tensors, schemes = {}, {}
    for code, type_ in GGUF.types.by_code():
        name = f"t{code}"
        if type_.name in known and type_.name != "Q8_1" and not type_.needs_importance:
            if type_.exact and not hasattr(torch, type_.exact):
                continue
            dtype = getattr(torch, type_.exact or "float32")
            tensors[name] = torch.arange(512).view(2, 256).to(dtype)
            schemes[name] = type_.name.lower()
    glft.save_file(tensors, path, VALUES, schemes=schemes, rules=[])
    return path


def test_fields_parts_and_tensors(tmp_path: Path) -> None:
    assert_same(file_of_all(tmp_path / "m.gguf"))


def test_version_2(tmp_path: Path) -> None:
    path = file_of_all(tmp_path / "m.gguf")
    stored = bytearray(path.read_bytes())
    stored[4] = 2
    path.write_bytes(stored)
    assert_same(path)


@pytest.mark.parametrize("name", ["gguf_big", "gguf_little"])
def test_byte_orders(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(golden(name))
    assert_same(path)


def test_nested_arrays(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    values = {
        "a.b": Typed([[1, 2], [3]], "array[array[uint8]]"),
        "a.c": Typed([["x"], ["y", "zz"]], "array[array[string]]"),
        "a.d": Typed([[], [1]], "array[array[int16]]"),
    }
    glft.save_file({}, path, values, rules=[])
    assert_same(path)


@pytest.mark.parametrize("alignment", [8, 32, 1024])
def test_a_file_without_tensors_ends_before_its_data(alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_token_list(["a", "b", "c"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert path.stat().st_size % alignment
    assert_same(path)
    assert GGUFReader(path).data_offset % alignment == 0


def test_enumerations() -> None:
    assert {member.name: member.value for member in GGUFValueType} == {m.name: m.value for m in gguf.GGUFValueType}
    theirs = {member.name: member.value for member in gguf.GGMLQuantizationType}
    assert theirs.items() <= {member.name: member.value for member in GGMLQuantizationType}.items()
    assert GGMLQuantizationType["Q4_K"] in {gguf.GGMLQuantizationType.Q4_K}


def test_slices_and_lookups(tmp_path: Path) -> None:
    reader = GGUFReader(file_of_all(tmp_path / "m.gguf"))
    texts, numbers = reader.fields["a.texts"], reader.get_field("a.long")
    assert reader.get_field("x.y") is None
    assert numbers is not None
    assert (texts.contents(0), texts.contents(slice(1, 3)), numbers.contents(-1), numbers.contents(slice(3))) == (
        "x",
        ["", "\u00e9t\u00e9"],
        1999,
        [0, 1, 2],
    )
    assert [part.tobytes() for part in texts.parts[3:5]] == [texts.parts[3].tobytes(), texts.parts[4].tobytes()]
    assert reader.get_tensor(0) is reader.tensors[0]
    assert reader.tensors[0].field.contents() is None
    with pytest.raises(IndexError):
        texts.parts[len(texts.parts)]


def test_changes_in_place(tmp_path: Path) -> None:
    path = file_of_all(tmp_path / "m.gguf")
    GGUFReader(path, "c").fields["a.uint32"].parts[-1][0] = 7
    assert GGUFReader(path).fields["a.uint32"].contents() == 3
    GGUFReader(path, "r+").fields["a.uint32"].parts[-1][0] = 7
    assert glft.open(path).metadata["a.uint32"] == 7


@pytest.mark.parametrize(
    ("stored", "message"),
    [(b"", "header -> magic"), (b"GGUF\x03", "header -> byte_order"), (None, "header -> magic")],
)
def test_faults(stored: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if stored is None:
        glft.save_file({"x": torch.ones(2)}, tmp_path / "m.glft")
        path = tmp_path / "m.glft"
    else:
        path.write_bytes(stored)
    with pytest.raises(glft.FormatError, match=message):
        GGUFReader(path)


def test_transformers_reads_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loading code takes the class from gguf-py."""
    utils = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "m.gguf"
    glft.quantize(make_folder(tmp_path, "tiny-llama"), path, "Q8_0")
    model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(tmp_path, gguf_file=path.name))

    def loaded() -> dict[str, Any]:
        return utils.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)

    expected = loaded()
    with monkeypatch.context() as patch:
        patch.setattr("gguf.GGUFReader", GGUFReader)
        found = loaded()
    assert found.keys() == expected.keys()
    tensors, others = found.pop("tensors"), expected.pop("tensors")
    assert found == expected
    assert tensors.keys() == others.keys()
    for name, tensor in others.items():
        assert torch.equal(tensors[name], tensor), name


def test_diffusers_reads_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusers")
    from diffusers.models.model_loading_utils import load_gguf_checkpoint

    path = tmp_path / "m.gguf"
    weights = {name: torch.randn(8, 256, generator=torch.Generator().manual_seed(0)) for name in ("a", "b", "c")}
    glft.save_file(weights, path, {"general.architecture": "flux"}, schemes={"a": "q4_k", "b": "f16", "c": "f32"}, rules=[])
    expected = load_gguf_checkpoint(path)
    monkeypatch.setattr("gguf.GGUFReader", GGUFReader)
    found = load_gguf_checkpoint(path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (type(found[name]), found[name].dtype) == (type(tensor), tensor.dtype)
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8))
        assert getattr(found[name], "quant_type", None) == getattr(tensor, "quant_type", None)
