"""ggml's tensor types by their numbers in GGUF files. Each group of types is a module here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules

from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import TypeTable
from glft_schema.plugins import TYPES, load
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import Floats, Reserved
from glft_schema.tensor_types.scalar_layout import Encoder, Formula
from glft_schema.tensor_types.tensor_type import OpaqueType, TensorType

MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
DECLARED = [value for module in MODULES for value in vars(module).values() if isinstance(value, TensorType)]
DECLARED.sort(key=lambda type_: type_.code)
GGML_TYPES = TypeTable[TensorType]("ggml", *DECLARED, unknown=OpaqueType.of, more=lambda: load(TYPES, _check_registered))


def register_type(
    name: str,
    code: int,
    *,
    weights: int,
    block: Struct,
    dequantize: Formula,
    quantize: Encoder | tuple[Encoder, ...] | None = None,
    scales: Mapping[str, Floats] | None = None,
    reserved: Iterable[Reserved] = (),
) -> TensorType:
    """Adds your type to GGUF's types in this process. Files with the type can then be read, sliced,
    written and converted.

    A package announces its types as entry points of ``glft_schema.types``; see
    `glft_schema.plugins`.

    Args:
        name: such as ``Q4_X``; in lower case, the type's name in schemes.
        code: the type's number in files.
        weights: the number of weights in a block.
        block: a `Struct` of the block's fields in file order, each an array of constant dims.
        dequantize: a scalar function of one block, see `formula_of`.
        quantize: the encoder, a scalar function of one block, which writes all fields, or two,
            ``(to_x, to_x_by_importance)``; see docs/concepts/scalar-functions.md. Without an
            encoder, tensors of the type can only be read and copied.
        scales: for each field of integers that encodes floats, the conversion to them, used by
            checks of values.
        reserved: bit patterns that no encoder writes, reported by checks of values.

    Raises:
        ValueError: if the name or the code is in use, or the block or a function is invalid; the
            message says what to write instead.
    """
    if type(code) is not int or code < 0:
        raise ValueError(f"expected a non-negative code, found {code!r}")
    for known in GGML_TYPES:
        if code == known.code or str(name).lower() == known.scheme:
            raise ValueError(f"expected an unused code and an unused name, found one used by {known.code} {known}")
    type_ = block_type(name, code, weights, block, dequantize=dequantize, quantize=quantize, scales=scales, reserved=reserved)
    GGML_TYPES.add(type_)
    return type_


def _check_registered(type_: object) -> None:
    """Checks that loading a plugin has registered its type. Raises TypeError."""
    if not isinstance(type_, TensorType) or type_ not in list(GGML_TYPES):
        raise TypeError(f"expected a type that register_type has returned, found {type_!r}")
