"""Independent encoders and decoders: files rebuilt from our values, and hashes of numbers.

Hashes of numbers do not depend on the dtype: floats are hashed as float64, all NaN as one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from glft_schema import File
from glft_schema.codec.typed_values import Typed
from glft_schema.formats.gguf import VALUE_TYPES
from glft_schema.formats.glft import GLFT
from glft_schema.formats.safetensors import SAFETENSORS
from tests.formats.test_safetensors import in_library
from tests.oracles import gguf_reference, glft_reference, llama_cpp
from tests.oracles.gguf_reference import BLOCKS
from tests.tensor_types.test_ggml_types import in_other_order

ORDERS = {"little": "<", "big": ">"}
PLAIN = {0: "f4", 1: "f2", 24: "i1", 25: "i2", 26: "i4", 27: "i8", 28: "f8"}  # numpy's types by ggml's codes
BF16 = 30
KINDS = {"BOOL": "?", "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8"} | {
    f"{letter}{8 * size}": f"{letter.lower()}{size}" for letter in "IU" for size in (1, 2, 4, 8)
}
# Bits of the mantissa, bias, and the codes without a sign that are NaN or infinite.
SMALL: dict[str, tuple[int, int, dict[int, float]]] = {
    "F8_E4M3": (3, 7, {0x7F: np.nan}),
    "F8_E5M2": (2, 15, {0x7C: np.inf, 0x7D: np.nan, 0x7E: np.nan, 0x7F: np.nan}),
    "F8_E4M3FNUZ": (3, 8, {}),
    "F8_E5M2FNUZ": (2, 16, {}),
}


def rewritten(file: File, stored: bytes) -> bytes | None:
    """Returns a file as the writers of the tests write our values; None if its format has none."""
    region = stored[len(stored) - file.tensors.size :]
    if file.format is SAFETENSORS:
        return None
    if file.format is GLFT:
        rows = [glft_reference.Row(d.name, list(d.dims), d.dtype.code, b"", d.offset) for d in file.descriptors]
        text = "\n".join(f"{key}={value}" for key, value in file.metadata.items()) + "\n" * file.metadata.trailing_newline
        return glft_reference.write(text.encode(), rows, region)
    infos = [gguf_reference.Info(as_bytes(row.name), row.dims, row.dtype.code, b"", row.offset) for row in file.tensor_infos]
    entries = [(as_bytes(key), *as_reference(file.metadata.stored_value(key))) for key in file.metadata]
    order = ORDERS[file.header.byte_order]
    return gguf_reference.File(entries, infos, region, file.header.version, order, padding=file.padding).bytes()


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_reference(value: Typed) -> tuple[int, Any]:
    """Returns a value as the reference stores it; floats as big-endian bytes."""
    if value.is_array:
        inner = [as_reference(element)[1] for element in value.elements()]
        return VALUE_TYPES["array"].code, (VALUE_TYPES[value.element_type].code, inner)
    code = VALUE_TYPES[value.type].code
    if isinstance(value.value, str):
        return code, as_bytes(value.value)
    if value.type.startswith("float"):
        return code, np.asarray(value.value, value.value.dtype.newbyteorder(">")).tobytes()
    return code, int(value.value)


# Numbers


def hashed(numbers: np.ndarray) -> str:
    """Returns the beginning of the SHA-256 of numbers."""
    flat = np.ascontiguousarray(numbers).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(f"f{flat.dtype.itemsize // 2}")
    with np.errstate(invalid="ignore"):  # signaling NaN
        wide = flat.astype({"f": "<f8", "u": "<u8"}.get(flat.dtype.kind, "<i8"))
    if wide.dtype.kind == "f":
        wide[np.isnan(wide)] = np.nan
    return hashlib.sha256(wide.tobytes()).hexdigest()[:16]


def our_numbers(found: torch.Tensor) -> str:
    """Returns the hash of numbers of this package."""
    if found.dtype == getattr(torch, "float4_e2m1fn_x2", None):
        found = found.view(torch.uint8)
    elif found.is_floating_point():
        found = found.double()
    return hashed(found.numpy())


def other_numbers(file: File, stored: bytes) -> list[str | None]:
    """Returns the hash of each tensor's numbers by other decoders; None if there is none."""
    if file.format is SAFETENSORS:
        found = in_library(stored) or {}
        return [of_dtype(*found[name]) if name in found else None for name in file.tensors]
    region = stored[len(stored) - file.tensors.size :]
    if file.format is GLFT:
        hashes: list[str | None] = []
        for row in file.descriptors:
            code, dims = row.dtype.code, list(row.dims)
            payload = region[row.offset : row.offset + glft_reference.nbytes(code, dims)]
            hashes.append(hashed(np.array(glft_reference.numbers(code, dims, payload), np.float64)))
        return hashes
    return [
        of_ggml_type(
            code := row.dtype.code,
            str(row.dtype),
            region[row.offset : row.offset + gguf_reference.nbytes(code, row.dims)],
            ORDERS[file.header.byte_order],
        )
        if row.dtype.code in BLOCKS
        else None
        for row in file.tensor_infos
    ]


def of_ggml_type(code: int, name: str, payload: bytes, order: str) -> str:
    if code in PLAIN:
        return hashed(np.frombuffer(payload, order + PLAIN[code]))
    if code == BF16:
        return hashed(widened(np.frombuffer(payload, order + "u2")))
    weights, size = BLOCKS[code]
    blocks = np.frombuffer(payload, np.uint8).reshape(-1, size).copy()
    blocks = in_other_order(name, blocks) if order == ">" else blocks
    if name == "Q8_1":  # which is Q8_0 with a sum; llama.cpp has no function for it
        name, blocks = "Q8_0", np.concatenate((blocks[:, :2], blocks[:, 4:]), 1)
    return hashed(llama_cpp.dequantize(name, blocks, weights))


def widened(bits: np.ndarray) -> np.ndarray:
    """Returns bfloat16 as float32."""
    found: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return found


def of_dtype(dtype: str, shape: list[int], payload: bytes) -> str | None:
    """Returns the hash of numbers of a dtype of safetensors; of the bytes of F4."""
    if dtype in KINDS:
        return hashed(np.frombuffer(payload, np.dtype(KINDS[dtype]).newbyteorder("<")))
    if dtype == "BF16":
        return hashed(widened(np.frombuffer(payload, "<u2")))
    if dtype == "F4":
        return hashed(np.frombuffer(payload, np.uint8))
    if dtype == "F8_E8M0":
        return hashed(np.array([np.nan if code == 255 else 2.0 ** (code - 127) for code in payload], np.float64))
    return hashed(np.array([small(dtype, code) for code in payload], np.float64)) if dtype in SMALL else None


def small(dtype: str, code: int) -> float:
    """Returns a float of 8 bits."""
    bits, bias, special = SMALL[dtype]
    sign, rest = (-1.0 if code & 0x80 else 1.0), code & 0x7F
    if dtype.endswith("FNUZ") and code == 0x80:
        return float("nan")
    if rest in special:
        return sign * special[rest]
    exponent, mantissa = rest >> bits, (rest & (1 << bits) - 1) / (1 << bits)
    return sign * (mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias))
