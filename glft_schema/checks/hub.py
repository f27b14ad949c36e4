"""Comparison of files with what the Hugging Face Hub states about them: their hashes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from glft_schema.display import Progress
from glft_schema.errors import OptionError, quote, safe
from glft_schema.files.file import File
from glft_schema.storage.source import Source
from glft_schema.storage.tensor_bytes import pieces

PLACE = re.compile(r"([^/@]+/[^/@]+)(?:/([^@]+))?(?:@(.+))?")
SHA1 = 40  # digits


class Published(NamedTuple):
    """A file and the one on the Hub.

    Attributes:
        file: its name.
        place: the one on the Hub, ``hf://OWNER/REPO/FILE``.
        commit: of the revision.
        problem: how they differ, or an empty string.
    """

    file: str
    place: str
    commit: str
    problem: str


@dataclass(frozen=True)
class HubVerdict:
    """The comparison of a file, or of the files of a set, with the Hub."""

    files: list[Published]

    @property
    def holds(self) -> bool:
        """Whether all files are those of the Hub."""
        return not any(file.problem for file in self.files)

    def lines(self) -> list[str]:
        """Returns a line for each file."""
        return [
            f"{safe(name)}: {problem or 'the same bytes as'} {place}{f' at commit {commit}' if commit else ''}"
            for name, place, commit, problem in self.files
        ]

    def data(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        return {"files": [file._asdict() for file in self.files]}


def compare_with_hub(file: File, place: str, progress: Progress) -> HubVerdict:
    """Compares each file of a set with a revision of a repository, with one request for each.

    Args:
        file: the open file or set.
        place: ``OWNER/REPO``, with ``/FILE`` if the file has another name or is in a folder, and
            with ``@REVISION``, by default main.
        progress: called with the name of a file, and the share that is done.

    Raises:
        OptionError: if `place` has another form.
        OSError: if the Hub cannot be reached, or has no such file.
    """
    from glft_schema.storage.remote import stored_on_hub  # slow to import

    if not (found := PLACE.fullmatch(place)):
        raise OptionError(f"expected OWNER/REPO, OWNER/REPO/FILE or OWNER/REPO@REVISION for --hub, found {quote(place)}")
    repository, path, revision = found.groups()
    verdicts = []
    for shard in file.shards:
        name = PurePosixPath(shard.name).name
        there = str(PurePosixPath(path).with_name(name)) if path and len(file.shards) > 1 else path or name
        url = f"hf://{repository}/{there}{f'@{revision}' if revision else ''}"
        stored, size = stored_on_hub(url), shard.source.size
        problem = f"{size:,} bytes, not the {stored.size:,} of" if size != stored.size else ""
        if not problem and (digest := _digest(shard.source, len(stored.digest), progress)) != stored.digest:
            problem = f"{'SHA-1 of the git blob' if len(digest) == SHA1 else 'SHA-256'} {digest}, not the {stored.digest} of"
        verdicts.append(Published(shard.name, url, stored.commit, problem))
    return HubVerdict(verdicts)


def _digest(source: Source, digits: int, progress: Progress) -> str:
    """Returns the SHA-256 of a file, or for 40 digits the SHA-1 of its git blob."""
    hashed = hashlib.sha1(b"blob %d\0" % source.size) if digits == SHA1 else hashlib.sha256()
    done = 0
    for piece in pieces(source, 0, source.size):
        hashed.update(piece)
        done += len(piece)
        progress(source.name, done / source.size)
    return hashed.hexdigest()
