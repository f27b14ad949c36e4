"""The folder of kernels, and whether its content can be trusted.

A kernel is machine code that runs in this process. So the folder and all files in it must belong to
this user, and neither they nor any folder above may be writable by others.

    KERNEL-DIGEST.kernel.json   a manifest: what the kernel depends on, and the name of its library
    SHA256.so                   the library, named by its content

Libraries are written before the manifests that name them, and both are replaced in one step. So a
reader finds a whole kernel or none, whatever other processes do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from glft_schema.errors import shown

FOLDER = "GLFT_KERNELS_FOLDER"  # the environment variable
MAX_MANIFEST = 1 << 20  # bytes
MAX_LIBRARY = 1 << 28
OTHERS = stat.S_IWGRP | stat.S_IWOTH
UNFINISHED = ".glft-kernel-"  # names of temporary files and folders begin with it
ENDING = ".kernel.json"
LIBRARY = re.compile(r"[0-9a-f]{64}\.so")


class UntrustedError(Exception):
    """A folder, manifest or library that must not be used; the text says why."""


@dataclass(frozen=True)
class Manifest:
    """The description of a kernel.

    Attributes:
        kernel: the name of the kernel.
        key: everything the kernel depends on.
        library: the SHA-256 of the library, or None if building has failed.
        layout: the arguments of the kernel, see `in_use.Kernel`.
        about: the measured speed, or why there is no library.
    """

    kernel: str
    key: Mapping[str, str]
    library: str | None
    layout: Sequence[Mapping[str, Any]]
    about: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The name of the manifest's file."""
        return file_name(self.kernel, self.key)

    def content(self) -> bytes:
        """Returns the content of the manifest's file, with a digest of all fields."""
        return _json({**vars(self), "digest": sha256(_json(vars(self))).hexdigest()})

    def is_well_formed(self) -> bool:
        """Tells whether the fields have the types that they should."""
        return (
            _is_dict(self.key, str)
            and _is_dict(self.about, (str, int, float))
            and (self.library is None or bool(re.fullmatch("[0-9a-f]{64}", self.library)))
            and bool(self.layout)
            and all(
                argument.keys() == {"dtype", "sizes"}
                and isinstance(argument["dtype"], str)
                and all(isinstance(number, int) for number in argument["sizes"])
                for argument in self.layout
            )
        )


def _is_dict(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, dict) and all(isinstance(part, kinds) for part in value.values())


def file_name(kernel: str, key: Mapping[str, str]) -> str:
    """Returns the name of a kernel's manifest."""
    return f"{kernel}-{sha256(_json(key)).hexdigest()[:16]}{ENDING}"


def kernel_folder() -> Path:
    """Returns the folder of kernels: ``GLFT_KERNELS_FOLDER``, or ``glft_schema/kernels`` in the
    user's folder of caches."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = os.path.expanduser("~/.cache")
    return Path(os.path.abspath(os.environ.get(FOLDER) or os.path.join(caches, "glft_schema", "kernels")))


def make_folder(folder: Path) -> None:
    """Creates the folder and its parents for this user alone.

    Raises UntrustedError as `check_folder`, and OSError from the system.
    """
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    if missing:  # nothing is made in another user's folder, as with sudo
        _check_parent(missing[-1].parent, missing[-1].parent.stat())
    for path in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            path.mkdir(mode=0o700)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raises UntrustedError if another user could change what the folder holds."""
    try:
        found = os.lstat(folder)
        above = [(path, os.stat(path)) for path in folder.resolve().parents]
    except OSError as error:
        raise UntrustedError(f"{folder}: {error.strerror}") from None
    _check_owner(folder, found)
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedError(f"{folder}: expected a folder, found a link or file")
    if found.st_mode & 0o077:
        raise UntrustedError(f"{folder}: expected mode 0700, found {stat.S_IMODE(found.st_mode):04o}")
    for path, status in above:
        _check_parent(path, status)


def _check_parent(path: Path, status: os.stat_result) -> None:
    """Others may write to a sticky folder, in which nobody can rename what belongs to another."""
    if status.st_uid not in (0, os.geteuid()):
        raise UntrustedError(f"{path}: expected a folder of this user or root, found user {status.st_uid}")
    if status.st_mode & OTHERS and not status.st_mode & stat.S_ISVTX:
        raise UntrustedError(f"{path}: expected a folder that others cannot write to; chmod go-w fixes it")


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"{path}: expected user {os.geteuid()} as owner, found {status.st_uid}")


def read_file(path: Path, limit: int) -> bytes:
    """Returns the content of a file. Raises UntrustedError unless it is this user's alone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UntrustedError(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        _check_owner(path, status)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & OTHERS:
            raise UntrustedError(f"{path}: expected a regular file that others cannot write to")
        if status.st_size > limit:
            raise UntrustedError(f"{path}: expected at most {limit} bytes, found {status.st_size}")
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def read_manifest(path: Path) -> Manifest:
    """Reads a manifest. Raises UntrustedError if it is damaged or not this user's alone."""
    content = read_file(path, MAX_MANIFEST)
    try:
        fields = json.loads(content)
        del fields["digest"]
        manifest = Manifest(**fields)
        if manifest.content() != content or not manifest.is_well_formed():
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UntrustedError(f"{path}: damaged") from None
    if manifest.file != path.name:
        raise UntrustedError(f"{path}: holds the kernel {shown(manifest.file)}")
    return manifest


def library_path(folder: Path, manifest: Manifest) -> Path:
    """Returns the path of a manifest's library. Raises UntrustedError if its content is another."""
    path = folder / f"{manifest.library}.so"
    found = sha256(read_file(path, MAX_LIBRARY)).hexdigest()
    if found != manifest.library:
        raise UntrustedError(f"{path}: damaged")
    return path


def write_kernel(folder: Path, manifest: Manifest, library: bytes | None) -> None:
    """Adds a kernel, or replaces an older one."""
    if library is not None:
        _write(folder / f"{manifest.library}.so", library)
    _write(folder / manifest.file, manifest.content())


def manifests(folder: Path, kernel: str = "") -> Iterator[tuple[Path, Manifest | UntrustedError]]:
    """Yields all manifests, or those of one kernel, by name, or why one cannot be used."""
    prefix = f"{kernel}-" if kernel else ""
    for path in sorted(path for path in folder.glob(f"*{ENDING}") if path.name.startswith(prefix)):
        try:
            yield path, read_manifest(path)
        except UntrustedError as error:
            yield path, error


def remove_unused(folder: Path) -> None:
    """Removes libraries that no manifest names, and what killed builders have left.

    The caller must hold the folder's lock, so that no other process is writing.
    """
    used = {f"{manifest.library}.so" for _, manifest in manifests(folder) if isinstance(manifest, Manifest)}
    for path in folder.iterdir():
        if path.name.startswith(UNFINISHED) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name.startswith(UNFINISHED) or (LIBRARY.fullmatch(path.name) and path.name not in used):
            path.unlink()


def _write(path: Path, content: bytes) -> None:
    fd, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)  # with mode 0600
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, indent=1, default=dict).encode()
