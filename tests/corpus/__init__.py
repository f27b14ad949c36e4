"""Random files of each format, drawn once, with the expected result of every reader.

`gguf.tar.xz` has the files and `gguf.json` their manifest, as `glft fuzz --corpus` writes it, with
four more entries for each file: ``has``, its features; ``refused``, the error's class, field, byte
offset and rule, or ``breaks``, rule, field and byte offset of each finding of any rule set; and
``numbers``, a hash of the numbers of each tensor, in order, by other decoders than ours. Renew with

    python -m tests.corpus
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from glft_schema import Container, FormatError
from glft_schema.errors import one_line
from glft_schema.files.parsing import check_rules
from glft_schema.formats import registry
from glft_schema.testing import Case, read_corpus
from glft_schema.testing.corpora import MANIFEST

FORMATS = tuple(registry.FORMATS)  # the built-in ones; tests register others
FOLDER = Path(__file__).parent
PARTS = 4  # of a corpus, each for one test
RENEW = "run `python -m tests.corpus`, which draws the corpus again"


@dataclass(frozen=True)
class Drawn:
    """A file of the corpus.

    Attributes:
        id: its name.
        case: its bytes and, if it is corrupted, the expected error or findings.
        entry: its entry of the manifest.
    """

    id: str
    case: Case
    entry: dict[str, Any]

    @property
    def stored(self) -> bytes:
        return self.case.stored

    @property
    def verdict(self) -> dict[str, Any]:
        """The expected result of `verdict_on`."""
        return {name: self.entry[name] for name in ("refused", "breaks") if name in self.entry}

    @property
    def is_read(self) -> bool:
        return "breaks" in self.entry


@cache
def corpus(name: str) -> tuple[Drawn, ...]:
    """Returns the files of a format."""
    stored = FOLDER.joinpath(f"{name.lower()}.json").read_bytes()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(FOLDER / f"{name.lower()}.tar.xz") as archive:
        for member in archive:
            Path(folder, member.name).write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
        manifest = Path(folder, MANIFEST)
        manifest.write_bytes(stored)
        entries = json.loads(stored)["files"]
        return tuple(Drawn(entry["file"], case, entry) for case, entry in zip(read_corpus(manifest), entries, strict=True))


def every() -> tuple[Drawn, ...]:
    """Returns the files of all formats."""
    return tuple(drawn for format in FORMATS for drawn in corpus(format.name))


def verdict_on(stored: bytes) -> dict[str, Any]:
    """Returns this package's result for a file, as the manifest has it."""
    try:
        file = Container.parse(stored)
    except FormatError as error:
        return {"refused": [type(error).__name__, one_line(error.path), error.offset, error.rule]}
    findings = check_rules(file, file.format.rule_sets)
    return {"breaks": [[finding.rule, finding.path, finding.offset] for finding in findings]}
