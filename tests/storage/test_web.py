"""Files on HTTP servers, good and bad, from a server on a loopback address."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import glft_schema as glft
from glft_schema.errors import ClosedError, FormatError, LimitError, OptionError
from glft_schema.limits import Limits
from glft_schema.storage import ranges, web
from glft_schema.storage.locations import session
from glft_schema.storage.opening import open_source, read_regular
from tests.storage.misbehaviour import CASES, DOWNLOAD, Case
from tests.storage.server import Server, join_workers, serving
from tests.tools.command_line import in_this_process, on_a_terminal

NAME = "model.gguf"
TOKENS = [f"token {i:06}" for i in range(60_000)]  # 1.2 MB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of 1.4 MB of metadata, and 20 MB of weights."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    weights = {f"blk.{i}.weight": rng.standard_normal((256, 1024), np.float32) for i in range(19)}
    metadata = {
        "general.architecture": "toy",
        "tokenizer.ggml.tokens": glft.Typed(TOKENS, "array[string]"),
        "tokenizer.ggml.token_type": glft.Typed([1] * len(TOKENS), "array[int32]"),
    }
    glft.save_file(weights, folder / NAME, metadata)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as server:
        yield server
    join_workers()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "BACKOFF", 0.01)


def expected_line(case: Case, url: str, size: int) -> str:
    pattern = re.escape(f"glft: {url}: {case.line}")
    return pattern.replace("SIZE", f"{size:,}").replace("END", r"\d+").replace("STOP", r"\d+/\d+")


@pytest.mark.parametrize("verb", ["inspect", "get-tensor", "convert"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mode)
def test_a_user_reads_one_line(case: Case, verb: str, server: Server, tmp_path: Path) -> None:
    url, out = server.url(NAME, case.mode), tmp_path / f"out.{'npy' if verb == 'get-tensor' else 'gguf'}"
    size = (server.folder / NAME).stat().st_size
    attempts = 2 if case.line else 5
    arguments = {"inspect": [], "get-tensor": ["blk.7.weight", out], "convert": [out]}[verb]
    limits = ["--limit", "server_seconds=1", "--limit", f"attempts={attempts}"]
    result = in_this_process(*limits, verb, url, *arguments)
    if case.line is None:
        assert (result.returncode, result.stderr) == (0, "")
        local = in_this_process(verb, server.folder / NAME, *arguments)
        assert result.stdout == local.stdout.replace(str(server.folder / NAME), url)
        return
    assert result.returncode == 2
    assert re.fullmatch(expected_line(case, url, size) + "\n", result.stderr)
    assert os.listdir(tmp_path) == []


def test_wrong_bytes_are_found_by_their_hash_alone(server: Server) -> None:
    """A server that says that other bytes are those of the range cannot be seen through."""
    url, sha256 = server.url(NAME, "lie"), in_this_process("hash", server.folder / NAME).stdout.splitlines()[1][:64]
    assert in_this_process("verify", url, "--rules", "spec").returncode == 0
    assert in_this_process("verify", url, "--rules", "spec", "--sha256", sha256).returncode == 1
    assert in_this_process("verify", server.url(NAME), "--rules", "spec", "--sha256", sha256).returncode == 0


@pytest.mark.parametrize("mode", ["norange", "chunked"])
def test_a_download_of_all_of_it_is_asked_for(mode: str, server: Server, tmp_path: Path) -> None:
    url, size = server.url(NAME, mode), (server.folder / NAME).stat().st_size
    result = in_this_process("--download", "convert", url, tmp_path / "out.gguf")
    assert (result.returncode, result.stderr, len(server.requests)) == (0, "", 1)
    assert (tmp_path / "out.gguf").read_bytes() == (server.folder / NAME).read_bytes()
    with Limits(download=size - 1), pytest.raises(LimitError, match=re.escape(DOWNLOAD) if mode == "norange" else "as a whole"):
        glft.open(url)
    with Limits(download=size), glft.open(url) as file:
        assert len(file.tensors) == 19


def test_few_requests(server: Server) -> None:
    url = server.url(NAME)
    with glft.open(url) as file:
        header, bound = file.tensors["blk.0.weight"].position, 1.4
        assert len(server.requests) <= 3
        assert header < sum(request.sent for request in server.requests) < bound * header
        server.requests.clear()
        row = file.tensors["blk.9.weight"].numpy(index=100)
        assert [request.sent for request in server.requests] == [ranges.PAGE]
        assert row.shape == (1024,)
        server.requests.clear()
        assert file.metadata["tokenizer.ggml.tokens"][59_999] == TOKENS[-1]
        assert file.metadata["tokenizer.ggml.token_type"][5] == 1
        assert server.requests == []  # they are in memory
        again = [tensor.numpy().copy() for tensor in file.tensors.values()]
        assert sum(request.sent for request in server.requests) <= (server.folder / NAME).stat().st_size
        assert max(request.sent for request in server.requests) <= ranges.RANGE
    with glft.open(server.folder / NAME) as local:
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(again, local.tensors.values(), strict=True))


def test_a_vocabulary_is_fetched_by_an_estimate(tmp_path: Path) -> None:
    """Short tokens come first, and merges follow; their length is not stated before them."""
    tokens = ["x" * (1 + int(i**0.2)) for i in range(100_000)]
    metadata = {
        "general.architecture": "toy",
        "tokenizer.ggml.tokens": glft.Typed(tokens, "array[string]"),
        "tokenizer.ggml.token_type": glft.Typed([1] * len(tokens), "array[int32]"),
        "tokenizer.ggml.merges": glft.Typed([f"{a} {a}" for a in tokens], "array[string]"),
        "tokenizer.chat_template": "{{ messages }}" + " " * 6000,
    }
    glft.save_file({f"blk.{i}.weight": np.ones(32, np.float32) for i in range(500)}, tmp_path / NAME, metadata)
    with serving(tmp_path) as server, glft.open(server.url(NAME)) as file:
        header = next(iter(file.tensors.values())).position
        assert len(server.requests) <= 4
        assert sum(request.sent for request in server.requests) < 1.4 * header


def test_safetensors_take_two_requests(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.weight": np.ones(1, np.float32) for i in range(9000)}
    glft.save_file(tensors, tmp_path / "model.safetensors")
    with serving(tmp_path) as server, glft.open(server.url("model.safetensors")) as file:
        assert len(file.tensors) == 9000
        assert len(server.requests) == 2


def test_a_file_smaller_than_a_range_needs_no_ranges(tmp_path: Path) -> None:
    glft.save_file({"w": np.ones(3, np.float32)}, tmp_path / "small.gguf", {"general.architecture": "toy"})
    (tmp_path / "empty.gguf").touch()
    with serving(tmp_path) as server:
        for mode in ("norange", "chunked", "ok"):
            with glft.open(server.url("small.gguf", mode)) as file:
                assert file.tensors["w"].numpy().tolist() == [1, 1, 1]
        with pytest.raises(FormatError, match="the file is empty"):
            glft.open(server.url("empty.gguf"))


def test_credentials_stay_with_their_server_and_are_not_shown(server: Server, tmp_path: Path) -> None:
    url = server.url(NAME, "moved").replace("http://", "http://user:pass%40word@") + "?key=SECRET#part"
    with glft.open(url) as file:
        assert file.name == server.url(NAME, "moved")
        assert not re.search("pass|SECRET|user", f"{file!r} {file} {file.source.__dict__['_pages'].remote.name}")
        first, *others = server.requests
        assert first.headers["authorization"] == "Basic dXNlcjpwYXNzQHdvcmQ="
        assert len(others) > 1
        assert all(request.path == f"/ok/{NAME}" and "authorization" not in request.headers for request in others)
    for mode in ("404", "norange", "shifted"):
        bad = server.url(NAME, mode).replace("http://", "http://user:pass@") + "?key=SECRET"
        for arguments in (
            ("inspect", bad),
            ("convert", bad, tmp_path / "out.gguf"),
            ("compare", bad, bad),
            ("verify", bad, "--json"),
        ):
            result = in_this_process(*arguments)
            assert result.returncode == 2
            assert not re.search("pass|SECRET|user", result.stdout + result.stderr)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://", "expected a URL such as https://HOST/FILE"),
        ("https://host:port/x.gguf", "expected a URL such as https://HOST/FILE"),
        ("http://name.invalid/x.gguf", "cannot connect: "),
        ("http://127.0.0.1:9/x.gguf", "cannot connect: Connection refused"),
        ("http://[::1]/x.gguf", "cannot connect: "),
        ("http://[::1/x.gguf", "expected a URL such as https://HOST/FILE"),
        ("http://\udcff.invalid/\udcff", "cannot connect: "),
    ],
)
def test_urls_that_cannot_be_opened(url: str, problem: str) -> None:
    with pytest.raises(OSError, match=re.escape(problem)) as caught:
        glft.open(url)
    assert caught.value.filename == ("https://..." if "port" in url else url)


def test_no_path_of_a_url_is_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"expected a local path to write, found 'https://host/x\.gguf'"):
        glft.save_file({"w": np.ones(1, np.float32)}, "https://user:pass@host/x.gguf", {"general.architecture": "toy"})


def test_a_source_ends(server: Server) -> None:
    source = open_source(server.url(NAME))
    source.close()
    source.close()
    with pytest.raises(ClosedError):
        source.view(0, 1)
    with pytest.raises(TypeError, match="cannot pickle a file with a RangeSource"):
        source.__reduce__()
    with pytest.raises(OptionError, match="expected a local file for offset and size"):
        open_source(server.url(NAME), offset=1)


@pytest.mark.parametrize("mode", [pytest.param("stall", marks=pytest.mark.posix("interrupts system calls")), "stalls"])
def test_an_interrupted_command_does_not_wait_for_the_server(mode: str, server: Server) -> None:
    """Requests in other threads end with the command."""
    program = "import os, signal, threading; signal.signal(2, signal.default_int_handler)\n"  # a background job ignores it
    interrupt = "os.kill, [os.getpid(), 2]" if os.name == "posix" else "signal.raise_signal, [2]"
    program += f"from glft_schema.cli import main; threading.Timer(1, {interrupt}).start(); main()"
    command = [sys.executable, "-c", program, "--limit", "server_seconds=25", "inspect", server.url(NAME, mode)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_a_read_that_failed_can_be_repeated(server: Server) -> None:
    failures, stored = 0, bytearray(30 << 10)
    with Limits(attempts=1), closing(open_source(server.url(NAME, "drops"))) as source:
        for at in range(3):
            try:
                stored = bytearray(source.view((5 + 2 * at) << 20, 30 << 10))
            except OSError as error:
                assert error.filename == server.url(NAME, "drops")
                failures += 1
                stored = bytearray(source.view((5 + 2 * at) << 20, 30 << 10))
            assert stored == (server.folder / NAME).read_bytes()[(5 + 2 * at) << 20 :][: 30 << 10]
    assert failures


def test_a_signature_that_expires_during_parallel_requests(server: Server) -> None:
    with closing(open_source(server.url(NAME, "expired"))) as source:
        for _ in range(3):
            assert bytes(source.view(0, source.size)) == (server.folder / NAME).read_bytes()


def test_threads_share_requests(server: Server) -> None:
    with glft.open(server.url(NAME)) as file:
        source, found = file.source, list[bytes]()
        threads = [threading.Thread(target=lambda: found.append(bytes(source.view(4 << 20, 4 << 20)))) for _ in range(8)]
        server.requests.clear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [(server.folder / NAME).read_bytes()[4 << 20 : 8 << 20]] * 8
        assert sum(request.sent for request in server.requests) == 4 << 20


def test_what_is_kept_is_limited(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "KEPT", 1 << 20)
    with glft.open(server.url(NAME)) as file:
        for _ in range(2):
            assert bytes(file.source.view(0, file.source.size)) == (server.folder / NAME).read_bytes()
        assert len(file.source._pages._pages) <= (1 << 20) // ranges.PAGE  # type: ignore[attr-defined]
    assert sum(request.sent for request in server.requests) > 1.8 * (server.folder / NAME).stat().st_size


def test_a_job_opens_a_url_once(server: Server) -> None:
    url = server.url(NAME)
    with session():
        with glft.open(url):
            first = len(server.requests)
        with glft.open(url) as file:
            pass
        assert len(server.requests) == first
    assert file.source.closed
    glft.open(url).close()
    assert len(server.requests) == 2 * first


class Proxy(BaseHTTPRequestHandler):
    """A proxy that answers itself, and stores the requests."""

    seen: list[tuple[str, str, str | None]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append((self.command, self.path, self.headers.get("Proxy-Authorization")))
        self.send_error(404)

    def do_CONNECT(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxies_of_the_environment_are_used(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Proxy.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for address in (f"http://me:word@127.0.0.1:{proxy.server_port}", f"me:word@127.0.0.1:{proxy.server_port}"):
            monkeypatch.setenv(f"{scheme}_proxy", address)
            with Limits(attempts=1), pytest.raises(OSError, match="404"):
                glft.open(f"{scheme}://example.org/x.gguf")
        proxy.shutdown()
    asked = {"http": ("GET", "http://example.org/x.gguf"), "https": ("CONNECT", "example.org:443")}[scheme]
    assert Proxy.seen == [(*asked, "Basic bWU6d29yZA==")] * 2
    monkeypatch.setenv(f"{scheme}_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(OSError, match="expected a proxy such as http://HOST:PORT in the environment"):
        glft.open(f"{scheme}://example.org/x.gguf")


def test_small_files_are_read_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(b"{}" * 400_000)
    with serving(tmp_path) as server:
        assert read_regular(server.url("index.json")) == b"{}" * 400_000
        with Limits(whole_file=10), pytest.raises(LimitError, match="expected at most 10 bytes"):
            read_regular(server.url("index.json"))


def test_a_terminal_shows_what_is_waited_for(server: Server) -> None:
    url = server.url(NAME, "wait")
    shown = on_a_terminal("inspect", url).stdout
    assert f"fetching {url} ..." in shown


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_https(server: Server, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url(NAME).replace("http://127.0.0.1", "https://localhost")
    with pytest.raises(OSError, match=r"cannot connect: .*certificate verify failed"):
        glft.open(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with glft.open(url) as file:
        assert file.tensors["blk.3.weight"].numpy(index=1).shape == (1024,)
    with pytest.raises(OSError, match="the server redirects to a URL that is not https"):
        glft.open(url.replace("/ok/", "/moved/"))
