"""Names for Kaitai Struct: lower-case identifiers that are not reserved in Kaitai's expressions,
Python or JavaScript."""

from __future__ import annotations

import keyword
import re

from glft_schema.describe.identifiers import Identifiers

# Words that would not compile, or would hide a reader's own members, in Kaitai's expressions,
# Python or JavaScript.
NUMBERS = re.compile(r"(?:[us][1248]|f[48]|b[0-9]+)(?:le|be)?")
KAITAI = "and or not true false sizeof bitsizeof as str strz struct io any bool bytes bits"
PYTHON = "self close from_file from_bytes from_io mro"
JAVASCRIPT = """
    abstract arguments await boolean break byte case catch char class const constructor continue debugger default delete do
    double else enum eval export extends false final finally float for function goto if implements import in instanceof int
    interface let long native new null package private protected prototype public return short static super switch
    synchronized this throw throws transient true try typeof undefined var void volatile while with yield
"""
CLASSES = "object kaitai_stream kaitai_struct bytes_io int_enum"  # that generated code refers to
RESERVED = {*KAITAI.split(), *PYTHON.split(), *JAVASCRIPT.split(), *CLASSES.split(), *map(str.lower, keyword.kwlist)}


class KaitaiNames(Identifiers):
    """Identifiers that are distinct in every language: in snake case and in camel case."""

    def __init__(self, *taken: str) -> None:
        super().__init__((), *taken)

    def new(self, name: str, suffix: str = "value") -> str:
        """Returns an identifier for `name`, with a suffix if the word is reserved."""
        legal = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        legal = legal if legal[:1].isalpha() else f"x{legal}"
        return super().new(f"{legal}_{suffix}" if legal in RESERVED or NUMBERS.fullmatch(legal) else legal)

    @staticmethod
    def _key(name: str) -> str:
        return name.replace("_", "")
