"""SentencePiece's tokenizer.model, a protobuf message.

Source: src/sentencepiece_model.proto of SentencePiece 0.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from glft_schema.formats.gguf_names import NORMAL

PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of the message
TEXT, SCORE, TYPE = 1, 2, 3  # of a piece
MODEL_TYPE, UNIGRAM, BPE = 3, 1, 2  # of the trainer's options
CHARACTERS, DUMMY_PREFIX, REMOVE_SPACES = 2, 3, 4  # of the normalizer's options
VARINT, SIZED, NBYTES = 0, 2, {1: 8, 5: 4}  # codes of values


class StoredPiece(NamedTuple):
    """A piece. Its type has the number that GGUF gives to it."""

    text: str
    type: int
    score: float


class SentencePieceModel(NamedTuple):
    """The parts of a model that decide how it splits texts.

    Attributes:
        pieces: by number.
        model_type: how the pieces were found, `BPE` or another number.
        normalizes: whether characters or spaces of a text are replaced.
        dummy_prefix: whether a space is added before a text.
    """

    pieces: list[StoredPiece]
    model_type: int
    normalizes: bool
    dummy_prefix: bool


def read_model(stored: bytes) -> SentencePieceModel:
    """Reads a tokenizer.model. Raises ValueError or another exception if it is invalid."""
    pieces = []
    options: dict[int, dict[int, Any]] = {TRAINER: {}, NORMALIZER: {}}
    for field, value in _fields(stored):
        if field == PIECES:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece.get(SCORE, bytes(4)))[0]
            pieces.append(StoredPiece(piece[TEXT].decode(), piece.get(TYPE, NORMAL), score))
        elif field in options:
            options[field] |= _fields(value)
    trainer, normalizer = options[TRAINER], options[NORMALIZER]
    normalizes = bool(normalizer.get(CHARACTERS) or normalizer.get(REMOVE_SPACES, True))
    return SentencePieceModel(pieces, trainer.get(MODEL_TYPE, UNIGRAM), normalizes, bool(normalizer.get(DUMMY_PREFIX, True)))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number and the value of each field: an int, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
        else:
            size, at = _varint(message, at) if key & 7 == SIZED else (NBYTES[key & 7], at)
            start, at = at, at + size
            if at > len(message):
                raise ValueError(f"expected {size} bytes, found {len(message) - start}")
            yield key >> 3, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns an integer of 7 bits per byte, and the position after it."""
    value = shift = 0
    while message[at] > 127:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
