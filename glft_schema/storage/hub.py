"""Files of the Hugging Face Hub, ``hf://OWNER/REPO/FILE@REVISION``."""

from __future__ import annotations

import errno
import os
import re
from email.message import Message
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote as escaped

from glft_schema.errors import OptionError, quote
from glft_schema.storage.web import WebFile

NAME = r"[A-Za-z0-9][\w.-]*"
PATTERN = re.compile(rf"hf://((?:datasets/|spaces/)?(?!datasets/|spaces/){NAME}/{NAME})(?:@([^/@]+))?/([^@]+?)(?:@([^@]+))?")
COMMIT, SHA256, GIT_SHA1 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


class Stored(NamedTuple):
    """What the Hub states about a file.

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
        url: ``hf://OWNER/REPO/FILE``, the revision at the end or after REPO; by default main.
        commits: the commit of each revision that is in use. A new one is added.

    Raises:
        OptionError: if the URL has another form.
    """

    def __init__(self, url: str, commits: dict[str, str]) -> None:
        found = PATTERN.fullmatch(url)
        if not found:
            raise OptionError(f"expected hf://OWNER/REPO/FILE or hf://OWNER/REPO/FILE@REVISION, found {quote(url)}")
        repository, before, self.file, after = found.groups()
        revision = before or after or "main"
        self._revision, self._commits = f"{repository}@{revision}", commits
        name = f"hf://{repository}{f'@{escaped(revision, safe=str())}' if before or after else ''}/{self.file}"
        self._folder = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{repository}/resolve"
        super().__init__(self._at(commits.get(self._revision, revision)), name, _login())

    def stored(self) -> Stored:
        """Returns what the Hub states about the file, by one request."""
        headers = self.head()
        digest = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
        size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
        if not (SHA256.fullmatch(digest) or GIT_SHA1.fullmatch(digest)) or not size.isdecimal():
            raise self._error(errno.EIO, "the server does not state the hash of this file, as the Hub does")
        return Stored(self._commits.get(self._revision, ""), digest, int(size))

    def _at(self, revision: str) -> str:
        return f"{self._folder}/{escaped(revision, safe='')}/{escaped(self.file)}"

    def _saw(self, headers: Message) -> None:
        commit = headers.get("X-Repo-Commit", "")
        if not COMMIT.fullmatch(commit):
            return
        if self._commits.setdefault(self._revision, commit) != commit:
            raise self._error(errno.ESTALE, "the revision has changed since it was opened")
        self.url = self._at(commit)


def _login() -> dict[str, str]:
    """Returns the header with the user's token, if there is one."""
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    token = os.environ.get("HF_TOKEN", "")
    path = Path(os.environ.get("HF_TOKEN_PATH") or Path(home, "token"))
    if not token and path.is_file():
        token = path.read_text("utf-8", "replace")
    return {"Authorization": f"Bearer {token.strip()}"} if token.strip().isascii() and token.strip() else {}
