"""Formats by name, by file extension and by content.

`FORMATS` lists them: the built-in ones, then those that `register_format` has added.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from glft_schema import plugins
from glft_schema.errors import FormatError, OptionError, alternatives, quote
from glft_schema.formats.format import Format, ShardIndex
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.formats.trial import first_fault
from glft_schema.storage.locations import shown
from glft_schema.storage.source import Source, StrPath, path_text
from glft_schema.storage.streams import START
from glft_schema.tensor_types import TensorType
from glft_schema.words import suggestion

FORMATS = [GLFT, GGUF, SAFETENSORS]
DEFAULT = GLFT  # of `Container`, without a format or a known ending
WITH_TYPES = GGUF  # its value types apply to typed values that other formats store as text
MAGIC = "header -> magic"  # the path of an error about an unknown format
ZIP = b"PK\x03\x04"
OWN = f"; formats of your own: register_format, or an entry point of {plugins.FORMATS}"
OTHER_FILES = {
    ZIP: "a zip archive, such as torch.save makes: open_checkpoint and glft convert read it",
    b"vers": "a Git LFS pointer: fetch the file with git lfs pull",
    b"<!DO": "a web page",
    b"<HTM": "a web page",
}


def register_format(format: Format) -> Format:
    """Registers a format in this process. All functions and commands then accept its files.

    A package announces its formats as entry points of ``glft_schema.formats``; see
    `glft_schema.plugins`.

    Returns:
        `format`. Registering it again changes nothing.

    Raises:
        TypeError: if it is not a `Format`.
        ValueError: if the name, a file extension or a magic is in use, or a small file cannot be
            built and parsed. The message names the field.
    """
    if not isinstance(format, Format):
        raise TypeError(f"expected a Format, found {quote(format)}")
    if format in FORMATS:
        return format
    if fault := first_fault(format):
        raise ValueError(f"{format.name}: {fault}")
    for known in FORMATS:
        endings = set(format.endings).intersection(known.endings)
        magics = [magic for magic in format.magics if any(magic.startswith(m) or m.startswith(magic) for m in known.magics)]
        if format.name.lower() == known.name.lower() or endings or magics:
            taken = quote(magics[0]) if magics else quote(endings.pop() if endings else format.name)
            raise ValueError(f"expected a name, file extensions and magics that no format has, found {taken} of {known.name}")
    FORMATS.append(format)
    return format


@cache
def load_plugins() -> None:
    """Registers the formats of other packages."""
    plugins.load(plugins.FORMATS, register_format)


def _formats() -> Iterator[Format]:
    """Yields the formats, those with a magic first, and loads plugins before it yields theirs."""
    yield from sorted(known := list(FORMATS), key=lambda one: one.sniff is not None)
    load_plugins()
    yield from FORMATS[len(known) :]


def find_format(source: Source) -> Format | None:
    """Returns the format of a source by its first bytes, or None."""
    start = _start_of(source)
    return next((format for format in _formats() if format.claims(start)), None)


def _start_of(source: Source) -> bytes:
    return bytes(source.read(0, min(START, source.size)))


def format_of(source: Source) -> Format:
    """Returns the format of a source by its first bytes.

    If no format matches, or the source is empty, returns the format without a magic that has the
    source's file extension: its parser reports the error. Raises FormatError if there is no such
    format.
    """
    format, start = find_format(source), _start_of(source)
    about = OTHER_FILES.get(start[:4]) or OTHER_FILES.get(start[:4].upper())
    if not start or (format is None and not about):
        named = format_with(source.name)
        format = named if named and not named.magics else format
    if format:
        return format
    expected = [f"{format.magics[0]!r} ({format.name})" if format.magics else f"a {format.name} file" for format in FORMATS]
    found, path = start[: max(len(magic) for format in FORMATS for magic in format.magics)], Path(source.name)
    other = f", the start of {about}" if about else OWN
    hint = f"; give its folder, {str(path.parent)!r}" if path.name == "config.json" else other
    hint = "; open_checkpoint and glft convert read torch files" if path.name.endswith(".bin.index.json") else hint
    raise FormatError(f"expected {alternatives(expected)}, found {found!r}{hint}", MAGIC, 0, file=source.name)


def format_named(name: object) -> Format:
    """Returns a format by name, ignoring case. Raises OptionError for an unknown name."""
    for format in _formats():
        if isinstance(name, str) and format.name.lower() == name.lower():
            return format
    names = [format.name for format in FORMATS]
    raise OptionError(f"expected {alternatives(names)}, found {quote(name)}{suggestion(name, names)}")


@cache
def registered_type(name: str) -> TensorType:
    """Returns a tensor type of any format by name, ignoring case. Raises OptionError for an
    unknown name.
    """
    for format in _formats():
        for type_ in format.types:
            if type_.scheme == name.lower():
                return type_
    from glft_schema.tensor_types.composite import COMPOSITE_TYPES  # slow to import

    for table in (WITH_TYPES.types, COMPOSITE_TYPES):  # the former may get types of other packages
        if found := table.named(name):
            return found
    schemes = {type_.scheme for format in FORMATS for type_ in format.types}
    raise OptionError(f"expected a tensor type, found {quote(name)}{suggestion(name, schemes)}")


def target_format(path: StrPath, name: str | None) -> Format:
    """Returns the named format, or the format of the file extension of `path`.

    Raises:
        OptionError: for an unknown name or ending.
    """
    format = format_named(name) if name is not None else format_with(path)
    if format is not None and not format.has_tensors:
        raise OptionError(f"expected a format that holds tensors, found {format.name}")
    if format is None:
        endings = [ending for format in FORMATS for ending in format.endings]
        known, hint = ", ".join(endings), suggestion(Path(path_text(path)).suffix, endings)
        if not Path(path_text(path)).suffix:
            hint = f"; convert writes a Hugging Face folder to {path_text(path)}/"
        raise OptionError(f"expected a format, or an output file that ends in {known}, found {str(path)!r}{hint}")
    return format


def refuse_ending(path: StrPath, format: Format, writes: str) -> None:
    """Raises OptionError if `path` has the file extension of a format other than `format`. `writes`
    begins the message, such as ``quantize writes``."""
    if (format_with(path) or format) is not format:
        name = quote(Path(path_text(path)).name)
        raise OptionError(f"{writes} {format.name}, found the output {name}: write {format.name}, then use glft convert")


def indexed_format(path: StrPath) -> Format | None:
    """Returns the format whose sets have an index of this name, or None."""
    return next((format for format, suffix in index_suffixes() if shown(path).endswith(suffix)), None)


def index_suffixes() -> list[tuple[Format, str]]:
    """Returns the formats with an index of shards, each with the suffix of its name."""
    return [(format, format.shards.suffix) for format in FORMATS if isinstance(format.shards, ShardIndex)]


def format_with(path: StrPath) -> Format | None:
    """Returns the format of the file extension of `path`, or None."""
    ending = Path(shown(path)).suffix.lower()
    return next((format for format in _formats() if ending in format.endings), None) if ending else None
