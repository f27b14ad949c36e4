"""Promises for any bytes: the properties of `glft_schema.testing.fuzzing`, and descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

from glft_schema import Container, FormatError
from glft_schema.codec.context import BIG, LITTLE
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_text import from_text, to_text
from glft_schema.describe.byte_map import byte_map_of
from glft_schema.files.file import File
from glft_schema.formats.gguf import VALUE_TYPES
from glft_schema.storage.source import BytesSource
from glft_schema.tensor_types.tensor_type import OpaqueType
from glft_schema.testing.fuzzing import GIVEN, NUMBERS, Case, PropertyError, escaping, exercise
from tests.fuzz.views import OTHER, PRINTED, View, views, views_of_map

WITH_PAGE = 50  # one file in 50 is rendered as a page, which takes as long as the rest


def check_promises(stored: bytes) -> None:
    """Checks all promises except time and memory, which the caller limits.

    Raises:
        PropertyError: for the first promise that is broken.
    """
    file = exercise(Case(stored, GIVEN))
    with escaping():
        problem = problem_of_map(stored, file) or problem_of_views(stored, file)
    if problem:
        raise PropertyError("described", problem)
    if file is not None:
        with escaping():
            problem = problem_of_slices(file, Random(sum(stored))) or problem_of_metadata(file)
        if problem:
            raise PropertyError("accessed", problem)


@contextmanager
def reported(*documented: type[Exception]) -> Iterator[None]:
    """Lets documented errors pass, and checks that each has one short line.

    Raises:
        PropertyError: for another error or message.
    """
    try:
        with escaping(*documented):
            yield
    except documented as error:
        if not str(error).isprintable() or len(str(error)) > 2000:
            raise PropertyError("reported", f"expected one short line, found {str(error)!r:.3000}") from error


def problem_of_slices(file: File, random: Random) -> str | None:
    """Returns a slice that differs from the slice of the whole tensor, or None."""
    for tensor in file.tensors.values():
        if isinstance(tensor.type, OpaqueType) or tensor.nbytes > NUMBERS:
            continue
        if sum(map(len, tensor.pieces(BIG))) != tensor.nbytes:
            return f"expected {tensor.nbytes} bytes of {tensor!r} in another byte order"
        index = tuple(
            random.randrange(size)
            if size and random.random() < 0.3
            else slice(*sorted(random.choices(range(size + 1), k=2)), 2)
            for size in tensor.shape[: random.randint(0, len(tensor.shape))]
        )
        part, expected = tensor.numpy(index), tensor.numpy()[index]
        with np.errstate(invalid="ignore"):  # signalling NaN
            if not np.array_equal(part, expected, equal_nan=True):
                return f"expected {index} of {tensor!r} to be that part of the whole"
    return None


def problem_of_metadata(file: File) -> str | None:
    """Returns a problem of metadata through text and another version and byte order, or None."""
    if not isinstance(file.metadata, TypedMetadata):
        return None
    texts = {key: to_text(file.metadata.stored_value(key)) for key in file.metadata}
    again = file.metadata.replace({key: from_text(text, VALUE_TYPES, key) for key, text in texts.items()})
    other = {"version": 4 - file.header.version, "byte_order": LITTLE if file.header.byte_order == BIG else BIG}
    swapped = Container.parse(built(other, file.metadata)).metadata
    header = {name: file.header[name] for name in other}
    found = [built(header, metadata) for metadata in (file.metadata, again, swapped)]
    return None if found[0] == found[1] == found[2] else "expected metadata to come back from text and from another byte order"


def built(header: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    return Container.build({"format": "GGUF", "header": header, "metadata": metadata})


def problem_of_map(stored: bytes, file: File | None) -> str | None:
    """Returns a problem of the byte map, which has each byte once and reading's error, or None."""
    try:
        found, error = byte_map_of(BytesSource(stored))
    except FormatError as refused:
        return None if file is None else f"expected a byte map of a file that is read, found {refused.text}"
    if (error is None) != (file is not None):
        return f"expected a byte map to be whole if the file is read, found {error}"
    at = 0
    for span in found:
        if span.start != at or span.end <= span.start:
            return f"expected a span from byte {at} on, found one from {span.start} to {span.end}"
        at = span.end
    return None if at == found.nbytes else f"expected the last span to end at byte {found.nbytes}, found {at}"


def problem_of_views(stored: bytes, file: File | None) -> str | None:
    """Returns a text for a terminal with control characters, or None."""
    texts: list[View] = []
    try:
        texts += views_of_map(byte_map_of(BytesSource(stored))[0])
    except FormatError as refused:
        texts.append(("error", PRINTED, refused.text))
    if file is not None:
        texts += views(file, with_page=sum(stored) % WITH_PAGE == 0)
    for name, kind, text in texts:
        lines = text.split("\n") if kind == PRINTED else [text]
        if kind != OTHER and not all(line.isprintable() for line in lines):
            return f"expected printable text of {name}, found {text!r:.200}"
    return None
