"""Opens URLs and standard input as sources."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from glft_schema.errors import OptionError, install, one_line
from glft_schema.storage.hub import HubFile, Stored
from glft_schema.storage.locations import SECRETS, STDIN, STDIN_NAME, Session, current_session, shown
from glft_schema.storage.ranges import FileObject, Pages, RangeSource, Remote, exactly
from glft_schema.storage.source import ReadSource, Source
from glft_schema.storage.streams import stream_source
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
            pages.use(1)
            job.pages[path] = pages
    return RangeSource(pages)


def stored_on_hub(path: str) -> Stored:
    """Returns what the Hub states about ``hf://OWNER/REPO/FILE``. Raises as `open_remote`."""
    with closing(HubFile(path, {})) as file:
        return file.stored()


def _remote(path: str, commits: dict[str, str]) -> Remote:
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


def _of_fsspec(path: str) -> Remote:
    name = shown(path)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise OptionError(f"{name}: this needs fsspec, which is not installed: {install('remote')}") from None
    with _errors(name):
        system, inner = url_to_fs(path)
        if system.async_impl:
            return _Bucket(system, inner, name)
        return FileObject(system.open(inner, "rb"), name, owner=system)


class _Bucket:
    """A file of an object store, read by fsspec."""

    def __init__(self, system: Any, path: str, name: str) -> None:
        self.name = name
        self._system = system
        self._path = path

    def start(self) -> tuple[bytes, int]:
        with _errors(self.name):
            self._info = self._ask()
        return b"", int(self._info["size"])

    def fetch(self, start: int, stop: int) -> bytes:
        with _errors(self.name):
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
def _errors(name: str) -> Iterator[None]:
    """Raises the errors of file systems as OSError or OptionError, without secrets."""
    try:
        yield
    except ImportError as error:  # fsspec names the library to install
        raise OptionError(f"{name}: {_without_secrets(error)}") from None
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file", name) from None
    except Exception as error:  # those of any library
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        raise OSError(code, _without_secrets(error), name) from None


def _without_secrets(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return one_line(SECRETS.sub("", text))
