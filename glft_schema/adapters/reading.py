"""Reads LoRA adapters of peft and llama.cpp, by the tensor names of a GGUF model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from glft_schema.checks.roles import check_fit
from glft_schema.errors import FormatError, TensorError, quote
from glft_schema.families.export import gguf_config
from glft_schema.files.container import open
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath
from glft_schema.tensors.stored_tensor import of_file
from glft_schema.weights.checkpoints import open_checkpoint
from glft_schema.weights.peft_adapters import ALPHA, Update, finite, pairs, updates_of_peft, weights_of

IN_GGUF = re.compile(r"(?P<name>.+)\.lora_(?P<side>[ab])")
INVOCATION = "adapter.alora.invocation_tokens"


def read_updates(adapter: StrPath, base: File) -> dict[str, Update]:
    """Returns the updates of an adapter, by the names of a model's tensors.

    Args:
        adapter: a folder of peft, or a GGUF file.
        base: the model.

    Raises:
        OptionError: if it is neither.
        FormatError: if it is not plain LoRA, is not finite, or does not belong to the model.
        OSError: if a file cannot be read.
    """
    try:
        if Path(adapter).is_dir():
            tensors = open_checkpoint(weights_of(Path(adapter)))
            return updates_of_peft(Path(adapter), tensors, gguf_config(base), base.tensors)
        with open(adapter) as file:
            for finding in check_fit(file, base):
                raise FormatError(finding.problem, finding.path, offset=finding.offset, file=str(adapter))
            if INVOCATION in file.metadata:
                raise FormatError("expected plain LoRA, found aLoRA", f"metadata -> {INVOCATION}", file=str(adapter))
            return dict(_of_gguf(file))
    except TensorError as error:  # of the adapter, not of the model
        raise FormatError(error.problem, quote(error.tensor, 200), file=str(adapter)) from None


def _of_gguf(file: File) -> Iterator[tuple[str, Update]]:
    """Yields the updates of an adapter of llama.cpp, which fits its base."""
    alpha = finite(file.metadata.get(ALPHA, 0), f"metadata -> {ALPHA}", file.name)
    for name, (a, b) in pairs({name: of_file(tensor) for name, tensor in file.tensors.items()}, IN_GGUF):
        yield name, Update(b, a, alpha / a.shape[-2] if alpha else 1.0)  # llama.cpp takes 0 as no scaling
