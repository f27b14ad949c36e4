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


def field(found: Any) -> tuple[Any, ...]:
    parts = [(part.dtype, part.shape, part.tobytes()) for part in found.parts]
    return found.offset, found.name, [*found.data], [*found.types], parts, repr(found.contents())  # of NaN, too


def facts(reader: Any) -> list[Any]:
    """Returns all that a reader knows about a file."""
    head = reader.byte_order, int(reader.endianess), reader.alignment, reader.data_offset
    tensors = [
        (one[:2], [*one.shape], one[3:6], one.data.dtype, one.data.shape, one.data.tobytes(), field(one.field))
        for one in reader.tensors
    ]
    return [head, [(name, field(found)) for name, found in reader.fields.items()], tensors]


def assert_same(path: Path) -> None:
    assert facts(GGUFReader(path)) == facts(gguf.GGUFReader(path))


NUMBERS = {"uint8": 1, "int8": -1, "uint16": 2, "int16": -2, "uint32": 3, "int32": -3, "uint64": 4, "int64": -4}
VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "na\u00efve",
    **{
        f"a.{type_}": Typed(number, type_)
        for type_, number in {**NUMBERS, "float32": 0.5, "float64": 0.25, "bool": True}.items()
    },
    "a.empty": "",
    "a.bools": [True, False],
    "a.numbers": [1.0, 2.0, 3.0],
    "a.texts": ["x", "", "\u00e9t\u00e9"],
    "a.none": Typed([], "array[uint16]"),
    "a.long": list(range(2000)),
}


def file_of_all(path: Path) -> Path:
    """Writes a file with every type of values and of tensors that gguf-py knows."""
    known = {member.name for member in gguf.GGMLQuantizationType} - {"Q8_1"}
    types = [type_ for type_ in GGUF.types if type_.name in known and not type_.needs_importance]
    dtypes = {type_.scheme: getattr(torch, type_.exact or "float32", None) for type_ in types}
    schemes = {scheme: scheme for scheme, dtype in dtypes.items() if dtype}
    tensors = {scheme: torch.arange(512).view(2, 256).to(dtypes[scheme]) for scheme in schemes}
    glft.save_file(tensors, path, VALUES, schemes=schemes, format="gguf", rules=[])
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_fields_parts_and_tensors(version: int, path: Path) -> None:
    stored = bytearray(file_of_all(path).read_bytes())
    stored[4] = version
    path.write_bytes(stored)
    assert_same(path)


@pytest.mark.parametrize("name", ["gguf_big", "gguf_little"])
def test_byte_orders(name: str, path: Path) -> None:
    path.write_bytes(golden(name))
    assert_same(path)


def test_nested_arrays(path: Path) -> None:
    values = {
        "a.b": Typed([[1, 2], [3]], "array[array[uint8]]"),
        "a.c": Typed([["x"], ["y", "zz"]], "array[array[string]]"),
        "a.d": Typed([[], [1]], "array[array[int16]]"),
    }
    glft.save_file({}, path, values, format="gguf", rules=[])
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


def test_slices_and_lookups(path: Path) -> None:
    reader = GGUFReader(file_of_all(path))
    texts, numbers = reader.fields["a.texts"], reader.fields["a.long"]
    assert (texts.contents(0), texts.contents(slice(1, 3))) == ("x", ["", "\u00e9t\u00e9"])
    assert (numbers.contents(-1), numbers.contents(slice(3))) == (1999, [0, 1, 2])
    assert [part.tobytes() for part in texts.parts[3:5]] == [texts.parts[3].tobytes(), texts.parts[4].tobytes()]
    with pytest.raises(IndexError):
        texts.parts[len(texts.parts)]
    assert (reader.get_field("x.y"), reader.get_field("a.long")) == (None, numbers)
    assert reader.get_tensor(0) is reader.tensors[0]
    assert reader.tensors[0].field.contents() is None


@pytest.mark.parametrize(("mode", "value"), [("c", 3), ("r+", 7)])
def test_changes_in_place(mode: Any, value: int, path: Path) -> None:
    GGUFReader(file_of_all(path), mode).fields["a.uint32"].parts[-1][0] = 7
    assert glft.open(path).metadata["a.uint32"] == value


@pytest.mark.parametrize(
    ("stored", "message"),
    [(b"", "header -> magic"), (b"GGUF\x03", "header -> byte_order"), (golden("four_types"), "header -> magic")],
)
def test_faults(stored: bytes, message: str, path: Path) -> None:
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
