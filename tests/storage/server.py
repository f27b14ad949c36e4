"""HTTP servers on a loopback address that serve a file, well or badly, and log the requests."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from glft_schema.storage.ranges import WORKER

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Request(NamedTuple):
    """A request that a server has had."""

    method: str
    path: str
    headers: dict[str, str]
    status: int
    sent: int  # bytes of the body


class Handler(BaseHTTPRequestHandler):
    """Serves ``/MODE/FILE`` from a folder."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        mode, _, path = unquote(urlsplit(self.path).path)[1:].partition("/")
        self._answer(mode, path)

    def _begin(self, status: int, sent: int, headers: dict[str, str]) -> None:
        """Logs the request, and sends the head of the response."""
        path, given = unquote(urlsplit(self.path).path), {key.lower(): value for key, value in self.headers.items()}
        self.server.requests.append(Request(self.command, path, given, status, sent if self.command == "GET" else 0))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self._begin(status, len(body), {"Content_Length": str(len(body)), **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(self, mode: str, path: str) -> None:
        server, before = self.server, sum(request.path == f"/{mode}/{path}" for request in self.server.requests)
        if mode == "hub":
            self._hub(path)
            return
        file = server.folder / path
        if mode == "404" or not file.is_file():
            self._reply(404, b"no such file")
            return
        if mode in ("401", "403", "500"):
            self._reply(int(mode), b"no")
            return
        if mode == "busy" and before < 2:
            self._reply(503)
            return
        if mode == "wait" and before < 1:
            self._reply(429, Retry_After="1")
            return
        if mode == "later":
            self._reply(429, Retry_After="3600")
            return
        if mode == "html":
            self._reply(200, b"<!DOCTYPE html><html>Log in</html>", Content_Type="text/html; charset=utf-8")
            return
        if mode == "moved":
            self._reply(302, Location=f"http://localhost:{server.server_port}/ok/{path}?signature=SECRET")
            return
        if mode == "expired":
            self._reply(302, Location=f"http://localhost:{server.server_port}/signed{before}/{path}")
            return
        if mode.startswith("signed") and before >= 2:
            self._reply(403)
            return
        if mode == "loop":
            self._reply(302, Location=f"/loop/{path}")
            return
        if mode == "downgrade":
            self._reply(302, Location="file:///etc/passwd")
            return
        stored = file.read_bytes()
        size = len(stored)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        headers = {"ETag": '"version 1"', "Content_Type": "application/octet-stream"}
        if mode == "noetag":
            headers = {}
        if mode == "weak":
            headers["ETag"] = 'W/"version 1"' if before % 2 else '"version 1"'
        if mode == "change" and before >= 1:
            headers["ETag"] = '"version 2"'
        if mode == "dated":
            headers = {"Last_Modified": f"Sun, 06 Nov 1994 08:49:3{min(before, 1)} GMT"}
        if mode == "norange" or not asked:
            self._reply(200, stored, **headers)
            return
        if mode in ("chunked", "chunkedrange"):
            self._chunked(stored, asked if mode == "chunkedrange" else None, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2]) + 1, size)
        if start >= size or mode == "416":
            self._reply(416, Content_Range=f"bytes */{size}")
            return
        body, total = stored[start:stop], str(size)
        if mode == "lie" and start > 1 << 21:
            body = bytes(len(body))
        if mode == "shifted" and start:
            start, stop, body = start + 1, stop + 1, stored[start + 1 : stop + 1]
        if mode == "grows" and before:
            total = str(size + before)
        if mode == "unsized":
            total = "*"
        headers["Content_Range"] = f"bytes {start}-{stop - 1}/{total}"
        if mode == "short":
            body = body[:-1]
        if mode == "long":
            body += b"x"
        if mode == "gzip":
            headers["Content_Encoding"] = "gzip"
        if mode == "drip":
            self._begin(206, len(body), {"Content_Length": str(len(body)), **headers})
            while not self.server.stopped.wait(0.1):
                self.wfile.write(body[:1])
            return
        if mode in ("drop", "stall") or (mode == "drops" and before % 2) or (mode == "stalls" and before):
            self._part(body, headers, stall=mode.startswith("stall"))
            return
        self._reply(206, body, **headers)

    def _part(self, body: bytes, headers: dict[str, str], stall: bool) -> None:
        """Sends half a body, and then nothing or the end of the connection."""
        self._begin(206, len(body) // 2, {"Content_Length": str(len(body)), **headers})
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        if stall:
            self.server.stopped.wait(30)
        self.close_connection = True

    def _chunked(self, stored: bytes, asked: re.Match[str] | None, headers: dict[str, str]) -> None:
        start, stop = (int(asked[1]), min(int(asked[2]) + 1, len(stored))) if asked else (0, len(stored))
        if asked:
            headers["Content_Range"] = f"bytes {start}-{stop - 1}/{len(stored)}"
        self._begin(206 if asked else 200, stop - start, {"Transfer_Encoding": "chunked", **headers})
        for at in range(start, stop, 100_000):
            piece = stored[at : min(at + 100_000, stop)]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _hub(self, path: str) -> None:
        """Answers as the Hub: ``OWNER/REPO/resolve/REVISION/FILE``, a redirect for a large file."""
        found = re.fullmatch(r"([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        file = self.server.folder / (found[3] if found else "")
        if not found or not file.is_file() or not re.fullmatch("main|v1|[0-9a-f]{40}", found[2]):
            self._reply(404, b"Entry not found", X_Error_Code="EntryNotFound")
            return
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._reply(401, b"Access to model is restricted", X_Error_Code="GatedRepo")
            return
        stored = file.read_bytes()
        commit = {"X_Repo_Commit": self.server.commit}
        if self.server.moves:
            self.server.commit = f"{len(self.server.requests):040x}"
        if len(stored) < 2000:  # in git itself
            etag = sha1(b"blob %d\0" % len(stored) + stored).hexdigest()
            self._reply(200, stored, ETag=f'"{etag}"', **commit)
            return
        linked = {"X_Linked_Etag": f'"{sha256(stored).hexdigest()}"', "X_Linked_Size": str(len(stored))}
        self._reply(
            302, Location=f"http://localhost:{self.server.server_port}/ok/{found[3]}?signature=SECRET", **commit, **linked
        )


class Server(ThreadingHTTPServer):
    """A server of a folder.

    Attributes:
        folder: the files.
        requests: those it has had, in order.
        commit: of the stand-in of the Hub.
        moves: whether it has another commit for each request, even by the hash of one.
        token: that its files require; none if empty.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.requests: list[Request] = []
        self.commit = COMMIT
        self.moves = False
        self.token = ""
        self.stopped = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Says nothing about connections that a client has closed."""

    def url(self, file: str, mode: str = "ok") -> str:
        """Returns the URL of a file in a mode."""
        return f"http://127.0.0.1:{self.server_port}/{mode}/{file}"


def join_workers() -> None:
    """Waits for the threads of sources that are closed or collected, which close connections."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == WORKER:
            thread.join(5)


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serves a folder while the block runs."""
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
