"""Locations of files (paths, URLs, ``-``), and sessions that open each URL once."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath, PurePosixPath
from typing import Any

from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.storage.source import StrPath, path_text

STDIN, STDIN_NAME = "-", "standard input"
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")  # a letter alone is a drive of Windows
USER = re.compile(r"(?<=:[/\\])([/\\]?)[^/?#]*@")  # and password
QUERY = re.compile(r"[?#].*?(?=::[A-Za-z][A-Za-z0-9+.-]+://|$)", re.DOTALL)  # and fragment
MALFORMED = re.compile(r"(?<=://)[^/?#\[:]*:(?!:|\d*([/?#]|$)).*", re.DOTALL)  # the port may be a part of a password
ON_HUB = re.compile(r"(hf://(?:datasets/|spaces/)?[^/@]+/[^/@]+)/([^@]+)@(.+)", re.DOTALL)
NOT_IN_NAMES = re.compile(r"[/\\?#%:\0]")


def is_remote(path: StrPath) -> bool:
    """Returns whether a path is a URL, such as ``https://HOST/FILE``, or ``-``."""
    text = path_text(path)
    return text == STDIN or URL.match(text) is not None


def location_of(path: object) -> str:
    """Returns a path or URL as text, ``hf://`` with the revision after REPO, so that it ends in a
    file name. Raises OptionError as `path_text`."""
    text = path_text(path)
    if match := ON_HUB.fullmatch(text):
        text = f"{match[1]}@{match[3].replace('/', '%2F')}/{match[2]}"
    return text


def shown(path: StrPath) -> str:
    """Returns a path, or a URL without user, password, query and fragment, which may be secrets."""
    text = location_of(path)
    if text == STDIN:
        return STDIN_NAME
    return without_secrets(text, f"^{URL.pattern}.*") if is_remote(text) else text


def file_name(path: StrPath) -> str:
    """Returns the name of the file at a path or URL, without its folder."""
    from urllib.parse import unquote

    text = path_text(path)
    name = (PurePosixPath if is_remote(text) else PurePath)(shown(text)).name
    return unquote(name) if _is_http(text) else name


def without_secrets(text: str, url: str = r"[A-Za-z][A-Za-z0-9+.-]+:[/\\][^\s'\"]*") -> str:
    """Returns a text with its URLs, also those with one slash or backslash, as `shown`."""
    return re.sub(url, lambda match: MALFORMED.sub("...", QUERY.sub("", USER.sub(r"\1", match[0]))), text, flags=re.DOTALL)


def _is_http(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def check_local(path: StrPath) -> None:
    """Raises OptionError if a path to write is a URL or ``-``."""
    if is_remote(path):
        raise OptionError(f"expected a local path to write, found {quote(shown(path))}")


def beside(path: StrPath, name: str) -> str:
    """Returns the location of another file in the same folder as the file at `path`.

    Raises:
        FormatError: if `path` is a URL, and `name` could be more than the name of a file in a URL.
        FileNotFoundError: if `path` is ``-``.
    """
    text = location_of(path)
    if text == STDIN:
        raise FileNotFoundError(errno.ENOENT, "no other file is beside it", STDIN_NAME)
    if not is_remote(text):
        return os.path.join(os.path.dirname(text), name)
    if NOT_IN_NAMES.search(name):
        raise FormatError(f"expected the name of a file in the directory, found {quote(name)}", file=shown(text))
    from urllib.parse import quote as escaped

    address, mark, query = text.partition("?")
    name = escaped(name) if _is_http(text) else name
    return f"{address.rpartition('/')[0]}/{name}{mark}{query}"


class RemotePath(os.PathLike[str]):
    """A URL, or ``-``, as an argument of a command. ``str`` omits its secrets.

    Attributes:
        url: the URL as given.
        name, suffix: of the file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = file_name(url)
        self.suffix = PurePosixPath(self.name).suffix

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return shown(self.url)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def is_dir(self) -> bool:
        """Returns False: folders have no URL."""
        return False


class Session:
    """The URLs that a job has opened. Each is opened once, so that all reads see one version, and
    all files of a revision of the Hub are of one commit.

    Attributes:
        pages: the bytes of each URL, see `glft_schema.storage.ranges.Pages`.
        commits: the commit of each revision.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.commits: dict[str, str] = {}


_session: ContextVar[Session | None] = ContextVar("session", default=None)
current_session = _session.get


@contextmanager
def session() -> Iterator[None]:
    """Makes the block a job, unless it is in one. Files that are open at its end stay usable."""
    if _session.get():
        yield
        return
    job = Session()
    token = _session.set(job)
    try:
        yield
    finally:
        _session.reset(token)
        for pages in job.pages.values():
            pages.add_users(-1)
