"""The features of files: those that a file has, and those that a corpus must have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from glft_schema import Container, File, FormatError
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.formats.format import Format
from glft_schema.formats.gguf import GGUF, VALUE_TYPES
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from glft_schema.tensor_types.conversions import widen
from glft_schema.tensor_types.tensor_type import OpaqueType

UNKNOWN = "tensor of an unknown type"
VARIED = 8  # different bytes that a payload must have, if it is as long, to count for its type
EVERYWHERE = {
    *("no tensors", "no metadata", "metadata", "no dims", "more than 4 dims", "a tensor without numbers"),
    *("payloads in another order", "a gap", "a gap that is not zero", "tied tensors", "trailing bytes"),
    *("a number that is NaN", "a number that is infinite", "a name that is not ASCII"),
}
SCALES = {"a scale that is NaN", "a scale that is infinite"}
ALIGNED = {"another alignment", "an alignment that is no power of two", "an alignment of another type than uint32"}
PADDED = {"padding that is not zero", "no padding although it is due"}
NOT_UTF8 = {"a key that is not UTF-8", "a name that is not UTF-8", "a text that is not UTF-8"}
VALUES = {
    "an empty array",
    "an array in an array",
    "arrays three deep",
    "a bool of 0",
    "a bool of 1",
    "a bool of 2 or more",
    "a name of 64 bytes",
}
REQUIRED = {
    GLFT: EVERYWHERE | SCALES | {"a newline at the end"},
    GGUF: EVERYWHERE | SCALES | ALIGNED | PADDED | NOT_UTF8 | VALUES | {UNKNOWN, "NaN as a value", "a key of segments"},
    SAFETENSORS: EVERYWHERE | {"spaces before the data", "escapes", "spaces in the text"},
}


def required(format: Format) -> set[str]:
    """Returns the features that the corpus of a format must have, by its declaration."""
    found = REQUIRED[format] | {f"tensor {type_}" for type_ in format.types}
    if format is GGUF:
        found |= {f"array of {type_}" for type_ in VALUE_TYPES} | {f"value {type_}" for type_ in VALUE_TYPES}
    for version, order in product(range(8), ("little", "big")):
        try:
            stored = Container.build({"format": format.name, "header": {"version": version, "byte_order": order}})
        except FormatError:
            continue
        found |= {feature for feature in features(stored) if feature.startswith("version")}
    return found


def features(stored: bytes) -> set[str]:
    """Returns the features of a file that is read."""
    file = Container.parse(stored)
    tensors, trailing = list(file.tensors.values()), bool(file.tensors.trailing)
    places = [tensor for tensor in tensors if tensor.nbytes]
    gaps = file.tensors.gaps[: len(file.tensors.gaps) - trailing]
    version = [str(file.header[name]) for name in ("version", "byte_order") if name in file.header]
    padding, alignment = file.regions.get("padding", b""), getattr(file, "alignment", 1)
    text = stored[8 : file.tensors.start] if file.format is SAFETENSORS else b""
    holds = {
        " ".join(["version", *version]): bool(version),
        "no tensors": not tensors,
        "metadata": bool(file.metadata),
        "no metadata": not file.metadata,
        "tied tensors": len({tensor.identity for tensor in places}) < len(places),
        "payloads in another order": [t.offset for t in places] != sorted(t.offset for t in places),
        "a gap": bool(gaps),
        "a gap that is not zero": any(any(map(any, file.tensors.gap_pieces(gap))) for gap in gaps),
        "trailing bytes": trailing,
        "padding that is not zero": any(padding),
        "no padding although it is due": (file.tensors.start - len(padding)) % alignment > 0 and not padding,
        "another alignment": file.format is GGUF and alignment != 32,
        "an alignment that is no power of two": file.format is GGUF and alignment.bit_count() != 1,
        "a newline at the end": bool(getattr(file.metadata, "trailing_newline", False)),
        "spaces before the data": text.endswith(b" "),
        "escapes": b"\\" in text,
        "spaces in the text": any(space in text.rstrip() for space in (b", ", b": ", b"\n", b"\t")),
    }
    return {*_of_tensors(file), *_of_metadata(file), *(name for name in holds if holds[name])}


def _of_tensors(file: File) -> Iterator[str]:
    for tensor in file.tensors.values():
        if len(set(tensor.raw)) >= min(VARIED, max(tensor.nbytes, 1)):
            yield UNKNOWN if isinstance(tensor.type, OpaqueType) else f"tensor {tensor.type}"
        yield from ["no dims"] * (not tensor.dims)
        yield from ["more than 4 dims"] * (len(tensor.dims) > 4)
        yield from ["a tensor without numbers"] * (0 in tensor.dims)
        yield from ["a name of 64 bytes"] * (len(tensor.name.encode("utf-8", "surrogateescape")) == 64)
        yield from _of_text("a name", tensor.name)
        if tensor.type.bytes_only is None:
            yield from _of_numbers("a number", tensor.array())
            for field in tensor.fields.values() if not tensor.type.exact else ():
                yield from _of_numbers("a scale", field)


def _of_metadata(file: File) -> Iterator[str]:
    if not isinstance(file.metadata, TypedMetadata):
        return
    for key in file.metadata:
        value = file.metadata.stored_value(key)
        yield from _of_text("a key", key)
        yield from ["a key of segments"] * ("." in key)
        yield from _of_value(value, 1)
        if key == "general.alignment" and value.type != "uint32":
            yield "an alignment of another type than uint32"


def _of_value(value: Typed, depth: int) -> Iterator[str]:
    yield f"value {'array' if value.is_array else value.type}"
    if value.is_array:
        yield f"array of {value.element_type}"
        yield from ["an empty array"] * (not value.value)
        yield from ["arrays three deep"] * (depth == 3)
        if value.is_nested:
            yield "an array in an array"
            for element in value.elements():
                yield from _of_value(element, depth + 1)
    elif isinstance(value.value, str):
        yield from _of_text("a text", value.value)
    elif value.type == "bool":
        yield ("a bool of 0", "a bool of 1", "a bool of 2 or more")[min(int(value.value), 2)]
    elif value.value != value.value:
        yield "NaN as a value"


def _of_text(what: str, text: str) -> Iterator[str]:
    yield from [f"{what} that is not UTF-8"] * any("\udc80" <= letter <= "\udcff" for letter in text)
    yield from [f"{what} that is not ASCII"] * (not text.isascii())


def _of_numbers(what: str, numbers: np.ndarray[Any, Any]) -> Iterator[str]:
    if numbers.dtype.itemsize > 1 and (numbers := widen(numbers)).dtype.kind in "fc":
        yield from [f"{what} that is NaN"] * bool(np.isnan(numbers).any())
        yield from [f"{what} that is infinite"] * bool(np.isinf(numbers).any())
