"""Files of the Hugging Face Hub, ``hf://OWNER/REPO/FILE@REVISION``."""

from __future__ import annotations

import errno
import os
import re
from email.message import Message
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote as escaped
from urllib.parse import unquote

from glft_schema.errors import OptionError, quote
from glft_schema.storage.locations import location_of, shown
from glft_schema.storage.web import WebFile, bare

NAME = r"[A-Za-z0-9][\w.-]*"
PATTERN = re.compile(rf"hf://((?:datasets/|spaces/)?(?!datasets/|spaces/){NAME}/{NAME})(?:@([^/@]+))?/([^@?#]+)")
TOKEN = re.compile("[!-~]+")
TOKEN_HINT = "set HF_TOKEN, and accept the repository's conditions on its page if it has some"
SHA1, SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


class HubMetadata(NamedTuple):
    """Metadata of a file on the Hub.

    Attributes:
        commit: the commit of the revision.
        digest: SHA-256 of its bytes, or for a small file the SHA-1 of its git blob.
        size: its bytes.
    """

    commit: str
    digest: str
    size: int


class HubFile(WebFile):
    """A file of the Hub. All its bytes are of one commit.

    A token is taken from where huggingface_hub looks for it, and sent to the Hub only.

    Args:
        url: ``hf://OWNER/REPO/FILE``, the revision at the end or after REPO; by default main. An @
            in the name of the file is written %40.
        commits: the commit of each revision that is in use. A new one is added.

    Raises:
        OptionError: if the URL has another form.
    """

    hints = dict.fromkeys((401, 403), f": {TOKEN_HINT}") | {404: ", revision or repository"}

    def __init__(self, url: str, commits: dict[str, str]) -> None:
        url = location_of(url)
        found = PATTERN.fullmatch(url)
        if not found:
            raise OptionError(f"expected hf://OWNER/REPO/FILE or hf://OWNER/REPO/FILE@REVISION, found {quote(shown(url))}")
        repository, revision, file = found.groups()
        revision, self.file = unquote(revision or "main"), unquote(file)
        self._revision, self._commits = f"{repository}@{revision}", commits
        endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        if not endpoint.startswith(("http://", "https://")):
            raise OptionError(f"expected HF_ENDPOINT to be a URL such as https://HOST, found {quote(shown(endpoint))}")
        self._folder = f"{endpoint.rstrip('/')}/{repository}/resolve"
        super().__init__(self._at(commits.get(self._revision, revision)), url, _login(url))

    def stored(self) -> HubMetadata:
        """Returns the metadata of the file, by one request."""
        headers = self.head()
        digest = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
        size = headers.get("X-Linked-Size") or ("" if "Location" in headers else headers.get("Content-Length") or "")
        if not (SHA256.fullmatch(digest) or SHA1.fullmatch(digest)) or not size.isdecimal():
            raise self._error(errno.EIO, "the server does not state the hash of this file, as the Hub does")
        return HubMetadata(self._commits.get(self._revision, ""), digest, int(size))

    def _at(self, revision: str) -> str:
        return f"{self._folder}/{escaped(revision, safe='')}/{escaped(self.file)}"

    def _saw(self, headers: Message) -> None:
        commit = headers.get("X-Repo-Commit", "")
        if not SHA1.fullmatch(commit):
            return
        if self._commits.setdefault(self._revision, commit) != commit:
            raise self._error(errno.ESTALE, "the revision has changed since it was opened")
        self.url = bare(self._split(self._at(commit)))


def _login(url: str) -> dict[str, str]:
    """Returns the header with the user's token, if there is one. Raises OptionError if it cannot be
    one."""
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    token = os.environ.get("HF_TOKEN", "")
    path = Path(os.environ.get("HF_TOKEN_PATH") or Path(home, "token"))
    if not token and path.is_file():
        token = path.read_text("utf-8", "replace")
    if not (token := token.strip()):
        return {}
    if not TOKEN.fullmatch(token):
        raise OptionError(f"{url}: expected a token of the Hub in HF_TOKEN or its file, found text that cannot be one")
    return {"Authorization": f"Bearer {token}"}
