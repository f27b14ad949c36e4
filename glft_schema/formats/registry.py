"""Formats by name, by file extension and by magic.

`FORMATS` lists them all. safetensors is read and written, but not declared: see
`glft_schema.weights.safetensors_files`.
"""

from __future__ import annotations

import os
from pathlib import Path

from glft_schema.errors import FormatError, OptionError, shown
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.storage.source import Source, StrPath

FORMATS = (GLFT, GGUF)
DEFAULT = GLFT  # for other endings
WITH_TYPES = GGUF  # its value types are those of typed values that another format stores as text
ZIP = b"PK\x03\x04"
SAFETENSORS = "safetensors"
SAFETENSORS_ENDING = ".safetensors"
OTHER_FILES = {
    ZIP: "a zip archive, such as torch.save makes: open_checkpoint and glft convert read it",
    b"{": "a safetensors file: open_checkpoint and glft convert read it",  # after eight bytes of length
    b"vers": "a Git LFS pointer: fetch the file with git lfs pull",
    b"<!DO": "a web page",
    b"<htm": "a web page",
}


def format_of(source: Source) -> Format:
    """Returns the format of a source by its magic. Raises FormatError for an unknown magic."""
    magic = bytes(source.read(0, min(4, source.size)))
    candidates = [format for format in FORMATS if any(known.startswith(magic) for known in format.magics)]
    if not candidates:
        expected = " or ".join(f"{format.magics[0]!r} ({format.name})" for format in FORMATS)
        start = bytes(source.read(0, min(9, source.size)))
        other = next((f", the start of {kind}" for known, kind in OTHER_FILES.items() if known in (magic, start[8:])), "")
        raise FormatError(f"expected {expected}, found {magic!r}{other}", "header -> magic", 0, file=source.name)
    return candidates[0]


def format_with(magic: bytes) -> Format | None:
    """Returns the format whose files start with these four bytes, or None."""
    return next((format for format in FORMATS if magic in format.magics), None)


def format_named(name: object) -> Format:
    """Returns a format by name, in either case. Raises OptionError for an unknown name."""
    for format in FORMATS:
        if isinstance(name, str) and format.name.lower() == name.lower():
            return format
    raise OptionError(f"expected {_names()}, found {shown(name)}")


def format_for(path: StrPath, name: str | None) -> Format:
    """Returns the format to write at `path`: the named one, or the one of the ending, or `DEFAULT`.

    Raises:
        OptionError: for an unknown name, and for the ending of safetensors files.
    """
    ending = _ending(path)
    if name is None and ending == SAFETENSORS_ENDING:
        raise OptionError(f"expected a {_names()} file to write, found a safetensors file: use glft_schema.convert")
    return format_named(name) if name is not None else endings().get(ending, DEFAULT)


def target_format(path: StrPath, name: str | None) -> Format | None:
    """Returns the named format, or the one of the ending of `path`; None for safetensors.

    Raises:
        OptionError: for an unknown name or ending.
    """
    ending = _ending(path)
    if name is not None:
        return None if name.lower() == SAFETENSORS else format_named(name)
    if ending == SAFETENSORS_ENDING:
        return None
    known = endings()
    if ending not in known:
        raise OptionError(
            f"expected a format, or an output file that ends in {', '.join([*known, SAFETENSORS_ENDING])}, found {str(path)!r}"
        )
    return known[ending]


def endings() -> dict[str, Format]:
    """Returns the formats by file ending."""
    return {ending: format for format in reversed(FORMATS) for ending in format.endings}


def _ending(path: StrPath) -> str:
    return Path(os.fsdecode(path)).suffix.lower()


def _names() -> str:
    return " or ".join(format.name for format in FORMATS)
