"""Opens URLs and standard input as sources."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import Any

from glft_schema.errors import OptionError, install, one_line
from glft_schema.storage.hub import HubFile, HubMetadata
from glft_schema.storage.locations import QUERY, STDIN, STDIN_NAME, USER, Session, current_session, shown, without_secrets
from glft_schema.storage.ranges import Pages, RangeSource, RemoteFile, exactly, up_to
from glft_schema.storage.source import ReadSource, Source
from glft_schema.storage.streams import read_piece, stream_source
from glft_schema.storage.web import WebFile

VERSION = ("size", "ETag", "etag", "generation", "LastModified", "last_modified", "updated", "mtime", "created")


def open_remote(path: str) -> Source:
    """Opens a URL, or standard input for ``-``.

    Raises:
        OSError: with the URL, without secrets in it.
        LimitError: if a server sends the file only as a whole; see the limit ``download``.
        OptionError: if the URL has a wrong form, or requires a library that is not installed.
    """
    if path == STDIN:
        return ReadSource(_standard_input())
    job = current_session() or Session()
    if (pages := job.pages.get(path)) is None:
        pages = Pages(_remote(path, job.commits))
        if job is current_session():
            pages.add_users(1)
            job.pages[path] = pages
    return RangeSource(pages)


def stored_on_hub(path: str) -> HubMetadata:
    """Returns the metadata of ``hf://OWNER/REPO/FILE``. Raises as `open_remote`."""
    with closing(HubFile(path, {})) as file:
        return file.stored()


def _remote(path: str, commits: dict[str, str]) -> RemoteFile:
    scheme = path.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return WebFile(path, shown(path))
    return HubFile(path, commits) if scheme == "hf" else _of_fsspec(path)


@cache
def _standard_input() -> Source:
    """Returns what standard input has, which can be read once only."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "is closed", STDIN_NAME)
    source = stream_source(sys.stdin.buffer, lambda start: None)
    source.name = STDIN_NAME
    return source


def _of_fsspec(path: str) -> RemoteFile:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise OptionError(f"{shown(path)}: requires fsspec: {install('remote')}") from None
    with _errors(path):
        system, inner = url_to_fs(path)
        if system.async_impl:
            return _Bucket(system, inner, path)
        return FileObject(system.open(inner, "rb"), path, owner=system)


class FileObject:
    """The rest of a seekable file object. It is read by one thread at a time.

    Args:
        stream: the file object.
        url: its name.
        owner: an object that must live as long as the stream, which is then closed at the end.
    """

    def __init__(self, stream: Any, url: str, owner: object = None) -> None:
        self.name, self._url = shown(url), url
        self._stream, self._first = stream, stream.tell()
        self._lock = threading.Lock()
        self._owner = owner

    def start(self) -> tuple[bytes, int]:
        with _errors(self._url):
            return b"", int(self._stream.seek(0, os.SEEK_END)) - self._first

    def fetch(self, start: int, stop: int) -> bytes | bytearray:
        with self._lock, _errors(self._url):
            self._stream.seek(self._first + start)
            return exactly(up_to(partial(read_piece, self._stream), stop - start), stop - start, self.name)

    def close(self) -> None:
        if self._owner:
            self._stream.close()


class _Bucket:
    """A file of an object store, read by fsspec."""

    def __init__(self, system: Any, path: str, url: str) -> None:
        self.name, self._url = shown(url), url
        self._system = system
        self._path = path

    def start(self) -> tuple[bytes, int]:
        with _errors(self._url):
            self._info = self._ask()
            return b"", int(self._info["size"])

    def fetch(self, start: int, stop: int) -> bytes:
        with _errors(self._url):
            stored = bytes(self._system.cat_file(self._path, start=start, end=stop))
            if self._ask() != self._info:  # fsspec neither checks nor returns the version of a range
                raise OSError(errno.ESTALE, "the file has changed since it was opened")
        return bytes(exactly(stored, stop - start, self.name))

    def close(self) -> None:
        """Does nothing: the file system is shared, and closed by fsspec."""

    def _ask(self) -> dict[str, Any]:
        self._system.invalidate_cache(self._path)
        info = self._system.info(self._path)
        return {key: info[key] for key in VERSION if key in info}


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Raises the errors of file systems as OSError or OptionError, without the URL's secrets."""
    try:
        yield
    except TypeError:  # not a stream of bytes
        raise
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file", shown(url)) from None
    except Exception as error:  # of any library
        text = without_secrets(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        secrets = (match[0].strip("/@?#") for match in (*USER.finditer(url), *QUERY.finditer(url)))
        for secret in filter(None, secrets):
            text = text.replace(secret, "...")
        if isinstance(error, ImportError):  # fsspec names the library to install
            raise OptionError(f"{shown(url)}: {one_line(text)}") from None
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        raise OSError(code, one_line(text), shown(url)) from None
