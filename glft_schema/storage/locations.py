"""Locations of files: paths, URLs, and ``-`` for standard input. Sessions, in which a URL is opened
once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import PurePosixPath
from typing import Any

from glft_schema.errors import FormatError, OptionError, quote
from glft_schema.storage.source import StrPath, path_text

while_fetching: Callable[[str], AbstractContextManager[object]] = nullcontext  # entered, with a URL, to wait for its bytes
STDIN, STDIN_NAME = "-", "standard input"
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")  # a letter alone is a drive of Windows
SECRETS = re.compile(r"(?<=://)[^/?#@]*@|[?#].*?(?=::|$)", re.DOTALL)  # user and password, query and fragment
NOT_IN_NAMES = re.compile(r"[/\\?#%:\0]")


def is_remote(path: StrPath) -> bool:
    """Returns whether a path is a URL, such as ``https://HOST/FILE``, or ``-``."""
    text = path_text(path)
    return text == STDIN or URL.match(text) is not None


def shown(path: StrPath) -> str:
    """Returns a path, or a URL without user, password, query and fragment, which may be secrets."""
    return SECRETS.sub("", path_text(path)) if is_remote(path) else path_text(path)


def check_local(path: StrPath) -> None:
    """Raises OptionError if a path to write is a URL."""
    if URL.match(path_text(path)):
        raise OptionError(f"expected a local path to write, found {quote(shown(path))}")


def beside(path: StrPath, name: str) -> str:
    """Returns the location of another file in the same folder as the file at `path`.

    Raises:
        FormatError: if `path` is a URL, and `name` could be more than the name of a file in a URL.
    """
    text = path_text(path)
    if not is_remote(text):
        return os.path.join(os.path.dirname(text), name)
    if NOT_IN_NAMES.search(name):
        raise FormatError(f"expected the name of a file in the directory, found {quote(name)}", file=shown(text))
    from urllib.parse import quote as escaped

    address, mark, query = text.partition("?")
    name = escaped(name) if text.lower().startswith(("http://", "https://")) else name
    return f"{address.rpartition('/')[0]}/{name}{mark}{query}"


class RemotePath(os.PathLike[str]):
    """A URL, or ``-``, as an argument of a command. Its text, for messages, has no secrets.

    Attributes:
        url: the URL as given.
        name, suffix: of the file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        path = PurePosixPath(shown(url))
        self.name, self.suffix = path.name, path.suffix

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
    """The URLs that a job has opened. Each is opened once, so that its bytes are fetched once and
    of one version, and all files of a revision of the Hub are of one commit.

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
            pages.use(-1)
