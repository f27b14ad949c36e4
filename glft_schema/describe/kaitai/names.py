"""Names for Kaitai Struct: lower-case identifiers that neither it nor the languages that it writes take for their own."""

from __future__ import annotations

import keyword
import re

# What would not compile, or hide what every reader has, in Kaitai's own expressions, in Python or in JavaScript.
NUMBERS = re.compile(r"(?:[us][1248]|f[48]|b[0-9]+)(?:le|be)?")
KAITAI = "and or not true false sizeof bitsizeof as str strz struct io any bool bytes bits"
PYTHON = "self close from_file from_bytes from_io mro"
JAVASCRIPT = """
    abstract arguments await boolean break byte case catch char class const constructor continue debugger default delete do
    double else enum eval export extends false final finally float for function goto if implements import in instanceof int
    interface let long native new null package private protected prototype public return short static super switch
    synchronized this throw throws transient true try typeof undefined var void volatile while with yield
"""
CLASSES = "object kaitai_stream kaitai_struct bytes_io int_enum"  # what generated code calls by name
RESERVED = {*KAITAI.split(), *PYTHON.split(), *JAVASCRIPT.split(), *CLASSES.split(), *map(str.lower, keyword.kwlist)}


class KaitaiNames:
    """Gives identifiers that differ from each other in every language, with ``_`` and capitals or without."""

    def __init__(self, *taken: str) -> None:
        self._taken = {_bare(name) for name in taken}

    def new(self, name: str, suffix: str = "value") -> str:
        """Returns an identifier for `name`, with a suffix where the word is reserved and a number where it is taken."""
        made = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        made = made if made[:1].isalpha() else f"x{made}"
        made = f"{made}_{suffix}" if made in RESERVED or NUMBERS.fullmatch(made) else made
        number, free = 1, made
        while _bare(free) in self._taken:
            number += 1
            free = f"{made}_{number}"
        self._taken.add(_bare(free))
        return free


def _bare(name: str) -> str:
    return name.replace("_", "")
