"""Files that clients write: this package reads the same contents, bit for bit."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import glft_schema
from glft_schema import convert
from glft_schema.files.parsing import check_rules
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.foreign import npm
from tests.foreign.conftest import require
from tests.foreign.files import KINDS, metadata, write
from tests.foreign.our_reading import ours
from tests.foreign.python_readers import ENVIRONMENT
from tests.foreign.readings import same_bits
from tests.foreign.writers import WRITERS, Written
from tests.oracles import llama_cpp
from tests.tools.processes import Process

SAFETENSORS = [name for name in WRITERS if name != "mlx_gguf"]


def written(name: str, folder: Path) -> Written:
    """Writes into a folder with a client."""
    require(name.partition("_")[0])
    with closing(Process("-m", "tests.foreign.writers", name, **ENVIRONMENT)) as process:
        return Written(**process(folder))


def test_gguf_of_mlx(tmp_path: Path) -> None:
    made = written("mlx_gguf", tmp_path)
    mine = ours(tmp_path / made.name)
    assert (mine.metadata, mine.types, mine.tensors.keys()) == (made.metadata, made.types, made.tensors.keys())
    for name, tensor in made.tensors.items():
        assert mine.tensors[name].type == tensor.dtype
        assert same_bits(mine.tensors[name].values, tensor.values), name


def test_gguf_of_mlx_for_llama_cpp(tmp_path: Path) -> None:
    """MLX does not pad the last payload, which llama.cpp refuses; `convert` does."""
    path, converted = tmp_path / written("mlx_gguf", tmp_path).name, tmp_path / "converted.gguf"
    with glft_schema.open(path) as file:
        assert {finding.rule for finding in check_rules(file, "ggml")} == {"gguf-data-padded"}
    convert(path, converted)
    assert [llama_cpp.reads_gguf(file.read_bytes()) for file in (path, converted)] == [False, True]


@pytest.mark.filterwarnings("ignore:.*names are kept, and no metadata are added")
@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(tmp_path: Path, name: str) -> None:
    """A checkpoint that is converted to GGUF without quantizing keeps its bits."""
    made = written(name, tmp_path)
    convert(tmp_path / made.name, tmp_path / "converted.gguf", metadata={"general.architecture": "toy"})
    mine = ours(tmp_path / "converted.gguf")
    assert mine.tensors.keys() == made.tensors.keys()
    for tensor_name, tensor in made.tensors.items():
        assert same_bits(mine.tensors[tensor_name].values, tensor.values), tensor_name


def test_headers_of_huggingface(packages: Path, tmp_path: Path) -> None:
    """``buildGgufHeader`` gives our bytes, in all versions, byte orders and alignments."""
    entries = {key: value for key, value in metadata().items() if key not in ("a.uint8", "e.uint8")}
    types = [GGML_TYPES[name] for name in ("F32", "Q4_K", "I64")]
    sources = [write(tmp_path / f"{kind}.gguf", types=types, entries=entries, **kind._asdict()) for kind in KINDS]
    pairs = [(source, source.with_suffix(".again")) for source in sources]
    assert npm.rewritten(packages, pairs) == [""] * len(KINDS)
    for source, again in pairs:
        assert again.read_bytes() == source.read_bytes(), source.name
        assert ours(again).metadata == ours(source).metadata
