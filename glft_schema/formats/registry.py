"""The formats by name, by the ending of a file's name, and by its first bytes.

A format of a new module becomes known by an entry in `FORMATS`. safetensors is read and written, but not declared: see
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
DEFAULT = GLFT  # of a file whose ending says nothing
WITH_TYPES = GGUF  # whose types metadata have that stand as text in a file of another format
ZIP = b"PK\x03\x04"
SAFETENSORS = "safetensors"
SAFETENSORS_ENDING = ".safetensors"
OTHER_FILES = {
    ZIP: "a zip archive, such as torch.save makes: open_checkpoint and glft convert read it",
    b"{": "a safetensors file: open_checkpoint and glft convert read it",  # after eight bytes of length
    b"vers": "a pointer of Git LFS: the file itself is still to be fetched",
    b"<!DO": "a web page",
    b"<htm": "a web page",
}


def format_of(source: Source) -> Format:
    """Returns the format that the first bytes are those of. Raises FormatError where there is none."""
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
    """Returns a format by its name, in letters of either case. Raises OptionError where there is none."""
    for format in FORMATS:
        if isinstance(name, str) and format.name.lower() == name.lower():
            return format
    raise OptionError(f"expected {_names()}, found {shown(name)}")


def format_for(path: StrPath, name: str | None) -> Format:
    """Returns the format that a file at `path` gets: that of this name, or that of its ending, or else `DEFAULT`.

    Raises:
        OptionError: for another name, and where the ending is that of a safetensors file.
    """
    ending = _ending(path)
    if name is None and ending == SAFETENSORS_ENDING:
        raise OptionError(f"expected a {_names()} file to write, found a safetensors file: glft_schema.convert writes those")
    return format_named(name) if name is not None else endings().get(ending, DEFAULT)


def target_format(path: StrPath, name: str | None) -> Format | None:
    """Returns the format that is asked for, or that the ending of `path` stands for; None for safetensors.

    Raises:
        OptionError: where there is none such.
    """
    ending = _ending(path)
    if name is not None:
        return None if name.lower() == SAFETENSORS else format_named(name)
    if ending == SAFETENSORS_ENDING:
        return None
    known = endings()
    if ending not in known:
        raise OptionError(
            f"expected a format, or a file that ends in {', '.join([*known, SAFETENSORS_ENDING])}, found {str(path)!r}"
        )
    return known[ending]


def endings() -> dict[str, Format]:
    """Returns the formats by the endings of their files' names."""
    return {ending: format for format in reversed(FORMATS) for ending in format.endings}


def _ending(path: StrPath) -> str:
    return Path(os.fsdecode(path)).suffix.lower()


def _names() -> str:
    return " or ".join(format.name for format in FORMATS)
