"""Manifests: SHA-256 hashes of files and of their tensors, in a format that `sha256sum` can check.

    # glft manifest 1: sha256sum -c checks files; glft verify FILE --manifest checks tensors, too
    HASH  model.gguf
    # tensor HASH F32 [4,64] "blk.0.attn_q.weight"
    # model HASH

A tensor line is a comment to `sha256sum`. It has the hash of the stored payload, the type, the
shape in torch's order, and the name as a JSON string in ASCII, so that no name can begin a line or
control a terminal.

The model's hash is that of the sorted tensor lines of all files: ``grep '^# tensor ' MANIFEST |
LC_ALL=C sort | sha256sum``. It does not depend on the order of tensors, the split into files, the
format or its version, or the metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from glft_schema.display import Progress, Results, align, format_count, with_display
from glft_schema.errors import FormatError, quote, safe
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.limits import current
from glft_schema.storage.locations import STDIN, STDIN_NAME, file_name, is_remote
from glft_schema.storage.source import StrPath

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

HEAD = "# glft manifest 1: sha256sum -c checks files; glft verify FILE --manifest checks tensors, too"
TENSOR, MODEL = "# tensor ", "# model "
PIECE = 1 << 22  # bytes read and hashed at a time
DIGITS = 64  # hex digits of a SHA-256
TAGS = ("SHA256", "SHA2-256")  # its name in `sha256sum --tag` and openssl
OTHER_HASHES = {32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512"}  # by number of hex digits

VERSION_LINE = re.compile(r"# glft manifest (\d+)\b.*")
HASH = re.compile(f"[0-9a-f]{{{DIGITS}}}")
TYPE = re.compile(r"[!-~][ -~]*")
SHAPE = re.compile(r"\[(\d+(,\d+)*)?\]")
FILE_LINE = re.compile(r"(\\?)([0-9A-Fa-f]{32,}) [ *](.+)", re.DOTALL)
TAGGED_LINE = re.compile(r"(\\?)([A-Za-z][A-Za-z0-9/-]*) ?\((.+)\) ?= ?([0-9A-Fa-f]+)", re.DOTALL)  # of sha256sum --tag
GGUF_HASH_LINE = re.compile(r"(?:sha1|sha256|xxh64|uuid) +[0-9a-f-]+ +.+", re.DOTALL)
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}  # used in lines that begin with a backslash


class TensorHash(NamedTuple):
    """A tensor line of a manifest.

    Attributes:
        sha256: hash of the stored payload, in hex.
        type: name of the tensor type.
        shape: sizes in torch's order.
        name: name of the tensor.
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
        """The type and shape as text."""
        return f"{self.type} {list(self.shape)}"


@with_display
class FileHash(NamedTuple):
    """A file line of a manifest, with its tensor lines.

    Attributes:
        sha256: hash of the whole file, in hex.
        path: path of the file.
        tensors: lines about its tensors; None if a manifest does not list tensors.
    """

    sha256: str
    path: str
    tensors: tuple[TensorHash, ...] | None = None

    def __str__(self) -> str:
        escaped = "".join(ESCAPES.get(letter, letter) for letter in self.path)
        return f"{'' if escaped == self.path else chr(92)}{self.sha256}  {escaped}"


def hash_file(file: File | StrPath, *, progress: Progress | None = None) -> list[FileHash]:
    """Hashes an open file or set, and its tensors, in one pass over the bytes.

    A file opened with ``mmap=False`` takes a few megabytes of memory.

    Args:
        file: an open file or set, or a path.
        progress: called with the path of the current file and the share that is done, from 0 to 1.

    Returns:
        The hashes of each file.

    Raises:
        ClosedError, TruncatedError, OSError: if the file can no longer be read.
        FormatError: if the file at a path is not valid.
    """
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    file, hashes = as_file(file), Results[FileHash](noun="file")
    before = 0
    with ThreadPoolExecutor(1) as executor:
        for shard in file.shards:
            for hashed in _hash_shard(shard, executor, hashes):
                if progress:
                    progress(shard.name, (before + hashed) / file.nbytes)
            before += shard.source.size
    return hashes


def _hash_shard(file: File, executor: ThreadPoolExecutor, hashes: list[FileHash]) -> Iterator[int]:
    """Appends the hashes of a file to `hashes`, and yields the bytes hashed so far.

    The whole file is hashed by `executor` while the tensors are hashed in this thread.
    """
    tensors = list(file.tensors.values())
    whole, payloads = hashlib.sha256(), {(tensor.position, tensor.nbytes): hashlib.sha256() for tensor in tensors}
    spans = sorted(span for span in payloads if span[1])  # do not overlap: tensors may only share a whole payload
    first = 0
    for start in range(0, file.source.size, PIECE):
        piece = file.source.read(start, min(PIECE, file.source.size - start))
        end = start + len(piece)
        update = executor.submit(whole.update, piece)
        while first < len(spans) and spans[first][0] < end:
            position, nbytes = spans[first]
            payloads[position, nbytes].update(piece[max(position - start, 0) : position + nbytes - start])
            if position + nbytes > end:
                break
            first += 1
        update.result()
        yield end
    lines = [
        TensorHash(payloads[tensor.position, tensor.nbytes].hexdigest(), tensor.type.name, tensor.shape, tensor.name)
        for tensor in tensors
    ]
    name = file_name(file.name) if is_remote(file.name) else file.name.replace(os.sep, "/")
    hashes.append(FileHash(whole.hexdigest(), STDIN if file.name == STDIN_NAME else name, tuple(lines)))


def model_hash(hashes: Iterable[FileHash]) -> str:
    """Returns the SHA-256 of the sorted tensor lines of all files, newlines included, in hex."""
    lines = sorted(f"{tensor}\n" for file in hashes for tensor in file.tensors or ())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def manifest_of(hashes: Sequence[FileHash]) -> str:
    """Returns the manifest of a file or set from the result of `hash_file`; without tensors, only
    lines of `sha256sum`."""
    if not any(file.tensors for file in hashes):
        return "".join(f"{file}\n" for file in hashes)
    lines = [HEAD]
    for file in hashes:
        lines += [str(file), *(str(tensor) for tensor in file.tensors or ())]
    return "\n".join([*lines, f"{MODEL}{model_hash(hashes)}", ""])


def read_manifest(stored: bytes) -> list[FileHash]:
    """Reads one or several manifests, or the output of `sha256sum`, which does not list tensors.

    Blank lines, other comments, carriage returns before newlines, and uppercase hex are accepted.

    Raises:
        FormatError: for an invalid line, whose number is the error's path.
        LimitError: if the manifest is longer than the limit.
    """
    current().check("manifest", len(stored), "", " bytes")
    parser, number = _Parser(), 0
    try:
        for number, line in enumerate(io.BytesIO(stored.removeprefix(b"\xef\xbb\xbf")), 1):  # noqa: B007
            if text := line.strip(b"\n").removesuffix(b"\r").lstrip(b" \t"):
                parser.feed(os.fsdecode(text))
        number += 1
        parser.end()
    except FormatError as error:
        raise error.at(f"line {number}", None, None, None) from None
    if not parser.files:
        raise FormatError("expected lines of the form 'HASH  FILE', found none")
    return parser.files


class _Parser:
    """Parses a manifest line by line into `files`."""

    def __init__(self) -> None:
        self.files: list[FileHash] = []
        self._open: list[tuple[FileHash, list[TensorHash]]] = []  # until a model line, or the end
        self._is_ours = False

    def feed(self, text: str) -> None:
        if version := VERSION_LINE.fullmatch(text):
            if version[1] != "1":
                raise FormatError(f"expected manifest version 1, found {quote(version[1])}")
            self.end()
            self._is_ours = True
        elif text.startswith(TENSOR) and self._is_ours:
            if not self._open:
                raise FormatError("expected a file line before the first tensor line, found none")
            self._open[-1][1].append(_tensor_line(text.removeprefix(TENSOR)))
        elif text.startswith(MODEL) and self._is_ours:
            self._close(text.removeprefix(MODEL))
        elif text and not text.startswith("#"):
            self._open.append((_file_line(text), []))

    def _close(self, model: str) -> None:
        files = [file._replace(tensors=tuple(tensors)) for file, tensors in self._open]
        if (expected := model_hash(files)) != model:
            raise FormatError(f"expected {expected}, the hash of the tensor lines above, found {quote(model)}")
        names = Counter(tensor.name for file in files for tensor in file.tensors or ())
        if duplicates := [name for name, count in names.items() if count > 1]:
            raise FormatError(f"expected unique tensor names, found {quote(duplicates[0])} again")
        self.files += files
        self._open, self._is_ours = [], False

    def end(self) -> None:
        """Ends a manifest. Raises FormatError if its model line is missing."""
        if self._is_ours:
            raise FormatError(f"expected a line {MODEL.strip()!r} at the end, found none: the manifest is truncated")
        self.files += [file for file, _ in self._open]
        self._open = []


def _tensor_line(text: str) -> TensorHash:
    sha256, _, rest = text.partition(" ")
    type_, _, rest = rest.partition(" [")
    shape, _, name = rest.partition("] ")
    try:
        if HASH.fullmatch(sha256) and TYPE.fullmatch(type_) and SHAPE.fullmatch(f"[{shape}]") and name.startswith('"'):
            return TensorHash(sha256, type_, tuple(json.loads(f"[{shape}]")), json.loads(name))
    except ValueError:  # invalid JSON
        pass
    raise FormatError(f'expected {TENSOR}HASH TYPE [SHAPE] "NAME", found {quote(TENSOR + text)}')


def _file_line(text: str) -> FileHash:
    """Parses a line about a file, in either format of `sha256sum`."""
    if match := FILE_LINE.fullmatch(text):
        escaped, sha256, path = match.groups()
        kind = OTHER_HASHES.get(len(sha256), "")
    elif match := TAGGED_LINE.fullmatch(text):
        escaped, kind, path, sha256 = match.groups()
    elif GGUF_HASH_LINE.fullmatch(text):
        raise FormatError("expected a line 'HASH  FILE', found output of gguf-hash, which does not hash whole files")
    else:
        raise FormatError(f"expected a line of the form 'HASH  FILE', found {quote(text)}")
    if "\0" in path:
        raise FormatError("expected a line of the form 'HASH  FILE', found a NUL byte, which sha256sum --zero writes")
    if len(sha256) != DIGITS or (match.re is TAGGED_LINE and kind.upper() not in TAGS):
        found = f"{len(sha256)} digits{f' of {kind}' if kind else ''}"
        raise FormatError(f"expected a SHA-256 hash of {DIGITS} hex digits, found {found}")
    return FileHash(sha256.lower(), _unescape(path) if escaped else path)


def _unescape(path: str) -> str:
    parts = re.split(r"(\\.?)", path, flags=re.DOTALL)
    letters = {escape: letter for letter, escape in ESCAPES.items()}
    if unknown := [part for part in parts[1::2] if part not in letters]:
        raise FormatError(f"expected one of the escapes {', '.join(letters)} in a file name, found {quote(unknown[0])}")
    return "".join(letters.get(part, part) for part in parts)


class Difference(NamedTuple):
    """A file or tensor that differs from its manifest."""

    name: str
    problem: str


@with_display
@dataclass(frozen=True)
class Verdict:
    """The comparison of a file or set with a manifest.

    Attributes:
        files: files whose bytes differ.
        tensors: tensors that differ, or that only the file or only the manifest has.
        compared: number of tensors in file or manifest; None if the manifest does not list tensors.
        hashed: number of files.
        manifest: its name, for sentences.
    """

    files: list[Difference]
    tensors: list[Difference]
    compared: int | None
    hashed: int = field(default=1, compare=False)
    manifest: str = field(default="the manifest", compare=False)

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.files or self.tensors)

    def lines(self) -> list[str]:
        """Returns the differences, and a summary."""
        lines, manifest = [f"{safe(name)}: {problem}" for name, problem in self.files], safe(self.manifest)
        if self.tensors:
            lines += align([("tensor", "problem"), *((safe(name), problem) for name, problem in self.tensors)], 0)
            lines.append(f"{len(self.tensors)} of {self.compared} tensors differ from {manifest}")
        elif self.compared is not None:
            lines.append(f"{format_count(self.compared, 'tensor matches', 'tensors match')} {manifest}")
        if not self.files:
            lines.append(f"{format_count(self.hashed, 'file matches', 'files match')} {manifest}")
        elif self.compared is not None and not self.tensors:
            lines.append("all tensors match: the header, metadata, offsets or padding differ")
        return lines

    def data(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        return {"compared": self.compared, "files": dict(self.files), "tensors": dict(self.tensors)}


def compare_hashes(found: Sequence[FileHash], expected: Sequence[FileHash], *, name: str = "the manifest") -> Verdict:
    """Compares the hashes of a file or set, from `hash_file`, with a manifest from `read_manifest`,
    whose `name` is for sentences.

    Lines are matched by path, or else by file name. A manifest of a single file matches any name.

    Raises:
        FormatError: if the manifest has no line for a file, or lines with different hashes.
    """
    lines = [_line_about(file, expected, len(found)) for file in found]
    pairs = [(file, line) for file, line in zip(found, lines, strict=True) if file.sha256 != line.sha256]
    files = [Difference(file.path, f"expected SHA-256 {line.sha256}, found {file.sha256}") for file, line in pairs]
    if any(line.tensors is None for line in lines):
        return Verdict(files, [], None, len(found), name)
    here, there = ({tensor.name: tensor for file in side for tensor in file.tensors or ()} for side in (found, lines))
    problems = {name: _problem(here.get(name), there.get(name)) for name in {**there, **here}}
    differing = [Difference(name, problem) for name, problem in problems.items() if problem]
    return Verdict(files, differing, len(problems), len(found), name)


def _line_about(file: FileHash, manifest: Sequence[FileHash], files: int) -> FileHash:
    name = os.path.basename(file.path)
    same_path = [line for line in manifest if os.path.normpath(line.path) == os.path.normpath(file.path)]
    same_name = [line for line in manifest if os.path.basename(line.path) == name]
    lines = same_path or same_name or (list(manifest) if len(manifest) == files == 1 else [])
    if not lines:
        others = ", ".join(quote(line.path) for line in manifest[:3]) or "none"
        raise FormatError(f"expected a line for {quote(name)}, found only lines for other files ({len(manifest)}): {others}")
    if len({line.sha256 for line in lines}) > 1:
        raise FormatError(f"expected one hash for {quote(name)}, found {len(lines)} lines that disagree")
    return next((line for line in lines if line.tensors is not None), lines[0])


def _problem(here: TensorHash | None, there: TensorHash | None) -> str:
    """Returns how a tensor differs from its line in the manifest, or an empty string."""
    if here is None:
        return "not in the file"
    if there is None:
        return "not in the manifest"
    if here.what != there.what:
        return f"{there.what} in the manifest, {here.what} in the file"
    return "payload differs" if here.sha256 != there.sha256 else ""
