"""Manifests: the SHA-256 of each file, as `sha256sum` writes it, and of each tensor in it, in lines that it takes for comments.

    # glft manifest 1: sha256sum -c checks files; glft verify FILE --manifest checks tensors, too
    HASH  model.gguf
    # tensor HASH F32 [4,64] "blk.0.attn_q.weight"
    # model HASH

A tensor's hash is that of its payload as it is stored; type, shape in torch's order and name stand beside it. The name is a
JSON string in ASCII, so that no name can begin a line or steer a terminal. The model's hash is that of its tensors' lines, of
all files of a set, sorted: ``grep '^# tensor ' MANIFEST | LC_ALL=C sort | sha256sum``. It stays the same where tensors come in
another order, in other files, in another version of the format or format, or with other metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from glft_schema.display import Progress
from glft_schema.errors import FormatError, shown
from glft_schema.files.file import File
from glft_schema.limits import current

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

HEAD = "# glft manifest 1: sha256sum -c checks files; glft verify FILE --manifest checks tensors, too"
TENSOR, MODEL = "# tensor ", "# model "
PIECE = 1 << 22  # bytes of a file that are read and hashed at a time
DIGITS = 64  # of a SHA-256 in hex
TAGS = ("SHA256", "SHA2-256")  # what it is called by `sha256sum --tag` and by openssl
OTHER_HASHES = {32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512"}  # by their digits

VERSION_LINE = re.compile(r"# glft manifest (\d+)\b.*")
HASH = re.compile(f"[0-9a-f]{{{DIGITS}}}")
TYPE = re.compile(r"[!-~][ -~]*")
SHAPE = re.compile(r"\[(\d+(,\d+)*)?\]")
FILE_LINE = re.compile(r"(\\?)([0-9A-Fa-f]{32,}) [ *](.+)", re.DOTALL)
TAGGED_LINE = re.compile(r"(\\?)([A-Za-z][A-Za-z0-9/-]*) ?\((.+)\) ?= ?([0-9A-Fa-f]+)", re.DOTALL)  # of sha256sum --tag
GGUF_HASH_LINE = re.compile(r"(?:sha1|sha256|xxh64|uuid) +[0-9a-f-]+ +.+", re.DOTALL)
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}  # in a line that begins with a backslash


class TensorHash(NamedTuple):
    """A line about a tensor.

    Attributes:
        sha256: of its payload, in hex.
        type: the name of its type.
        shape: its sizes in torch's order.
        name: its name.
    """

    sha256: str
    type: str
    shape: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        name = json.dumps(self.name).replace("\x7f", "\\u007f")
        return f"{TENSOR}{self.sha256} {self.type} {json.dumps(self.shape, separators=(',', ':'))} {name}"

    @property
    def what(self) -> str:
        """Its type and shape, for people."""
        return f"{self.type} {list(self.shape)}"


class FileHash(NamedTuple):
    """A line about a file.

    Attributes:
        sha256: of all its bytes, in hex.
        path: the file.
        tensors: those in it; None where a manifest says nothing about them.
    """

    sha256: str
    path: str
    tensors: tuple[TensorHash, ...] | None = None

    def __str__(self) -> str:
        escaped = "".join(ESCAPES.get(letter, letter) for letter in self.path)
        return f"{'' if escaped == self.path else chr(92)}{self.sha256}  {escaped}"


def hash_file(file: File, *, progress: Progress | None = None) -> list[FileHash]:
    """Hashes an open file, or each file of a set, and its tensors, in one pass over its bytes.

    Some megabytes are in memory at a time, where the file was opened with ``mmap=False``.

    Args:
        file: an open file.
        progress: called with the path of the file and the share that is done.

    Raises:
        ClosedError, TruncatedError, OSError: where it cannot be read any more.
    """
    from concurrent.futures import ThreadPoolExecutor  # takes a while

    before, hashes = 0, []
    with ThreadPoolExecutor(1) as other:
        for shard in file.shards:

            def one(done: int, path: str = shard.name, before: int = before) -> None:
                if progress:
                    progress(path, (before + done) / file.nbytes)

            hashes.append(_hash_one(shard, other, one))
            before += shard.source.size
    return hashes


def _hash_one(file: File, other: ThreadPoolExecutor, progress: Callable[[int], None]) -> FileHash:
    """Hashes a file; `other` hashes it as a whole, while its tensors are hashed here."""
    tensors = list(file.tensors.values())
    whole, parts = hashlib.sha256(), {(tensor.position, tensor.nbytes): hashlib.sha256() for tensor in tensors}
    places = sorted(place for place in parts if place[1])  # none of which overlap: equal ones are one
    first = 0
    for start in range(0, file.source.size, PIECE):
        piece = file.source.read(start, min(PIECE, file.source.size - start))
        end = start + len(piece)
        hashed = other.submit(whole.update, piece)
        while first < len(places) and places[first][0] < end:
            position, nbytes = places[first]
            parts[position, nbytes].update(piece[max(position - start, 0) : position + nbytes - start])
            if position + nbytes > end:
                break
            first += 1
        hashed.result()
        progress(end)
    lines = [
        TensorHash(parts[tensor.position, tensor.nbytes].hexdigest(), tensor.dtype.name, tensor.shape, tensor.name)
        for tensor in tensors
    ]
    return FileHash(whole.hexdigest(), file.name, tuple(lines))


def model_hash(hashes: Iterable[FileHash]) -> str:
    """Returns the SHA-256 of the sorted lines about the tensors of all files, each with its newline, in hex."""
    lines = sorted(f"{tensor}\n" for file in hashes for tensor in file.tensors or ())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def manifest_of(hashes: Sequence[FileHash]) -> str:
    """Returns the manifest of a file, or of the files of a set, as `hash_file` gives them."""
    lines = [HEAD]
    for file in hashes:
        lines += [str(file), *(str(tensor) for tensor in file.tensors or ())]
    return "\n".join([*lines, f"{MODEL}{model_hash(hashes)}", ""])


def read_manifest(stored: bytes) -> list[FileHash]:
    """Reads a manifest of ours, several of them one after another, or one of `sha256sum`, which says nothing about tensors.

    Blank lines, other comments, carriage returns before newlines, and hex in capitals are taken as well.

    Raises:
        FormatError: for a line that is none of a manifest; the path says which.
        LimitError: where the manifest is too long.
    """
    current().check("manifest", len(stored), "", " bytes")
    reader, number = _Reader(), 0
    try:
        for number, line in enumerate(io.BytesIO(stored.removeprefix(b"\xef\xbb\xbf")), 1):  # noqa: B007
            if text := line.strip(b"\n").removesuffix(b"\r").lstrip(b" \t"):
                reader.line(os.fsdecode(text))
        number += 1
        reader.end()
    except FormatError as error:
        raise error.at(f"line {number}", None, None, None) from None
    if not reader.files:
        raise FormatError("expected lines HASH  FILE, found none")
    return reader.files


class _Reader:
    """Takes a manifest line by line.

    Attributes:
        files: what its lines say, as far as they are closed by a line about a model or by the end.
    """

    def __init__(self) -> None:
        self.files: list[FileHash] = []
        self._open: list[tuple[FileHash, list[TensorHash]]] = []
        self._is_ours = False

    def line(self, text: str) -> None:
        """Takes a line. Raises FormatError where it is none of a manifest."""
        if version := VERSION_LINE.fullmatch(text):
            if version[1] != "1":
                raise FormatError(f"expected version 1 of glft's manifests, found {shown(version[1])}")
            self.end()
            self._is_ours = True
        elif text.startswith(TENSOR) and self._is_ours:
            if not self._open:
                raise FormatError("expected a line about a file before those about its tensors, found none")
            self._open[-1][1].append(_tensor_line(text.removeprefix(TENSOR)))
        elif text.startswith(MODEL) and self._is_ours:
            self._close(text.removeprefix(MODEL))
        elif text and not text.startswith("#"):
            self._open.append((_file_line(text), []))

    def _close(self, model: str) -> None:
        files = [file._replace(tensors=tuple(tensors)) for file, tensors in self._open]
        if (expected := model_hash(files)) != model:
            raise FormatError(f"expected {expected}, the hash of the lines about tensors before, found {shown(model)}")
        names = Counter(tensor.name for file in files for tensor in file.tensors or ())
        if twice := [name for name, count in names.items() if count > 1]:
            raise FormatError(f"expected each tensor once, found {shown(twice[0])} again")
        self.files += files
        self._open, self._is_ours = [], False

    def end(self) -> None:
        """Ends it, or the part before another manifest. Raises FormatError where lines are missing."""
        if self._is_ours:
            raise FormatError(f"expected a line {MODEL.strip()!r} at the end of the manifest, found none: it was cut off")
        self.files += [file for file, _ in self._open]
        self._open = []


def _tensor_line(text: str) -> TensorHash:
    """Reads what a line about a tensor says."""
    sha256, _, rest = text.partition(" ")
    type_, _, rest = rest.partition(" [")
    shape, _, name = rest.partition("] ")
    try:
        if HASH.fullmatch(sha256) and TYPE.fullmatch(type_) and SHAPE.fullmatch(f"[{shape}]") and name.startswith('"'):
            return TensorHash(sha256, type_, tuple(json.loads(f"[{shape}]")), json.loads(name))
    except ValueError:  # no JSON
        pass
    raise FormatError(f'expected {TENSOR}HASH TYPE [SHAPE] "NAME", found {shown(TENSOR + text)}')


def _file_line(text: str) -> FileHash:
    """Reads what a line about a file says, in either of the forms that `sha256sum` writes."""
    if found := FILE_LINE.fullmatch(text):
        escaped, sha256, path = found.groups()
        kind = OTHER_HASHES.get(len(sha256), "")
    elif found := TAGGED_LINE.fullmatch(text):
        escaped, kind, path, sha256 = found.groups()
    elif GGUF_HASH_LINE.fullmatch(text):
        raise FormatError("expected a line HASH  FILE of sha256sum, found one of gguf-hash, which does not hash whole files")
    else:
        raise FormatError(f"expected a line HASH  FILE, found {shown(text)}")
    if "\0" in path:
        raise FormatError("expected a line HASH  FILE, found NUL in it: it is a manifest of sha256sum --zero")
    if len(sha256) != DIGITS or (found.re is TAGGED_LINE and kind.upper() not in TAGS):
        count = f"{len(sha256)} of {kind}" if kind else f"{len(sha256)}"
        raise FormatError(f"expected a SHA-256, {DIGITS} hex digits, found {count}")
    return FileHash(sha256.lower(), _unescaped(path) if escaped else path)


def _unescaped(path: str) -> str:
    parts = re.split(r"(\\.?)", path, flags=re.DOTALL)
    meant = {escape: letter for letter, escape in ESCAPES.items()}
    if wrong := [part for part in parts[1::2] if part not in meant]:
        raise FormatError(f"expected {', '.join(meant)} in an escaped name, found {shown(wrong[0])}")
    return "".join(meant.get(part, part) for part in parts)


class Difference(NamedTuple):
    """A file or a tensor that is not as its manifest says.

    Attributes:
        name: of the file or tensor.
        problem: how it differs.
    """

    name: str
    problem: str


@dataclass(frozen=True)
class Verdict:
    """A file, or a set, against its manifest.

    Attributes:
        files: those that are other bytes.
        tensors: those that differ, are missing, or are there in addition.
        compared: how many tensors file and manifest have together; None where the manifest says nothing about tensors.
    """

    files: list[Difference]
    tensors: list[Difference]
    compared: int | None

    @property
    def holds(self) -> bool:
        """Whether all is as the manifest says."""
        return not (self.files or self.tensors)


def compare_hashes(found: Sequence[FileHash], expected: Sequence[FileHash]) -> Verdict:
    """Compares the hashes of a file or set, as `hash_file` gives them, with a manifest, as `read_manifest` gives it.

    A line is about a file where the path is the same, or else its last part. A manifest about one file may call it anything.

    Raises:
        FormatError: where the manifest says nothing about a file, or two things.
    """
    lines = [_line_about(file, expected, len(found)) for file in found]
    pairs = [(file, line) for file, line in zip(found, lines, strict=True) if file.sha256 != line.sha256]
    files = [Difference(file.path, f"expected SHA-256 {line.sha256}, found {file.sha256}") for file, line in pairs]
    if any(line.tensors is None for line in lines):
        return Verdict(files, [], None)
    here, there = ({tensor.name: tensor for file in side for tensor in file.tensors or ()} for side in (found, lines))
    names = {**there, **here}
    problems = {name: _problem(here.get(name), there.get(name)) for name in names}
    return Verdict(files, [Difference(name, problem) for name, problem in problems.items() if problem], len(names))


def _line_about(file: FileHash, manifest: Sequence[FileHash], files: int) -> FileHash:
    name = os.path.basename(file.path)
    same_path = [line for line in manifest if os.path.normpath(line.path) == os.path.normpath(file.path)]
    same_name = [line for line in manifest if os.path.basename(line.path) == name]
    lines = same_path or same_name or (list(manifest) if len(manifest) == files == 1 else [])
    if not lines:
        others = ", ".join(shown(line.path) for line in manifest[:3]) or "none"
        raise FormatError(f"expected a line about {shown(name)}, found {len(manifest)} about others: {others}")
    if len({line.sha256 for line in lines}) > 1:
        raise FormatError(f"expected one line about {shown(name)}, found {len(lines)} that differ")
    return next((line for line in lines if line.tensors is not None), lines[0])


def _problem(here: TensorHash | None, there: TensorHash | None) -> str:
    """Returns how a tensor differs from what the manifest says; empty where it does not."""
    if here is None:
        return "not in the file"
    if there is None:
        return "not in the manifest"
    if here.what != there.what:
        return f"{there.what} in the manifest, {here.what} in the file"
    return "other numbers" if here.sha256 != there.sha256 else ""
