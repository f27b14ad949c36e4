"""Finds new metadata keys that are probably typos of well-known ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from string import ascii_lowercase
from typing import Any

from glft_schema.codec.metadata import KeyTypes
from glft_schema.errors import SimilarKeyWarning, quote, warn

KEYS, LONGEST = 1000, 128  # at most this many keys are checked, of at most this many letters


def warn_of_typos(keys: Iterable[str], metadata: Mapping[str, Any]) -> None:
    """Issues a SimilarKeyWarning for each new key that resembles a well-known one."""
    for key in islice(keys, KEYS):
        if known := similar_key(key, metadata):
            warn(f"the new key {quote(key)} resembles the well-known key {quote(known)}", SimilarKeyWarning)


def similar_key(key: str, metadata: Mapping[str, Any]) -> str | None:
    """Returns a well-known key that `key` may be a typo of, or None."""
    keys: KeyTypes | None = getattr(metadata, "key_types", None)
    if keys is None or len(key) > LONGEST:
        return None
    is_known = keys.type_of(key, False) is not None  # or its architecture is misspelled
    known = (typo for typo in _typos(key) if typo != key and keys.type_of(typo, False) is not None)
    return next((typo for typo in known if not is_known or typo in metadata), None)


def _typos(key: str) -> Iterator[str]:
    """Yields the texts that differ from `key` in case, by a letter, or by two swapped letters."""
    if key != key.lower():
        yield key.lower()
    letters = f"{ascii_lowercase}_."
    for at in range(len(key) + 1):
        before, after = key[:at], key[at:]
        yield from (f"{before}{letter}{after}" for letter in letters)
        if after and not after[0].isdigit():  # numbers are not misspelled
            yield before + after[1:]
            yield from (f"{before}{letter}{after[1:]}" for letter in letters if letter != after[0])
            if after[0] != after[1:2] != "":
                yield before + after[1] + after[0] + after[2:]
