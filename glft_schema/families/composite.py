"""Schemes of several tensors for each weight that are refused, because no scheme in `composites`
reads them. They are recognised by the tensors' names and dtypes.

Sources: the tensors that HQQ 0.2.8 and AutoAWQ 0.2.9 write. The names of quanto, Marlin, AQLM, EXL2
and EXL3 are not checked with their libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from glft_schema.errors import FormatError, quote, safe
from glft_schema.families.config import CONFIG, read_json
from glft_schema.families.page import Family
from glft_schema.storage.dtypes import CODES, name_of
from glft_schema.storage.source import StrPath
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.tensors.tensor import Tensor

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


class Scheme(NamedTuple):
    """Tensors ``X + codes``, with a dtype of `dtypes`, beside ``X + scales``. X may be empty."""

    name: str
    codes: str
    dtypes: tuple[str, ...]
    scales: str


# fmt: off
SCHEMES = (  # the first one that fits
    Scheme("AWQ, not for GEMM", ".qweight",       ("int16", "int32"),             ".scales"),
    Scheme("quanto",            "._data",         ("int8", "uint8", *FLOAT8),     "._scale"),
    Scheme("HQQ",               ".W_q",           ("uint8", "int32"),             ".scale"),
    Scheme("EXL2",              ".q_weight",      ("int32",),                     ".q_scale"),
    Scheme("EXL3",              ".trellis",       ("int16",),                     ".suh"),
    Scheme("Marlin",            ".B",             ("int32",),                     ".s"),
    Scheme("AQLM",              ".codes",         ("int8", "int16", "int32"),     ".codebooks"),
)
# fmt: on


def refuse_composite(
    tensors: Mapping[str, Tensor] | Mapping[str, StoredTensor],
    path: StrPath,
    can_copy: bool = False,
    family: Family | None = None,
) -> None:
    """Raises FormatError if tensors are the codes and scales of a scheme that is not mapped.

    Args:
        tensors: of a file, or stored tensors.
        path: their file or folder. A config.json beside the file or in the folder is read.
        can_copy: whether the option ``as_stored`` would copy them.
        family: the family that will map the tensors; see `Family.packs`.
    """
    weights = {name: tensor for name, tensor in tensors.items() if family is None or not family.packs(name)}
    dtypes = {name: dtype for name, tensor in weights.items() if (dtype := _dtype(tensor))}
    dotted = {f".{name}": dtype for name, dtype in dtypes.items()}  # a single Linear's names have no prefix
    composite = next((pair for scheme in SCHEMES if (pair := _pair(scheme, dotted))), None)
    if not composite:
        codes = next(
            (name for name, dtype in dtypes.items() if dtype in (*CODES, "int16") and len(tensors[name].shape) > 1), None
        )
        composite = _by_config(codes, path) if codes is not None else None
    if composite:
        problem = f"expected weights, found codes and scales of {composite[0]}, such as {quote(composite[1])}"
        advice = "save the model unquantized with the library that wrote it"
        if composite[0] == "glft":
            advice = "load the model with transformers, and save model.state_dict() with glft_schema.save_file"
        copy = ", or copy the tensors as stored: as_stored (--as-stored)" if can_copy else ""
        raise FormatError(f"{problem}: {advice}{copy}", file=str(path))


def _dtype(tensor: Tensor | StoredTensor) -> str | None:
    """Returns the name of a tensor's dtype, None for a quantized type."""
    return tensor.type.exact if isinstance(tensor, Tensor) else name_of(tensor.dtype)


def _pair(scheme: Scheme, dtypes: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns the scheme's name and its first tensor of codes, or None. Names begin with a dot."""
    for name, dtype in dtypes.items():
        if name.endswith(scheme.codes) and dtype in scheme.dtypes and name.removesuffix(scheme.codes) + scheme.scales in dtypes:
            return scheme.name, name[1:]
    return None


def _by_config(codes: str, path: StrPath) -> tuple[str, str] | None:
    """Returns the quantization method in config.json and the tensor of codes, or None."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    try:
        config = read_json(folder / CONFIG).get("quantization_config")
    except (OSError, FormatError):
        return None
    method = config.get("quant_method") if isinstance(config, dict) else None
    return (safe(str(method)), codes) if method else None
