"""Byte sources and atomic writes, independent of any file format."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.storage.file_source import FileSource
    from glft_schema.storage.locations import session
    from glft_schema.storage.opening import open_source
    from glft_schema.storage.source import Source

__all__ = [
    "FileSource",
    "Source",
    "open_source",
    "session",
]

LATER = {
    "storage.file_source": "FileSource",
    "storage.locations": "session",
    "storage.opening": "open_source",
    "storage.source": "Source",
}
__getattr__, __dir__ = on_first_use(globals(), LATER)
