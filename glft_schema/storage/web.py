"""Files on HTTP servers, read by ranges over `http.client`.

Each response is checked: status 206, the requested range, the size and version of the first
response, and no compression. Dropped and stalled connections, 429 and 5xx are retried.
"""

from __future__ import annotations

import errno
import http.client
import os
import random
import re
import socket
import ssl
import tempfile
import threading
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from glft_schema.display import format_count
from glft_schema.errors import LimitError, one_line
from glft_schema.limits import current
from glft_schema.storage.file_source import FileSource
from glft_schema.storage.ranges import FIRST, up_to

PIECE = 1 << 20  # bytes per read
PROGRESS = 1 << 16  # bytes of an attempt that does not count as a failure; the next one continues after them
SLOWEST = 1 << 10  # bytes per second
REDIRECTS, TEMPORARY = (301, 302, 303, 307, 308), (408, 425, 429, 500, 502, 503, 504)
EXPIRED = (400, 401, 403, 404, 410)  # statuses of an expired signed URL
MOST_REDIRECTS = 5
BACKOFF = 0.25  # seconds before the second attempt, doubled for each further one
MOST_WAIT = 60  # seconds of a Retry-After
REASONS = {
    401: (errno.EACCES, "the server requires a login (401)"),
    403: (errno.EACCES, "the server refuses access (403)"),
    404: (errno.ENOENT, "the server has no such file (404)"),
    410: (errno.ENOENT, "the server no longer has this file (410)"),
    416: (errno.EIO, "the server has no such range (416)"),
}
NOT_SECURE = "the server redirects to a URL that is not https"
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
SAFE = "/%:=&?~+!$,;'@()*[]"  # characters of a URL that stay as they are

Result = TypeVar("Result")
Response = http.client.HTTPResponse


class _RetryableError(Exception):
    """A failure that may be temporary."""

    def __init__(self, reason: str, wait: float = 0, code: int = errno.EIO) -> None:
        super().__init__(reason)
        self.wait = wait
        self.code = code


class WebFile:
    """A file on an HTTP server.

    Args:
        url: its URL. User and password in it are sent as basic authentication.
        name: its location, without secrets.
        headers: for the server of `url` only; not sent to another after a redirect.

    Raises:
        OSError: if the URL is invalid.
    """

    hints: Mapping[int, str] = {}

    def __init__(self, url: str, name: str, headers: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._limits = current()
        self._headers = dict(headers or {})
        parts = self._split(url)
        if parts.username is not None:
            self._headers["Authorization"] = _basic(parts)
        self.url = self._target = bare(parts)  # the target of redirects is used again
        self._version: tuple[int, str] | None = None  # size, and ETag or Last-Modified
        self._whole: FileSource | None = None  # if the server does not serve ranges
        self._idle = defaultdict[Any, list[http.client.HTTPConnection]](list)  # by process and server
        self._busy: dict[http.client.HTTPConnection, Any] = {}
        self._closed = threading.Event()

    def start(self) -> tuple[bytes | bytearray, int]:
        """Returns the first bytes of the file, and its size. Downloads all of it to a temporary
        file if the server does not serve ranges and the limit ``download`` allows it.

        Raises:
            LimitError: if that limit does not allow it.
            OSError: with the name of the file.
        """
        return self._with_retries(self._start)

    def fetch(self, start: int, stop: int) -> bytes | bytearray | memoryview:
        """Returns a range of bytes. Raises OSError, with the name of the file."""
        if self._whole:
            return self._whole.view(start, stop - start)
        stored = bytearray()
        self._with_retries(partial(self._fetch, stored, start, stop), stored)
        return stored

    def head(self) -> Message:
        """Returns the headers of the last response of the URL's own server, which may redirect to
        another one."""

        def ask() -> Message:
            with self._response("HEAD", {}, elsewhere=False) as response:
                self._check_status(response, (200, *REDIRECTS))
                return response.headers

        return self._with_retries(ask)

    def close(self) -> None:
        """Closes all connections."""
        self._closed.set()
        for connection in [one for one, server in [*self._busy.items()] if server[0] == os.getpid()]:
            with suppress(OSError, AttributeError):  # ends a read in another thread
                connection.sock.shutdown(socket.SHUT_RDWR)
        for idle in [*self._idle.values()]:
            while idle:
                idle.pop().close()

    def _with_retries(self, attempt: Callable[[], Result], stored: bytearray | None = None) -> Result:
        """Calls `attempt` again if it raises `_RetryableError`. Attempts that add `PROGRESS` bytes
        to `stored` do not count."""
        failures, before = 0, 0
        while True:
            try:
                return attempt()
            except _RetryableError as error:
                failures += 1
                if stored is not None and len(stored) - before >= PROGRESS:
                    failures, before = 1, len(stored)
                if error.wait > MOST_WAIT:
                    raise self._error(errno.EBUSY, f"{error}, and asks to wait {error.wait:.0f} s") from None
                if failures >= self._limits.attempts:
                    raise self._error(error.code, f"{error}, after {format_count(failures, 'attempt')}") from None
                wait = max(error.wait, BACKOFF * 2 ** (failures - 1) * random.uniform(0.8, 1.2))
            if self._closed.wait(wait):
                raise self._error(errno.ECANCELED, "closed")

    def _start(self) -> tuple[bytes | bytearray, int]:
        with self._response("GET", {"Range": f"bytes=0-{FIRST - 1}"}) as response:
            if response.status == 416 and response.headers.get("Content-Range") == "bytes */0":
                return b"", 0
            self._check_status(response, (200, 206))
            if response.status == 206:
                size = self._check_range(response, 0, None)
                return self._body(response, bytearray(), min(size, FIRST)), size
            length = response.length
            stored = bytearray() if length and length > FIRST else up_to(partial(self._read, response), FIRST + 1)
            if len(stored) <= FIRST and (length is None or length == len(stored)):  # a small file
                self._version = (len(stored), _version(response))
                return stored, len(stored)
            if length and length <= FIRST:
                raise _RetryableError(f"the connection ended after {len(stored)} of {length} bytes")
            about = "of unknown size" if length is None else f"of {length:,} bytes"
            if (length or FIRST) > self._limits.download:
                advice = "glft --download COMMAND or Limits(download=BYTES) stores it in a temporary file first"
                raise LimitError(f"the server sends only the whole file, {about}: {advice}", file=self.name)
            self._whole = self._download(response, stored, length)
            return b"", self._whole.size

    def _download(self, response: Response, start: bytearray, length: int | None) -> FileSource:
        with tempfile.TemporaryFile() as file:
            total = file.write(start)
            while piece := self._read(response, PIECE):
                total += file.write(piece)
                self._limits.check("download", total, "", " bytes downloaded as a whole", self.name)
            file.flush()
            if length is not None and total != length:
                raise _RetryableError(f"the connection ended after {total} of {length} bytes")
            return FileSource(os.dup(file.fileno()), self.name)

    def _fetch(self, stored: bytearray, start: int, stop: int) -> None:
        first = start + len(stored)
        with self._response("GET", {"Range": f"bytes={first}-{stop - 1}"}) as response:
            self._check_status(response, (206,))
            self._check_range(response, first, stop)
            self._body(response, stored, stop - start)

    def _body(self, response: Response, stored: bytearray, nbytes: int) -> bytearray:
        """Reads the body, which completes `stored` to `nbytes` bytes."""
        left = nbytes - len(stored)
        if response.length not in (None, left):
            raise self._error(errno.EIO, f"expected a body of {left} bytes, the server announces {response.length}")
        begun, before = time.monotonic(), len(stored)

        def read(wanted: int) -> bytes:
            seconds = time.monotonic() - begun
            if seconds > self._limits.server_seconds and len(stored) - before < seconds * SLOWEST:
                raise _RetryableError(f"the server sends less than {SLOWEST} bytes per second", code=errno.ETIMEDOUT)
            return self._read(response, wanted)

        if len(up_to(read, nbytes, stored)) < nbytes:
            raise _RetryableError(f"the connection ended after {left - nbytes + len(stored)} of {left} bytes")
        if not response.isclosed() and self._read(response, 1):  # a body of unknown length
            raise self._error(errno.EIO, f"expected a body of {left} bytes, the server sent more")
        return stored

    def _check_status(self, response: Response, expected: tuple[int, ...]) -> None:
        status, headers = response.status, response.headers
        about = f"{status} {http.client.responses.get(status, '')}".strip()
        if status in TEMPORARY:
            raise _RetryableError(f"the server answers {about}", _wait_of(headers.get("Retry-After", "")))
        if status in REASONS:
            code, reason = REASONS[status]
            raise self._error(code, reason + self.hints.get(status, ""))
        if status not in expected:
            ignored = "the server ignored the range and sent the whole file"
            raise self._error(errno.EIO, ignored if status == 200 else f"the server answers {about}")
        if (encoding := headers.get("Content-Encoding") or "identity").lower() != "identity":
            raise self._error(errno.EIO, f"expected the bytes of the file, the server sent them as {one_line(encoding, 20)}")
        if headers.get_content_type() == "text/html" and status in (200, 206):
            hint = "; files of the Hugging Face Hub: hf://OWNER/REPO/FILE" if "/blob/" in self.url else ""
            raise self._error(errno.EIO, f"the server sent a web page instead of a file{hint}")

    def _check_range(self, response: Response, start: int, stop: int | None) -> int:
        """Checks the range of a response, and returns the size of the file."""
        text = response.headers.get("Content-Range", "no Content-Range")
        found = CONTENT_RANGE.fullmatch(text)
        if not found:
            raise self._error(errno.EIO, f"expected the range and the size of the file, the server sent {one_line(text, 60)}")
        first, last, size = map(int, found.groups())
        expected = min(FIRST, size) if stop is None else stop
        version = (size, _version(response))
        if self._version not in (None, version):
            raise self._error(errno.ESTALE, "the file has changed since it was opened")
        if (first, last + 1) != (start, expected):
            raise self._error(errno.EIO, f"expected bytes {start}-{expected - 1}, the server sent {one_line(text, 60)}")
        self._version = version
        return size

    @contextmanager
    def _response(self, method: str, headers: Mapping[str, str], *, elsewhere: bool = True) -> Iterator[Response]:
        """Sends a request, and yields the response after redirects, to other servers only if
        `elsewhere`. Its body is not read."""
        connection, response = self._follow(method, headers, elsewhere)
        try:
            yield response
        finally:
            server, is_read = self._busy.pop(connection), response.isclosed()
            response.close()
            if is_read and not self._closed.is_set():
                self._idle[server].append(connection)
            else:
                connection.close()

    def _follow(self, method: str, headers: Mapping[str, str], elsewhere: bool) -> tuple[http.client.HTTPConnection, Response]:
        kept = url = self._target if elsewhere else self.url
        for _ in range(MOST_REDIRECTS + 1):
            own = self.url
            connection, response = self._send(method, url, headers)
            if response.status in EXPIRED and url == kept != own:
                target = self._split(own)
            elif response.status in REDIRECTS:
                location = response.headers.get("Location", "").encode("latin-1", "replace").decode("utf-8", "surrogateescape")
                try:
                    target = self._split(location, url)
                except OSError:
                    self._drop(connection, response)
                    raise self._error(errno.EIO, NOT_SECURE) from None
                if not elsewhere and _origin(target) != _origin(urlsplit(url)):
                    return connection, response
            else:
                if response.status in (200, 206):
                    self._target = self.url if url == own else url
                return connection, response
            self._drop(connection, response)
            if target.scheme == "http" and url.startswith("https:"):
                raise self._error(errno.EIO, NOT_SECURE)
            url = bare(target)
        raise self._error(errno.ELOOP, f"the server redirects more than {MOST_REDIRECTS} times")

    def _drop(self, connection: http.client.HTTPConnection, response: Response) -> None:
        del self._busy[connection]
        response.close()
        connection.close()

    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[http.client.HTTPConnection, Response]:
        """Sends a request, and returns the connection and the response, whose body is not read."""
        parts = urlsplit(url)
        server, (proxy, for_proxy) = (os.getpid(), *_origin(parts)), self._proxy(parts)
        headers = {"Accept-Encoding": "identity", "User-Agent": "glft_schema", **headers}
        if is_own := _origin(parts) == _origin(urlsplit(self.url)):
            headers = {**self._headers, **headers}
        target = parts._replace(scheme="", netloc="", path=parts.path or "/").geturl()
        if proxy and parts.scheme == "http":
            target, headers = parts.geturl(), {**headers, **for_proxy}
        while True:
            try:
                connection, is_new = self._idle[server].pop(), False
            except IndexError:
                connection, is_new = self._connect(parts, proxy, for_proxy), True
            self._busy[connection] = server
            try:
                self._call(connection.request, method, target, None, headers)
                response = self._call(connection.getresponse)
                if is_own:
                    self._saw(response.headers)
            except BaseException as error:
                del self._busy[connection]
                connection.close()
                if is_new or not isinstance(error, _RetryableError) or self._closed.is_set():
                    raise  # otherwise the server has closed a connection that was idle
            else:
                return connection, response

    def _saw(self, headers: Message) -> None:
        """Called with the headers of each response of the URL's own server."""

    def _connect(self, parts: SplitResult, proxy: SplitResult | None, headers: dict[str, str]) -> http.client.HTTPConnection:
        host, port = _address(proxy or parts)
        seconds = max(self._limits.server_seconds, 1)
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=seconds)
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)
        if proxy:
            connection.set_tunnel(*_address(parts), headers)
        return connection

    def _proxy(self, parts: SplitResult) -> tuple[SplitResult | None, dict[str, str]]:
        """Returns the proxy that the environment names for a server, and headers for it."""
        named = "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
        if not named:
            return None, {}
        proxy = urlsplit(named if "://" in named else f"http://{named}")
        if proxy.scheme != "http":
            raise self._error(errno.EPROTONOSUPPORT, "expected a proxy such as http://HOST:PORT in the environment")
        return proxy, {} if proxy.username is None else {"Proxy-Authorization": _basic(proxy)}

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _read(self, response: Response, nbytes: int) -> bytes:
        return self._call(response.read1, min(nbytes, PIECE))

    def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function of a connection, and raises its failures as `_RetryableError`, or as
        OSError if another attempt cannot help."""
        try:
            return function(*arguments)
        except TimeoutError:
            reason = f"the server was silent for {self._limits.server_seconds} s"
            raise _RetryableError(reason, code=errno.ETIMEDOUT) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            text = one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            is_final = isinstance(error, (ssl.SSLCertVerificationError, http.client.InvalidURL, UnicodeError))
            may_be = isinstance(error, (ConnectionRefusedError, socket.gaierror, ssl.SSLError))  # or a server that restarts
            if is_final or (self._version is None and may_be):
                raise self._error(errno.EHOSTUNREACH, f"cannot connect: {text}") from None
            raise _RetryableError(f"the connection failed: {text}") from None

    def _split(self, url: str, base: str = "") -> SplitResult:
        """Returns the parts of a URL, with its path and query escaped."""
        try:
            parts = urlsplit(urljoin(base, url))
            path, query = (quote(part, SAFE, errors="surrogateescape") for part in (parts.path, parts.query))
            parts = parts._replace(path=path, query=query, fragment="")
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return parts
        except ValueError:  # such as a port that is not a number
            pass
        raise self._error(errno.EINVAL, "expected a URL such as https://HOST/FILE")

    def _error(self, code: int, text: str) -> OSError:
        return OSError(code, text, self.name)


def bare(parts: SplitResult) -> str:
    """Returns a URL without user and password."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _origin(parts: SplitResult) -> tuple[str, str]:
    """Returns the server of a URL, the only one that gets its credentials."""
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def _address(parts: SplitResult) -> tuple[str, int]:
    """Returns the host and the port of a URL."""
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _basic(parts: SplitResult) -> str:
    """Returns a header with the user and password of a URL."""
    user, password = (unquote(part or "") for part in (parts.username, parts.password))
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def _version(response: Response) -> str:
    """Returns the version of a file: its ETag, or the time of its last change; empty without."""
    headers = response.headers
    return str(headers.get("ETag") or headers.get("Last-Modified") or "").removeprefix("W/")


def _wait_of(retry_after: str) -> float:
    """Returns the seconds that a server asks to wait."""
    if retry_after.isdecimal():
        return float(retry_after[:9])
    try:
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0)
    except (TypeError, ValueError, OverflowError):
        return 0
