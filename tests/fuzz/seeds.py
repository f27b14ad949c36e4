"""Seeds of the coverage-guided search: golden files, catalogue cases, and one file per type."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tests.catalogue.gguf_cases import READ, REFUSED
from tests.golden import golden
from tests.oracles import glft_reference as reference
from tests.oracles.gguf_reference import BLOCKS, File, Info
from tests.oracles.glft_reference import Row

GOLDEN = ("four_types", "loose_layout", "gguf_little", "gguf_big")
LONGEST = 4096  # bytes of a file; longer files are slower and cover little more
CORPUS = Path(__file__).with_name("corpus")  # files that reached code beyond the seeds


def seeds() -> Iterator[bytes]:
    """Yields good and bad files of both formats, and the corpus."""
    yield from (path.read_bytes() for path in sorted(CORPUS.glob("*")))
    yield from (golden(name) for name in GOLDEN)
    yield from (case.stored for case in (*READ.values(), *REFUSED.values()))
    for code, (weights, nbytes) in BLOCKS.items():
        yield File([], [Info(b"w", [weights, 1], code, (bytes(range(256)) * 2)[:nbytes])]).bytes()
    yield reference.write(b"", [], b"")
    for dtype, dims in ((reference.F32, [2]), (reference.F16, []), (reference.Q8, [2, 3]), (reference.Q4, [2, 64])):
        payload = bytes(range(256))[: reference.nbytes(dtype, dims)]
        yield reference.back_to_back(b"a=1\nb=2\n", [Row("w", dims, dtype, payload), Row("v", dims, dtype, payload)])


def write_seeds(folder: Path, found: Iterator[bytes]) -> None:
    """Writes seeds into a folder as libFuzzer names a corpus: by a hash of the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for stored in found:
        if len(stored) <= LONGEST:
            (folder / sha256(stored).hexdigest()[:40]).write_bytes(stored)
