"""Readers in C, on headers made from the declarations, see the weights that this package sees.

They are compiled with sanitizers, which end them with another exit status than 0 and 2.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from glft_schema import Container, File, FormatError, save_file
from glft_schema.describe.as_c import as_c
from glft_schema.describe.schema import schema_of
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.corpus import corpus
from tests.golden import golden
from tests.oracles import gguf_reference
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import F32, Q4, Row
from tests.scalar.sources import same_bits
from tests.tools.depth import FULL, some

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
SANITIZED = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
REFUSED = 2  # the exit status of the readers
LIMITS = (b"the other byte order", b"general.alignment is not a uint32", b"the type is unknown")  # of the readers only
MUTANTS = 300 if FULL else 10  # of each format

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")

Reader = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Returns a function that runs the reader of a format on the bytes of a file."""
    folder = tmp_path_factory.mktemp("c")

    @cache
    def program(format: Format) -> Path:
        name = format.name.lower()
        (folder / f"{name}.h").write_text(as_c(schema_of(format)), "utf-8")
        command = ["cc", *STRICT, f"-I{folder}", "-o", folder / f"{name}_read", EXAMPLES / f"{name}_read.c"]
        if subprocess.run([*command, *SANITIZED], capture_output=True, check=False).returncode:  # no libraries of sanitizers
            subprocess.run(command, check=True)
        return folder / f"{name}_read"

    def run(format: Format, stored: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        (folder / "model").write_bytes(stored)
        return subprocess.run([program(format), folder / "model", *arguments], capture_output=True, check=False)

    return run


def printed(file: File) -> bytes:
    """Returns a pattern of what a reader prints. The checksum of weights with NaN may be any: the
    signs and payloads of NaN may differ."""
    made = b""
    for name, tensor in file.tensors.items():
        weights = tensor.dequantize(torch.float32)
        line = f"{name} {tensor.type} {list(tensor.dims)} ".encode("utf-8", "surrogateescape")
        checksum = b"[0-9a-f]{8}" if weights.isnan().any() else b"%08x" % zlib.crc32(weights.numpy().tobytes())
        made += re.escape(line) + checksum + b"\n"
    return made


def assert_right(done: subprocess.CompletedProcess[bytes], stored: bytes) -> None:
    """Asserts that a reader printed what this package reads."""
    expected = printed(Container.parse(stored))
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.fullmatch(expected, done.stdout)


def assert_right_or_refused(done: subprocess.CompletedProcess[bytes], stored: bytes) -> None:
    """Asserts that a reader printed what this package reads, or refused a file for a reason."""
    assert done.returncode in (0, REFUSED), done.stderr.decode()
    if not any(limit in done.stderr for limit in LIMITS):
        with suppress(FormatError):  # the reader may read it: it does not check for duplicate names, for example
            assert_right(done, stored)


def test_all_types_and_awkward_numbers(reader: Reader, tmp_path: Path) -> None:
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
    assert_right(reader(GLFT, path.read_bytes()), path.read_bytes())


def ggml_file(payloads: dict[str, np.ndarray]) -> bytes:
    """Returns a GGUF file of u8 [blocks, size] by name; the first word is a scheme."""
    infos = []
    for name, blocks in payloads.items():
        code = GGML_TYPES[name.split()[0]].code
        dims = [gguf_reference.BLOCKS[code][0], len(blocks)]
        infos.append(gguf_reference.Info(name.encode(), dims, code, blocks.tobytes()))
    return gguf_reference.File([(b"a", 8, b"b")], infos).bytes()


@cache
def all_ggml_types() -> bytes:
    """Returns a GGUF file with random blocks and blocks of equal bytes.

    Each type has two tensors, one of them with NaN among the weights of each block.
    """
    payloads, split = {}, {}
    for type_ in GGML_TYPES:
        shape = 48, gguf_reference.BLOCKS[type_.code][1]
        payloads[type_.scheme] = np.random.default_rng(type_.code).integers(0, 256, shape, np.uint8)
        payloads[type_.scheme][::3] = np.arange(15, 256, 16, np.uint8)[:, None]
    for name, tensor in Container.parse(ggml_file(payloads)).tensors.items():
        is_nan = tensor.dequantize(torch.float32).isnan().any(1).numpy()
        split |= {f"{name} numbers": payloads[name][~is_nan], f"{name} NaN": payloads[name][is_nan]}
    return ggml_file(split)


def test_weights_of_all_ggml_types(reader: Reader) -> None:
    stored = all_ggml_types()
    tensors = Container.parse(stored).tensors
    assert len(tensors) == 2 * len(gguf_reference.BLOCKS)
    assert_right(reader(GGUF, stored), stored)
    for name, tensor in some(list(tensors.items()), 9):
        found = np.array(reader(GGUF, stored, name).stdout.split(), np.float64).astype(np.float32)
        assert same_bits(found, tensor.dequantize(torch.float32).flatten().numpy())
    assert reader(GGUF, stored, "x").stderr == b"gguf_read: no tensor of this name\n"


@pytest.mark.parametrize(("format", "name"), [(GLFT, "four_types"), (GLFT, "loose_layout"), (GGUF, "gguf_little")])
def test_golden_files(reader: Reader, format: Format, name: str) -> None:
    assert_right(reader(format, golden(name)), golden(name))


@pytest.mark.parametrize("format", [GLFT, GGUF], ids=["glft", "gguf"])
def test_random_and_damaged_files(reader: Reader, format: Format) -> None:
    """Files of the corpus, half of them damaged, and random bytes in files with all types."""
    whole, random = golden("four_types") if format is GLFT else all_ggml_types(), Random(0)
    files = [drawn.stored for drawn in some(corpus(format.name), 10)]
    for _ in range(MUTANTS):
        mutant, changed = bytearray(whole), random.choice([100, 2000, len(whole)])
        for _ in range(random.choice([1, 1, 4])):
            mutant[random.randrange(min(changed, len(whole)))] = random.choice([0, 1, 255, random.randrange(256)])
        files.append(bytes(mutant[: random.choice([len(whole), len(whole), changed])]))
    found = set()
    for stored in files:
        assert_right_or_refused(done := reader(format, stored), stored)
        found.add(done.returncode)
    assert found == {0, REFUSED}


def test_the_largest_dims(reader: Reader) -> None:
    stored = reference.write(b"", [Row("w", [2**31, 2**27, 1, 0], F32, b"")], b"")
    assert_right(reader(GLFT, stored), stored)


@pytest.mark.parametrize(
    ("row", "data", "message"),
    [
        (Row("w", [2**31, 2**28, 1, 0], F32, b""), b"", "the tensor is too large"),
        (Row("w", [2**32 - 1] * 4, F32, b""), b"", "the tensor is too large"),
        (Row("w", [0, 2**32 - 1, 2**32 - 1], F32, b""), b"", "the tensor is too large"),
        (Row("w", [1] * 65, F32, b""), b"", "more dims than this reader takes"),
        (Row("w", [1], F32, b"", 2**64 - 4), bytes(4), "a payload lies outside the file"),
        (Row("w", [1, 65], Q4, b""), bytes(99), "cannot hold a tensor of these dims"),
        (Row("w", [1], 9, b""), bytes(4), "unknown type"),
    ],
)
def test_lies_are_refused_by_both_readers(reader: Reader, row: Row, data: bytes, message: str) -> None:
    stored = reference.write(b"", [row], data)
    done = reader(GLFT, stored)
    assert (done.returncode, message in done.stderr.decode()) == (REFUSED, True)
    with pytest.raises(FormatError):
        Container.parse(stored)


def test_the_other_byte_order_is_refused(reader: Reader) -> None:
    done = reader(GGUF, golden("gguf_big"))
    assert (done.returncode, done.stdout) == (REFUSED, b"")
    assert b"an unknown version, or the other byte order" in done.stderr
