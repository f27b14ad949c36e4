"""Formats by name, by file extension and by magic."""

from __future__ import annotations

from pathlib import Path

import pytest

from glft_schema import Container, FormatError
from glft_schema.errors import OptionError
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.formats.registry import find_format, format_named, format_of, target_format
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.storage.source import BytesSource


def test_formats_by_magic() -> None:
    assert format_of(BytesSource(bytes.fromhex("47475546 03000000"))) is GGUF
    assert format_of(BytesSource(bytes.fromhex("54464C47 01000000"))) is GLFT
    assert find_format(BytesSource(b"GLFT")) is GLFT  # byte-swapped: a rule refuses it later
    assert find_format(BytesSource(b"PK\x03\x04")) is None
    assert format_of(BytesSource(b'\x50\0\0\0\0\0\0\0{"a":{}}')) is SAFETENSORS
    assert format_of(BytesSource(b"\x50\0\0\0\0\0\0\0 \n{")) is SAFETENSORS  # a rule refuses the space later
    for start, format in ((b"GGU", GGUF), (b"TF", GLFT), (b"", GLFT)):  # files that are cut off, and reported as truncated
        assert format_of(BytesSource(start)) is format


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (b"PK\x03\x04\x14\0\0\0\0", "a zip archive, such as torch.save makes: open_checkpoint and glft convert read it"),
        (b"version https://git-lfs", "a Git LFS pointer: fetch the file with git lfs pull"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"<!doctype html>", "a web page"),
        (b"<html>", "a web page"),
        (b"<HTML>", "a web page"),
    ],
)
def test_other_known_files(start: bytes, found: str) -> None:
    with pytest.raises(FormatError) as caught:
        format_of(BytesSource(start, "in.bin"))
    expected = "header -> magic: expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found"
    assert str(caught.value) == f"{expected} {start[:4]!r}, the start of {found} (at byte 0) in in.bin"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"", "header -> length: expected 8 bytes, found 0: the file is empty (at byte 0)"),
        (b"\2\0\0", "header -> length: expected 8 bytes, found 3 (at byte 0)"),
        (bytes(8), "tensor_infos: expected JSON, found '' (Expecting value) (at byte 8)"),
        (b"\5" + bytes(7) + b"[1,2]", "tensor_infos: expected a JSON object, found [1, 2] (at byte 8)"),
        (b"\xff" * 8 + b"{}", "tensor_infos: expected 18446744073709551615 bytes, found 2 (at byte 8)"),
        (b"version https://", "header -> magic: expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found "),
    ],
)
def test_the_ending_selects_a_format_without_a_magic(tmp_path: Path, stored: bytes, message: str) -> None:
    path = tmp_path / "model.SafeTensors"
    path.write_bytes(stored)
    with pytest.raises(FormatError) as caught:
        Container.parse_file(path)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(f" in {path}")


def test_an_unknown_file() -> None:
    with pytest.raises(
        FormatError, match=r" \(GGUF\) or a safetensors file, found b'X'; formats of your own: .* \(at byte 0\)$"
    ):
        format_of(BytesSource(b"X"))


def test_formats_by_name() -> None:
    assert format_named("GGUF") is format_named("gguf") is format_named("Gguf") is GGUF
    assert format_named("glft") is GLFT
    with pytest.raises(OptionError, match=r"^expected GLFT, GGUF or safetensors, found 'onnx'$"):
        format_named("onnx")


def test_formats_by_ending() -> None:
    assert target_format(Path("a.b/OUT.GGUF"), None) is target_format("out.safetensors", "gguf") is GGUF
    assert target_format("out.gguf-lite", None) is target_format("out.gguf", "glft") is target_format("out.bin", "glft") is GLFT
    assert target_format("out.safetensors", None) is target_format("out.gguf", "SafeTensors") is SAFETENSORS
    with pytest.raises(OptionError, match=r"that ends in .glft, .gguf-lite, .gguf, .safetensors, found 'out.bin'$"):
        target_format("out.bin", None)
