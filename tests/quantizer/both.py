"""Quantizes a file here and with llama.cpp, and compares the files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from glft_schema import SchemeError, quantize
from glft_schema.quantizer.recipes import recipe_named
from tests.oracles import llama_quantize

REFUSED = {"Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"}  # without importance


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def importances(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns an importance for each matrix but the embedding: [columns], or [experts, columns]."""
    numbers = torch.Generator().manual_seed(5)
    return {
        name: torch.rand((*tensor.shape[:-2], tensor.shape[-1]), generator=numbers) ** 4 * 9 + 1e-3
        for name, tensor in weights.items()
        if tensor.dim() > 1 and name != "token_embd.weight"
    }


def kind_of(name: str) -> dict[str, Any]:
    """Returns llama.cpp's options for a recipe, or for a copy."""
    return {"ftype": 0, "only_copy": True} if name == "COPY" else {"ftype": recipe_named(name).code}


def compare(
    folder: Path, source: Path, names: list[str], importance: Mapping[str, torch.Tensor] | None = None, **options: Any
) -> dict[str, str]:
    """Quantizes a file here and there. Returns how the recipes ended: equal, or refused by both.

    Args:
        folder: of llama.cpp's shared objects.
        source: the model.
        names: of the recipes, or COPY.
        importance: by tensor.
        options: fields of llama.cpp's options, and ``ours``, the options here.
    """
    ours, ended = options.pop("ours", {}), {}
    given = {"importance": {name: column.flatten().tolist() for name, column in importance.items()}} if importance else {}
    outs = {name: source.with_name(f"{source.stem}-{name}.c.gguf") for name in names}
    jobs = [{"source": str(source), "out": str(outs[name]), **kind_of(name), **given, **options} for name in names]
    codes = llama_quantize.quantize(folder, jobs)
    for name, code in zip(names, codes, strict=True):
        out = source.with_name(f"{source.stem}-{name}.gguf")
        try:
            quantize(source, out, name, **{"importance": importance, **ours})
            ended[name] = "equal" if code == 0 and sha256(out) == sha256(outs[name]) else f"differs ({code})"
            out.unlink()
        except SchemeError as error:
            ended[name] = "refused" if code else f"only here: {error}"
        outs[name].unlink(missing_ok=True)
    return ended
