"""Ways in which servers misbehave, for the table in docs/guides/remote.md.

Each row has the mode of `tests.storage.server`, what the server does, and the end of the line that
``glft`` prints; None if it succeeds. SIZE, END and STOP stand for numbers.
"""

from __future__ import annotations

from typing import NamedTuple

DOWNLOAD = "glft --download COMMAND or Limits(download=BYTES) stores it in a temporary file first"
CHANGED = "the file has changed since it was opened"


class Case(NamedTuple):
    """A way to misbehave."""

    mode: str
    does: str
    line: str | None


# fmt: off
CASES = (
    Case("busy",      "answers 503 twice",                           None),
    Case("wait",      "answers 429 with `Retry-After: 1`",           None),
    Case("drops",     "drops every second connection half way",      None),
    Case("moved",     "redirects to another host",                   None),
    Case("expired",   "redirects to a URL that soon expires",        None),
    Case("weak",      "sends weak and strong ETags in turn",         None),
    Case("noetag",    "sends no ETag and no Last-Modified",          None),
    Case("chunkedrange", "sends ranges in chunks, without a length", None),
    Case("norange",   "ignores ranges",   f"the server sends only the whole file, of SIZE bytes: {DOWNLOAD}"),
    Case("chunked",   "ignores ranges, and states no size",
         f"the server sends only the whole file, of unknown size: {DOWNLOAD}"),
    Case("change",    "sends another ETag later",                    CHANGED),
    Case("dated",     "sends another Last-Modified later",           CHANGED),
    Case("grows",     "sends another size later",                    CHANGED),
    Case("shifted",   "sends other bytes, and says so",
         "expected bytes 524288-END, the server sent bytes 524289-STOP"),
    Case("short",     "sends a byte less",  "expected a body of 524288 bytes, the server announces 524287"),
    Case("long",      "sends a byte more",  "expected a body of 524288 bytes, the server announces 524289"),
    Case("unsized",   "does not say the size of the file",
         "expected the range and the size of the file, the server sent bytes 0-524287/*"),
    Case("drop",      "always drops the connection half way",
         "the connection ended after 262144 of 524288 bytes, after 2 attempts"),
    Case("stall",     "stops half way, and says nothing",            "the server was silent for 1 s, after 2 attempts"),
    Case("drip",      "sends ten bytes per second",
         "the server sends less than 1024 bytes per second, after 2 attempts"),
    Case("500",       "answers 500",      "the server answers 500 Internal Server Error, after 2 attempts"),
    Case("later",     "answers 429 with `Retry-After: 3600`",
         "the server answers 429 Too Many Requests, and asks to wait 3600 s"),
    Case("gzip",      "compresses",       "expected the bytes of the file, the server sent them as gzip"),
    Case("html",      "sends a page to log in",                      "the server sent a web page instead of a file"),
    Case("401",       "requires a login",                            "the server requires a login (401)"),
    Case("403",       "refuses access",                              "the server refuses access (403)"),
    Case("404",       "has no such file",                            "the server has no such file (404)"),
    Case("416",       "answers 416",                                 "the server has no such range (416)"),
    Case("loop",      "redirects for ever",                          "the server redirects more than 5 times"),
    Case("downgrade", "redirects to `file:///etc/passwd`",  "the server redirects to a URL that is not https"),
)
# fmt: on
