"""Runs llama.cpp's converter with a writer that sends the GGUF file through a pipe on request.

Run as a program by `confined_process.py`, in a process of its own. `families/converter.py` starts
it and is the other end.

    arguments:  the path of convert_hf_to_gguf.py, then its own arguments
    stdout:     u64 bytes of the head, u64 bytes of the file, the head; then the bytes requested
    stdin:      requests: u64 position in the file, u64 number of bytes
    stderr:     the converter's messages; the last line is the reason for a failure

The head is everything before the first payload. The converter adds tensors whose values are
computed on use. A request computes the values of its tensors. Only those of the last tensor are
kept.
"""

from __future__ import annotations

import importlib
import io
import os
import runpy
import struct
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

PAIR = struct.Struct("<QQ")
SHOWN = 1000  # characters of an error


def compute(value: Any) -> Any:
    """Computes the lazy tensors in a value. Unlike `gguf`, keeps no intermediate results."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(compute, value))
    if not hasattr(value, "_func"):
        return value
    return value._func(*compute(value._args), **value._kwargs) if value._data is None else value._data


class WriterPayloads:
    """The payloads of a writer's tensors, at their positions.

    Args:
        writer: a `gguf.GGUFWriter`.
        start: position of the first one.
    """

    def __init__(self, writer: Any, start: int) -> None:
        self._tensors = list(writer.tensors[0].values())
        self._starts, self.end = list[int](), start
        for tensor in self._tensors:
            self._starts.append(self.end)
            self.end += writer.ggml_pad(tensor.nbytes, writer.data_alignment)
        self._last, self._bytes = -1, np.empty(0, np.uint8)

    def read(self, position: int, nbytes: int) -> memoryview:
        """Returns up to `nbytes` bytes, of one tensor or of the zeros after it."""
        number = bisect_right(self._starts, position) - 1
        first, size = position - self._starts[number], self._tensors[number].nbytes
        if first >= size:
            following = [*self._starts, self.end][number + 1]
            return memoryview(bytes(min(nbytes, following - position)))
        if number != self._last:
            self._last, self._bytes = -1, np.empty(0, np.uint8)  # freed before the next one is computed
            self._bytes = np.ascontiguousarray(compute(self._tensors[number].tensor)).reshape(-1).view(np.uint8)
            self._last = number
        return self._bytes[first : min(first + nbytes, size)].data


def facade(gguf: Any, requests: BinaryIO, results: BinaryIO) -> type:
    """Returns a subclass of `GGUFWriter` that serves its file to another process."""

    class Facade(gguf.GGUFWriter):
        """Writes nothing. Serves the file instead of writing its tensors."""

        fout: Any
        state: Any

        def write_header_to_file(self, path: Path | None = None) -> None:
            """Does nothing."""

        def write_kv_data_to_file(self) -> None:
            """Does nothing."""

        def write_tensors_to_file(self, *, progress: bool = False) -> None:
            """Sends the head, then the bytes of each request, until the requests end."""
            head = self.head()
            payloads = WriterPayloads(self, len(head))
            results.write(PAIR.pack(len(head), payloads.end) + head)
            results.flush()
            while request := requests.read(PAIR.size):
                position, nbytes = PAIR.unpack(request)
                while nbytes:
                    piece = payloads.read(position, nbytes)
                    results.write(piece)
                    position, nbytes = position + len(piece), nbytes - len(piece)
                results.flush()

        def head(self) -> bytes:
            """Returns the bytes of the file before its payloads."""
            stream = io.BytesIO()
            self.fout, self.state = [stream], type(self.state).EMPTY
            super().write_header_to_file()
            super().write_kv_data_to_file()
            self.write_ti_data_to_file()
            self.write_padding(stream, stream.tell())
            return stream.getvalue()

    return Facade


def main(converter: Path, arguments: list[str]) -> None:
    """Runs the converter."""
    requests, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # the converter's prints go to stderr
    if (folder := str(converter.parent)) not in sys.path:  # llama.cpp's folder, with its own gguf
        sys.path[:0] = [folder, str(converter.parent / "gguf-py")]
    try:
        gguf: Any = importlib.import_module("gguf")
        gguf.GGUFWriter = facade(gguf, requests, results)
        sys.argv = [str(converter), *arguments]
        runpy.run_path(str(converter), run_name="__main__")
    except Exception as error:  # of the converter: any class
        print("\n" + " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN], file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
