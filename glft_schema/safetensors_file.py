"""Tensors into a safetensors file, one at a time: the library of that name holds all of them in memory.

Source: the format as its README tells it (safetensors 0.8): u64 length, JSON header, payloads without gaps. As the library
does, the header is padded with spaces to a multiple of 8, and tensors with wider numbers come first, so that all are aligned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from glft_schema.atomic import atomic_write
from glft_schema.bulk import is_utf8
from glft_schema.checkpoints import SAFETENSORS_DTYPES, SAFETENSORS_METADATA, StoredTensor, in_memory
from glft_schema.errors import FormatError, LimitError, TensorError, shown
from glft_schema.fields import Struct
from glft_schema.names import leave_out
from glft_schema.numbers import Number
from glft_schema.planned import Planned, Progress, WrittenTensor
from glft_schema.schemes import choose_types
from glft_schema.source import StrPath
from glft_schema.tensor_bytes import write_all
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.plain import BF16, F16, F32, F64, I8, I16, I32, I64, as_stored
from glft_schema.tensor_types.tensor_type import DIMS
from glft_schema.type_table import TypeTable


def kept(name: str, code: int, number: Number) -> TensorType:
    """Declares a type whose numbers are stored as they come, and are never made of others."""
    payload = Struct("weights" / number[DIMS] * "as torch has them")
    return TensorType(name, code, payload, as_stored, None, exact=SAFETENSORS_DTYPES[name])


ONLY_KEPT = [
    kept(name, 100 + code, Number(name.lower(), kind, SAFETENSORS_DTYPES[name]))
    for code, (name, kind) in enumerate(
        {
            "U8": "u1",
            "U16": "u2",
            "U32": "u4",
            "U64": "u8",
            "BOOL": "u1",
            "C64": "c8",
            **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), "u1"),
        }.items()
    )
]
TYPES = TypeTable[TensorType]("safetensors", F32, F16, BF16, F64, I8, I16, I32, I64, *ONLY_KEPT)
MAX_HEADER = 100_000_000  # bytes, of which readers take no more


def save_safetensors(
    tensors: Mapping[str, StoredTensor],
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    schemes: Mapping[str, str] | None = None,
    *,
    exclude: Iterable[str] = (),
    progress: Progress | None = None,
    measure: bool = False,
) -> list[WrittenTensor]:
    """Writes tensors to a safetensors file; quantized ones are dequantized. Arguments, result and errors as of `save_file`.

    Tensors that are one and the same are stored once for each name: the format does not let them share bytes.
    """
    stored = in_memory(leave_out(tensors, exclude))
    if SAFETENSORS_METADATA in stored:
        raise TensorError("expected a name that the format does not use itself", SAFETENSORS_METADATA)
    choices = choose_types(stored, schemes or {}, TYPES)
    planned = {name: Planned(name, stored[name], choice, progress, measure) for name, choice in choices.items()}
    codes = {torch_name: code for code, torch_name in SAFETENSORS_DTYPES.items()}
    ordered = sorted(planned.values(), key=lambda tensor: (-tensor.type.dtype.itemsize, tensor.name))
    header: dict[str, object] = {SAFETENSORS_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.nbytes
        dtype, shape = codes[str(tensor.type.exact)], list(tensor.stored.shape)
        header[tensor.name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    for text in (*planned, *(metadata or {}), *(metadata or {}).values()):
        if not isinstance(text, str) or not is_utf8(text):
            raise FormatError(f"expected text that UTF-8 can hold, found {shown(text)}", "header")
    stored_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    stored_header += b" " * (-len(stored_header) % 8)
    if len(stored_header) > MAX_HEADER:
        raise LimitError(f"expected a header of at most {MAX_HEADER} bytes, a limit of safetensors, found {len(stored_header)}")
    with atomic_write(path) as stream:
        write_all(stream, len(stored_header).to_bytes(8, "little") + stored_header)
        for tensor in ordered:
            for piece in tensor.pieces():
                write_all(stream, piece)
    return [tensor.written() for tensor in planned.values()]
