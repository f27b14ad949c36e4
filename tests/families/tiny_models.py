"""Tiny models of transformers, with configs as published models have them, in a few sizes less.

Each file of `models` is a class: its configs by the name of the published model, in the spelling of
transformers 4, the tokenizer of its folders (see `tiny_folders`), and `differs`, the faults of
llama.cpp's converter by the name of the model: a key, a tensor or ``*`` if it fails, and the reason.
`options` are attributes of the converter's class, as its command line sets them.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file

from tests.families.tiny_folders import TOKENIZERS, values

MODELS = Path(__file__).with_name("models")


class TinyModel(NamedTuple):
    """A config of a file in `models`."""

    file: str
    name: str

    @property
    def stated(self) -> dict[str, Any]:
        """The contents of the file."""
        return _read(self.file)

    @property
    def config(self) -> dict[str, Any]:
        return {"architectures": [self.stated["class"]], **self.stated["configs"][self.name]}

    @property
    def tolerance(self) -> float:
        """The largest difference of logits, in standard deviations."""
        return float(self.stated.get("tolerance", 1e-4))

    @property
    def differs(self) -> dict[str, str]:
        """The keys and tensors that the converter writes otherwise, and the reasons."""
        return self.stated.get("differs", {}).get(self.name, {})  # type: ignore[no-any-return]

    def make(self, parent: Path, *, newest: bool = False) -> tuple[Path, Any]:
        """Writes a folder, and returns it and its model of transformers.

        Args:
            parent: where the folder is made.
            newest: write the config as transformers 5 does, and the names of its modules' parameters.
        """
        import torch
        from transformers import AutoConfig

        folder = parent / self.file
        shutil.copytree(TOKENIZERS / self.stated["tokenizer"], folder)
        (folder / "config.json").write_text(json.dumps(self.config))
        model = class_named(self.stated["class"])._from_config(
            AutoConfig.from_pretrained(folder), attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    tensor.copy_(values(name, tuple(tensor.shape)))
        model.eval().tie_weights()
        model.save_pretrained(folder)
        if newest:
            stored = {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
            save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
        else:
            (folder / "config.json").write_text(json.dumps(self.config))
        return folder, model


@cache
def _read(file: str) -> Any:
    return json.loads((MODELS / f"{file}.json").read_text())


def class_named(name: str) -> Any:
    """Returns a class of transformers."""
    import transformers

    return getattr(transformers, name)


TINY_MODELS = [TinyModel(path.stem, name) for path in sorted(MODELS.glob("*.json")) for name in _read(path.stem)["configs"]]
