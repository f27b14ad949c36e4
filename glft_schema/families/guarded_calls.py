"""Calls functions in a separate process with limits of memory and time, so that other libraries can
parse the files of a folder.

    argument:  the module of the functions
    stdin:     requests, one per line: JSON with the function's name, its arguments and the limits
    stdout:    for each request u64 bytes of the answer, the answer: JSON with a result or an error
    stderr:    messages of libraries, which are not shown

`families/confined_process.py` runs this module as the program that calls the functions.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glft_schema.errors import FormatError, LimitError, OptionError, TensorError, TruncatedError
from glft_schema.families.processes import Confined
from glft_schema.limits import LIMITS, Limits, current, limit_error
from glft_schema.storage.source import StrPath

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "RAYON")} | {"TOKENIZERS_PARALLELISM": "false"}
SIZE = struct.Struct("<Q")
FIELDS = ("problem", "path", "offset", "tensor", "file", "key")  # of a FormatError
KINDS: dict[str, Callable[..., Exception]] = {
    kind.__name__: kind for kind in (FormatError, TruncatedError, LimitError, TensorError, OptionError)
}
NO_MEMORY = (b"MemoryError", b"memory allocation of", b"bad_alloc")  # messages of Python, Rust and C++

Call = Callable[..., Any]  # name of a function, the folder, its other arguments, and as `file` the one that it reads


@contextmanager
def start_guarded(module: str) -> Iterator[Call]:
    """Starts a process, and yields a function that calls functions of a module in it.

    The first argument of each is a folder; the other arguments and the results are JSON. The
    yielded function raises:

        FormatError, TensorError, OptionError, OSError: as the function does.
        LimitError: if the limit ``parser_memory``, ``parser_seconds`` or ``metadata`` is exceeded.
        FormatError: if the process ends for another reason; it names the file.
    """
    limits = current()
    confined = Confined(Path(__file__), [module], limits.parser_memory, limits.parser_seconds, **ONE_THREAD)

    def call(function: str, folder: Path, *arguments: Any, file: Path) -> Any:
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            confined.process.kill()

        timer = threading.Timer(min(limits.parser_seconds, threading.TIMEOUT_MAX), expire)
        timer.start()
        try:
            stored = _exchange(confined, request_of(function, folder, arguments, file), limits, file)
            if stored is None:
                raise _end_error(confined, expired, limits, file)
        finally:
            timer.cancel()
        return result_of(stored, folder)

    try:
        yield call
    finally:
        confined.end()


def request_of(function: str, folder: Path, arguments: Sequence[Any], file: Path) -> bytes:
    """Returns a request as one line of JSON."""
    limits = {name: getattr(current(), name) for name in LIMITS}
    whole = {"function": function, "arguments": [str(folder.absolute()), *arguments], "limits": limits, "file": str(file)}
    return json.dumps(whole).encode() + b"\n"


def _exchange(confined: Confined, request: bytes, limits: Limits, file: Path) -> bytes | None:
    """Returns the answer to a request, or None if the process ends first."""
    if not confined.exchange(request, head := memoryview(bytearray(SIZE.size))):
        return None
    (size,) = SIZE.unpack(head)
    if size > limits.metadata:
        raise _over("metadata", f"{limits.metadata} bytes", str(size), file)
    stored = bytearray(size)
    return bytes(stored) if confined.exchange(b"", memoryview(stored)) else None


def _end_error(confined: Confined, expired: threading.Event, limits: Limits, file: Path) -> FormatError:
    """Returns the error of a process that ended before its answer."""
    code, messages = confined.process.wait(), confined.messages()
    if expired.is_set() or -code == signal.SIGXCPU:
        return _over("parser_seconds", f"{limits.parser_seconds} s for another library", "more", file)
    if any(sign in messages for sign in NO_MEMORY):
        return _over_memory(limits, file)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
    return FormatError(f"another library failed to parse this file: its process ended {how}", file=str(file))


def _over_memory(limits: Limits, file: StrPath) -> LimitError:
    return _over("parser_memory", f"{limits.parser_memory} bytes for another library", "more", file)


def _over(name: str, most: str, found: str, file: StrPath) -> LimitError:
    return limit_error(name, most, found, "", str(file))


def answer(module: str, request: bytes) -> bytes:
    """Calls the function of a request. Returns the answer."""
    whole = json.loads(request)
    folder, *arguments = whole["arguments"]
    with Limits(**whole["limits"]) as limits:
        try:
            function = getattr(importlib.import_module(module), whole["function"])
            return json.dumps({"result": function(Path(folder), *arguments)}).encode()
        except MemoryError:
            found: Exception = _over_memory(limits, whole["file"])
        except (FormatError, TensorError, OptionError, OSError) as error:
            found = error
    return json.dumps(_as_json(found)).encode()


def _as_json(error: Exception) -> dict[str, Any]:
    """Returns an error as JSON."""
    if isinstance(error, OSError):
        return {"error": "OSError", "args": [error.errno, error.strerror, error.filename]}
    if isinstance(error, FormatError):
        args = [getattr(error, field) for field in FIELDS]
        return {"error": type(error).__name__, "args": args, "limit": error.limit}
    return {"error": type(error).__name__, "args": list(error.args)}


def result_of(stored: bytes, folder: Path) -> Any:
    """Returns the result in an answer, or raises its error with the folder's path as given."""
    whole = json.loads(stored)
    if "error" not in whole:
        return whole["result"]
    absolute = str(folder.absolute())
    args = [str(folder) + arg.removeprefix(absolute) if isinstance(arg, str) and arg.startswith(absolute) else arg
            for arg in whole["args"]]  # fmt: skip
    if whole["error"] == "OSError":
        raise OSError(*args)
    error = KINDS[whole["error"]](*args)
    if isinstance(error, FormatError):
        error.limit = whole["limit"]
    raise error


def main(module: str) -> None:
    """Answers requests until stdin ends."""
    requests, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries go to stderr
    importlib.import_module(module)  # before the first request
    for request in requests:
        stored = answer(module, request)
        results.write(SIZE.pack(len(stored)) + stored)
        results.flush()


if __name__ == "__main__":
    main(sys.argv[1])
