"""A reader in another language, on the header made from the declaration, sees what we see."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
import torch

from glft_schema import Container, File, FormatError, load_file, save_file
from glft_schema.describe.as_c import as_c
from glft_schema.describe.schema import schema_of
from glft_schema.formats.glft import GLFT
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import F32, Q4, Row

SOURCE = Path(__file__).parents[2] / "docs" / "examples" / "glft_read.c"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("c")
    program = folder / "glft_read"
    (folder / "glft.h").write_text(as_c(schema_of(GLFT)), "utf-8")
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    subprocess.run(["cc", *flags, "-o", program, SOURCE, "-lm"], check=True)
    return program


def lines(file: File) -> str:
    """Returns what the C program is expected to print."""
    made = []
    for name, tensor in file.tensors.items():
        checksum = zlib.crc32(tensor.dequantize(torch.float32).numpy().tobytes())
        made.append(f"{name} {tensor.dtype} {list(tensor.dims)} {checksum:08x}\n")
    return "".join(made)


def run(reader: Path, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([reader, path], capture_output=True, text=True, check=False)


def test_all_types_and_awkward_numbers(reader: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf-lite"
    torch.manual_seed(0)
    tensors = {
        "f32": torch.tensor([0.0, -0.0, 1e-45, 3e38, float("inf"), -float("inf")]),
        "f16": torch.arange(0x7C01).to(torch.int16).view(torch.float16),  # every finite half, and infinity
        "q8": torch.randn(5, 3, 7),
        "q8 tiny": torch.randn(3, 9) * 1e-4,
        "q4": torch.randn(6, 192),
        "scalar": torch.tensor(1.5),
        "none": torch.zeros(3, 0),
    }
    schemes = {"q8*": "q8_per_channel", "q4": "q4_per_group_64"}
    save_file(tensors, path, {"arch": "toy"}, schemes=schemes, alignment=32)
    done = run(reader, path)
    assert (done.returncode, done.stderr) == (0, "")
    with Container.parse_file(path) as file:
        assert done.stdout == lines(file)
    assert list(load_file(path)) == list(tensors)


def test_loose_layout(reader: Path, tmp_path: Path) -> None:
    path = tmp_path / "loose"
    path.write_bytes(golden("loose_layout"))
    assert run(reader, path).stdout == lines(Container.parse(golden("loose_layout")))


@pytest.mark.parametrize("cut", range(0, len(golden("four_types")), 7))
def test_truncations_are_refused(reader: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut"
    path.write_bytes(golden("four_types")[:cut])
    assert run(reader, path).returncode == 2


@pytest.mark.parametrize(("dims", "accepted"), [([2**31, 2**27, 1, 0], True), ([2**31, 2**28, 1, 0], False)])
def test_both_readers_draw_the_same_line(reader: Path, tmp_path: Path, dims: list[int], accepted: bool) -> None:
    path = tmp_path / "large"
    path.write_bytes(reference.write(b"", [Row("w", dims, F32, b"")], b""))
    assert (run(reader, path).returncode == 0) == accepted
    if accepted:
        assert Container.parse_file(path).tensors["w"].nbytes == 0
    else:
        with pytest.raises(FormatError, match=r"the size in bytes of dims \[.*\] overflows 64 bits"):
            Container.parse_file(path)


@pytest.mark.parametrize(
    ("row", "data", "message"),
    [
        (Row("w", [2**32 - 1] * 4, F32, b""), b"", "the tensor is too large"),
        (Row("w", [0, 2**32 - 1, 2**32 - 1], F32, b""), b"", "the tensor is too large"),
        (Row("w", [1] * 65, F32, b""), b"", "more dims than this reader takes"),
        (Row("w", [1], F32, b"", 2**64 - 4), bytes(4), "a payload lies outside the file"),
        (Row("w", [1, 65], Q4, b""), bytes(99), "cannot hold a tensor of these dims"),
        (Row("w", [1], 9, b""), bytes(4), "unknown type"),
    ],
)
def test_lies_are_refused(reader: Path, tmp_path: Path, row: Row, data: bytes, message: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(reference.write(b"", [row], data))
    done = run(reader, path)
    assert done.returncode == 2
    assert message in done.stderr
