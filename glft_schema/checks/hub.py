"""Comparison of files with their sizes and hashes on the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from glft_schema.checks.manifests import FileHash
from glft_schema.display import Progress
from glft_schema.errors import OptionError, quote, safe
from glft_schema.files.file import File
from glft_schema.storage.locations import STDIN_NAME, file_name, shown
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import pieces

REPOSITORY = re.compile(r"(?:hf://)?([^/@:]+/[^/@]+?)(?:/([^@]+?))?/?(?:@(.+))?")
SHA1 = 40  # digits


class Published(NamedTuple):
    """A file, compared with one on the Hub.

    Attributes:
        file: its name.
        location: of the file on the Hub, ``hf://OWNER/REPO/FILE``.
        commit: of the revision; empty if unknown.
        found, expected: hash or size of the file, and of the one on the Hub.
    """

    file: str
    location: str
    commit: str
    found: str
    expected: str

    def __str__(self) -> str:
        commit = f" at commit {self.commit}" if self.commit else ""
        state = "the same bytes as" if self.found == self.expected else f"{self.found}, not the {self.expected} of"
        return f"{safe(self.file)}: {state} {self.location}{commit}"


@dataclass(frozen=True)
class HubVerdict:
    """The comparison of a file, or of the files of a set, with the Hub."""

    files: list[Published]

    @property
    def holds(self) -> bool:
        """Whether all files are those of the Hub."""
        return all(file.found == file.expected for file in self.files)

    def lines(self) -> list[str]:
        """Returns a line for each file."""
        return list(map(str, self.files))

    def data(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        return {"files": [file._asdict() for file in self.files]}


def compare_with_hub(file: File, repository: str, progress: Progress, hashes: Sequence[FileHash] = ()) -> HubVerdict:
    """Compares each file of a set with a revision of a repository, with one request for each.

    Args:
        file: the open file or set.
        repository: ``OWNER/REPO``, with ``/FILE`` if the file has another name or is in a folder,
            and with ``@REVISION``, by default main.
        progress: called with the name of a file, and the share that is done.
        hashes: of the files, if known, from `hash_file`.

    Raises:
        OptionError: if `repository` has another form.
        OSError: if the Hub cannot be reached, or has no such file.
    """
    from glft_schema.storage.remote import stored_on_hub  # slow to import

    if not (match := REPOSITORY.fullmatch(repository)):
        problem = "expected OWNER/REPO, OWNER/REPO/FILE or OWNER/REPO@REVISION for --hub"
        raise OptionError(f"{problem}, found {quote(shown(repository))}")
    repository, path, revision = match.groups()
    verdicts = []
    for shard, known in zip_longest(file.shards, hashes):
        name = file_name(shard.name)
        if name == STDIN_NAME and not path:
            raise OptionError("expected OWNER/REPO/FILE for --hub with standard input, which has no name")
        path = str(PurePosixPath(path).with_name(name)) if path and len(file.shards) > 1 else path or name
        location = f"hf://{repository}/{path.replace('@', '%40')}{f'@{revision}' if revision else ''}"
        stored, size = stored_on_hub(location), shard.source.size
        found, expected = f"{size:,} bytes", f"{stored.size:,} bytes"
        if found == expected:
            is_blob = len(stored.digest) == SHA1
            kind = "SHA-1 of the git blob" if is_blob else "SHA-256"
            digest = known.sha256 if known and not is_blob else _digest(shard.source, is_blob, progress)
            found, expected = f"{kind} {digest}", f"{kind} {stored.digest}"
        verdicts.append(Published(shard.name, location, stored.commit, found, expected))
    return HubVerdict(verdicts)


def _digest(source: Source, is_blob: bool, progress: Progress) -> str:
    """Returns the SHA-256 of a file, or the SHA-1 of its git blob."""
    hashed = hashlib.sha1(b"blob %d\0" % source.size) if is_blob else hashlib.sha256()
    done = 0
    for piece in pieces(source, 0, source.size):
        hashed.update(piece)
        done += len(piece)
        progress(source.name, done / source.size)
    return hashed.hexdigest()
