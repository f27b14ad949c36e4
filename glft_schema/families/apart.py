"""Calls functions in a child process with limits of memory and time, so that other libraries can
parse the files of a folder there.

    stdin:     requests, one line each: JSON with the function's name, its arguments and the limits
    stdout:    answers, one line each: JSON with a result or an error
    stderr:    messages of libraries, which are not shown
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from glft_schema.errors import FormatError, LimitError, OptionError, TensorError, TruncatedError
from glft_schema.limits import LIMITS, Limits, current, limit_error
from glft_schema.storage.system import OUT_OF_TIME, is_broken_pipe, limit_process

CHILD = (
    "import json, sys; module, path, *limits = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from glft_schema.families.apart import answer_all; answer_all(module, *limits)"
)
PACKAGES = str(Path(__file__).parents[2])  # the folder of this package
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "PROCESSOR_ARCHITECTURE")
HOMES = ("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP")  # on POSIX and Windows
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "RAYON")} | {"TOKENIZERS_PARALLELISM": "false"}
TAIL = 1 << 16  # bytes of messages that are read
PATIENCE = 10  # wall seconds per allowed second of the processor, which other processes may keep busy
FIELDS = ("problem", "path", "offset", "tensor", "file", "key")  # of a FormatError
KINDS: dict[str, Callable[..., Exception]] = {
    kind.__name__: kind for kind in (FormatError, TruncatedError, LimitError, TensorError, OptionError)
}
NO_MEMORY = (b"MemoryError", b"memory allocation of", b"bad_alloc")  # messages of Python, Rust and C++

Call = Callable[..., Any]  # name of a function, the folder, its other arguments, and `file`, the file that the function reads


def import_path() -> list[str]:
    """Returns the folders that a child imports from."""
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    return path if PACKAGES in path else [*path, PACKAGES]


def surroundings(home: str) -> dict[str, str]:
    """Returns the environment of a child: few variables, a home, and no downloads."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, **dict.fromkeys(HOMES, home), **OFFLINE}


def tail_of(messages: IO[bytes]) -> bytes:
    """Returns the end of a child's stderr."""
    messages.seek(max(0, messages.seek(0, os.SEEK_END) - TAIL))
    return messages.read()


@contextmanager
def start_apart(module: str) -> Iterator[Call]:
    """Starts a child in an empty folder, and yields a function that calls functions of a module in
    it.

    The first argument of each is a folder; the other arguments and the results are JSON. The
    yielded function raises:

        FormatError, TensorError, OptionError, OSError: as the function does.
        LimitError: if the limit ``parser_memory``, ``parser_seconds`` or ``metadata`` is exceeded.
        FormatError: if the child ends for another reason; it names the file.
    """
    limits = current()
    settings = json.dumps([module, import_path(), limits.parser_memory, limits.parser_seconds])
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(
            [sys.executable, "-I", "-c", CHILD, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            cwd=home,
            env={**surroundings(home), **ONE_THREAD},
        ) as child,
    ):
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            child.kill()

        def call(function: str, folder: Path, *arguments: Any, file: Path) -> Any:
            assert child.stdin is not None
            assert child.stdout is not None
            timer = threading.Timer(min(PATIENCE * limits.parser_seconds, threading.TIMEOUT_MAX), expire)
            timer.start()
            try:
                try:
                    child.stdin.write(request_of(function, folder, arguments))
                    child.stdin.flush()
                except OSError as error:
                    if not is_broken_pipe(error):
                        raise
                answer = child.stdout.readline(limits.metadata + 1)
                if len(answer) > limits.metadata:
                    raise limit_error("metadata", f"{limits.metadata} bytes", "more", "", str(file))
                if not answer.endswith(b"\n"):
                    child.wait()
                    raise _end_error(child.returncode, tail_of(messages), expired.is_set(), file)
            finally:
                timer.cancel()
            return result_of(answer, folder, file)

        try:
            yield call
        finally:
            child.kill()
            with suppress(BrokenPipeError):  # a request that the child did not read
                child.communicate()


def request_of(function: str, folder: Path, arguments: tuple[Any, ...]) -> bytes:
    """Returns a request as a line."""
    limits = {name: getattr(current(), name) for name in LIMITS}
    return json.dumps([function, str(folder.absolute()), arguments, limits]).encode() + b"\n"


def _end_error(code: int, messages: bytes, expired: bool, file: Path) -> FormatError:
    """Returns the error of a child that ended before its answer."""
    if expired or code in OUT_OF_TIME:
        return limit_error("parser_seconds", f"{current().parser_seconds} s for another library", "more", "", str(file))
    if any(sign in messages for sign in NO_MEMORY):
        return _over_memory(file)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
    return FormatError(f"another library failed to parse this file: its process ended {how}", file=str(file))


def _over_memory(file: Path) -> LimitError:
    return limit_error("parser_memory", f"{current().parser_memory} bytes for another library", "more", "", str(file))


def answer(module: str, request: bytes) -> bytes:
    """Calls the function of a request. Returns the answer as a line."""
    name, folder, arguments, limits = json.loads(request)
    found: dict[str, Any]
    with Limits(**limits):
        try:
            found = {"result": getattr(importlib.import_module(module), name)(Path(folder), *arguments)}
        except MemoryError:
            found = {"error": "MemoryError"}
        except OSError as error:
            found = {"error": "OSError", "args": [error.errno, error.strerror, error.filename]}
        except FormatError as error:
            args = [getattr(error, field) for field in FIELDS]
            found = {"error": type(error).__name__, "args": args, "limit": error.limit}
        except (TensorError, OptionError) as error:
            found = {"error": type(error).__name__, "args": list(error.args)}
    return json.dumps(found).encode() + b"\n"


def result_of(answer: bytes, folder: Path, file: Path) -> Any:
    """Returns the result in an answer, or raises its error with the folder's path as given."""
    found = json.loads(answer)
    if "error" not in found:
        return found["result"]
    if found["error"] == "MemoryError":
        raise _over_memory(file)
    absolute = str(folder.absolute())
    args = [
        str(folder) + arg.removeprefix(absolute) if isinstance(arg, str) and arg.startswith(absolute) else arg
        for arg in found["args"]
    ]
    if found["error"] == "OSError":
        raise OSError(*args)
    error = KINDS[found["error"]](*args)
    if isinstance(error, FormatError):
        error.limit = found["limit"]
    raise error


def answer_all(module: str, memory: int, seconds: int) -> None:
    """Answers requests until stdin ends; the child's program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    limit_process(memory, seconds, 1 << 26)
    requests, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries go to stderr
    importlib.import_module(module)  # before the first request
    for request in requests:
        results.write(answer(module, request))
        results.flush()
