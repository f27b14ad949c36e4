"""ggml's types as composite weights that hold the same values, for the folders of libraries: the
inverse of `as_ggml`. Codes and scales move, and nothing is rounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from glft_schema.composites.as_ggml import ROUNDED, Fields, chunks_of, rounds_products
from glft_schema.composites.nibbles import to_neighbours
from glft_schema.composites.schemes import MLX, MXFP4, FloatsOfMLX, NVFP4OfGGUF, PackedIntegers, PackedNVFP4
from glft_schema.composites.weight import CompositeWeight, Facts
from glft_schema.storage.dtypes import FLOAT32, Array, Dtype, name_of
from glft_schema.tensor_types import TensorType
from glft_schema.tensor_types.ggml import fp4
from glft_schema.tensor_types.ggml.legacy import Q4_0, Q4_1, Q8_0
from glft_schema.tensors.stored_tensor import Slices, StoredTensor, of_values
from glft_schema.tensors.tensor import Tensor

COMPRESSED_TENSORS, OF_MLX = "compressed-tensors", "mlx"
HEAD = "lm_head"  # the linear layer outside of blocks
NO_NUMBER = 255  # of E8M0; ggml reads it as 2^128
OF_GLOBAL = FLOAT32.type(6 * 448)  # MLX stores the scale of the tensor times this
ONE = FLOAT32.type(1)

Config = dict[str, Any]


class Form(NamedTuple):
    """The form of a type of ggml in a library.

    Attributes:
        scheme: declares the parts.
        format: the library's name of it.
        bits: of a code.
        group: columns that share a scale.
        head: bytes of a block of ggml before its codes.
        least: the number of code 0 in ggml, if the library has biases and ggml has none.
    """

    scheme: type[CompositeWeight]
    format: str
    bits: int
    group: int
    head: int
    least: int = 0


FORMS: dict[str, dict[TensorType, Form]] = {
    COMPRESSED_TENSORS: {
        Q4_0: Form(PackedIntegers, "pack-quantized", 4, 32, 2),
        Q8_0: Form(PackedIntegers, "pack-quantized", 8, 32, 2),
        fp4.MXFP4: Form(MXFP4, "mxfp4-pack-quantized", 4, 32, 1),
        fp4.NVFP4: Form(PackedNVFP4, "nvfp4-pack-quantized", 4, 16, 4),
    },
    OF_MLX: {
        Q4_0: Form(MLX, "affine", 4, 32, 2, -8),
        Q4_1: Form(MLX, "affine", 4, 32, 4),
        Q8_0: Form(MLX, "affine", 8, 32, 2, -128),
        fp4.MXFP4: Form(FloatsOfMLX, "mxfp4", 4, 32, 1),
        fp4.NVFP4: Form(FloatsOfMLX, "nvfp4", 4, 16, 4),
    },
}


def packed_model(
    tensors: Mapping[str, StoredTensor], stored: Mapping[str, StoredTensor], library: str
) -> tuple[dict[str, StoredTensor], Config]:
    """Returns tensors with the parts of those that a library has a form for, and the entries of
    config.json.

    Args:
        tensors: of the model, by the names that the library has.
        stored: the same, to be written if they are not packed.
        library: a key of `FORMS`.
    """
    found, forms, floats = dict[str, StoredTensor](), dict[str, Form](), list[str]()
    for name, tensor in tensors.items():
        module, type_ = name.removesuffix(".weight"), tensor.packed.type if tensor.packed else tensor.quantized
        if one := packed(name, tensor, library):
            forms[module] = one[0]
            found |= one[1]
            continue
        found[name] = replace(stored[name], origin=f"{type_.name}, not packed for {library}" if type_ else "")
        if module != name and len(tensor.shape) > 1:
            floats.append(module)
    if not forms:
        return found, {}
    if library == COMPRESSED_TENSORS:
        entries = {"quantization_config": _of_compressed_tensors(forms, floats)}
        has_floats = any(form.scheme is not PackedIntegers for form in forms.values())
        return found, {**entries, "dtype": "bfloat16"} if has_floats else entries  # in which the library decodes floats
    config = _of_mlx(forms, floats)
    return found, {"quantization": config, "quantization_config": config}


def packed(name: str, stored: StoredTensor, library: str) -> tuple[Form, dict[str, StoredTensor]] | None:
    """Returns the form of a weight in a library, and its parts by name. None if the library has no
    form for its type, or none that holds its values: the scales of all rows are checked.

    Args:
        name: of the weight in the library.
        stored: the weight of a GGUF model.
        library: a key of `FORMS`.
    """
    tensor, module = stored.packed, name.removesuffix(".weight")
    form = FORMS[library].get(tensor.type) if tensor else None
    if not form or not tensor or module == name or len(stored.shape) != 2 or not stored.numel:
        return None
    if library == COMPRESSED_TENSORS and not (module == HEAD or any(map(str.isdigit, module.split(".")))):
        return None  # embeddings, which are outside of blocks
    type_ = tensor.type
    if type_ == fp4.NVFP4:
        scale = of_values(stored.companions.get("scale", np.ones(1, FLOAT32)))
        tensor = NVFP4OfGGUF(name, {"weight": stored, "scale": scale}, Facts()).stored.packed
        assert tensor is not None
    factors = []
    for fields in chunks_of(tensor):
        _, scales, last = _split(form, fields)
        if not np.isfinite(last).all() or (scales.dtype == np.uint8 and (scales == NO_NUMBER).any()):
            return None
        if "factors" in fields:
            factors.append(last)
    parts = {}
    for at, (part, declared) in enumerate(form.scheme.declared().items()):
        if at < 2 or part == "biases":
            parts[f"{module}.{part}"] = _part(tensor, form, at, declared.number.dtype)
        elif part == "weight_shape":
            parts[f"{module}.{part}"] = of_values(np.array(tensor.shape, declared.number.dtype))
        elif factors:
            found = _global_scale(np.concatenate(factors), form)
            if found is None:
                return None
            if part == "weight_global_scale" or found != OF_GLOBAL:
                parts[f"{module}.{part}"] = of_values(found)
    codes, rounded = next(iter(parts)), ""
    if form.scheme is PackedNVFP4 and rounds_products(factors[0]):
        rounded = f", {ROUNDED}"
    parts[codes] = replace(parts[codes], origin=f"{type_.name}, packed for {library}{rounded}")
    return form, parts


def _split(form: Form, fields: Fields) -> tuple[Array, Array, Array]:
    """Returns codes of rows, u8 [rows, bytes], as the library has them; scales [rows, groups]; and
    biases alike, or factors [rows, 1]."""
    if "factors" in fields:
        return fields["codes"], fields["scales"], fields["factors"]
    rows = len(fields["blocks"])
    head, codes = np.split(fields["blocks"].reshape(rows, -1, form.head + 4 * form.bits), [form.head], -1)
    numbers = np.ascontiguousarray(head).view(np.uint8 if form.head == 1 else np.float16)
    codes = codes ^ 128 if form.bits == 8 else to_neighbours(codes)
    with np.errstate(all="ignore"):
        biases = numbers[..., 1] if form.head == 4 else form.least * numbers[..., 0]
    return codes.reshape(rows, -1), numbers[..., 0], biases


def _part(tensor: Tensor, form: Form, at: int, dtype: Dtype) -> StoredTensor:
    """Returns a part that is computed row by row: the result of `_split` with this number. Integers
    get a dtype, floats are float16."""
    rows = range(tensor.shape[0])

    def read(index: Slices) -> Array:
        numbers = np.ascontiguousarray(_split(form, tensor.rows(rows[index[0]]))[at])
        return (numbers.view(dtype) if numbers.dtype == np.uint8 else numbers)[:, index[1]]

    first = read((slice(0, 1), slice(None)))
    return StoredTensor((len(rows), first.shape[1]), first.dtype, lambda: read((slice(None), slice(None))), read=read)


def _global_scale(factors: Array, form: Form) -> Array | None:
    """Returns the scale of a tensor as the library has it, float32 [1], or None if that does not
    give the same scale again."""
    with np.errstate(all="ignore"):
        found: Array = ONE / factors[0] if form.scheme is PackedNVFP4 else factors[0] * OF_GLOBAL
        again = ONE / found if form.scheme is PackedNVFP4 else found / OF_GLOBAL
    return found if (again == factors).all() and np.isfinite(found).all() else None


def _of_compressed_tensors(forms: Mapping[str, Form], floats: Iterable[str]) -> Config:
    """Returns the config of modules with forms, and of others."""
    groups = {}
    for number, form in enumerate(dict.fromkeys(forms.values())):
        _, scale, *_ = form.scheme.declared().values()
        groups[f"group_{number}"] = {
            "format": form.format,
            "targets": [module for module, other in forms.items() if other == form],
            "weights": {
                "num_bits": form.bits,
                "type": "int" if form.scheme is PackedIntegers else "float",
                "strategy": "tensor_group" if form.scheme is PackedNVFP4 else "group",
                "group_size": form.group,
                "symmetric": True,
                "scale_dtype": None if form.scheme is PackedIntegers else f"torch.{name_of(scale.number.dtype)}",
            },
        }
    formats = {group["format"] for group in groups.values()}
    return {
        "config_groups": groups,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "ignore": sorted({*floats, HEAD}.difference(forms)),
        "quant_method": COMPRESSED_TENSORS,
        "quantization_status": "compressed",
        "version": "0.20.0",
    }


def _of_mlx(forms: Mapping[str, Form], floats: Iterable[str]) -> Config:
    """Returns the config of modules with forms, and of others."""
    usual = Counter(forms.values()).most_common(1)[0][0]
    configs = {form: {"group_size": form.group, "bits": form.bits, "mode": form.format} for form in forms.values()}
    others = {module: configs[form] for module, form in forms.items() if form != usual}
    return {**configs[usual], **others, **dict.fromkeys(floats, False)}
