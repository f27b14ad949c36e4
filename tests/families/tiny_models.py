"""Tiny models of transformers, with the configs of published models, except their sizes.

Each file of `models` is a class: its configs by the name of the published model, as transformers 4
spells them, and the tokenizer of its folders (see `tiny_folders`). `differs` states the faults of
llama.cpp's converter by model: a key or a tensor, ``*`` if it fails, and the reason. `back` names
the classes of folders that are made of the GGUF files, if others compute the same. `like` has the
class and model type that compute the same as a class that transformers lacks. `options` are
attributes of the converter's class, as its command line sets them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.families.tiny_folders import TOKENIZERS, values

MODELS = Path(__file__).with_name("models")


def internlm2_tensors(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a Llama model as InternLM 2 stores them, with a matrix of the heads of
    each group: queries, a key and a value."""
    import torch

    groups, renamed = config["num_key_value_heads"], {}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")].unflatten(0, (groups, -1)) for part in "qkv"]
            tensor = torch.cat(parts, 1).flatten(0, 1)
        for old, new in INTERNLM2.items():
            name = name.replace(old, new)
        renamed[name] = tensor.contiguous()
    return renamed


INTERNLM2 = {
    "model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attention_norm", "self_attn.q_proj": "attention.wqkv", "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
}  # fmt: skip
OF_CODE = {"InternLM2ForCausalLM": internlm2_tensors}  # classes that have code in their folders: computed `like` another class


@dataclass(frozen=True)
class TinyModel:
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
            newest: write the config and the names as in the modules of transformers 5.
        """
        import torch
        from transformers import AutoConfig

        folder = parent / self.file
        shutil.copytree(TOKENIZERS / self.stated["tokenizer"], folder)
        computed = {**self.config, **self.stated.get("like", {})}
        (folder / "config.json").write_text(json.dumps(computed))
        model = class_named(computed["architectures"][0])._from_config(
            AutoConfig.from_pretrained(folder), attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    new = values(name, tuple(tensor.shape))
                    tensor.copy_(new if tensor.any() else new - new.mean().round())  # norms may add one
            for name, module in model.named_modules():
                if name.endswith("position_embeddings") and module.padding_idx is not None:
                    module.weight[: module.padding_idx + 1] = 0  # GGUF lacks the rows that texts do not use
        model.eval().tie_weights()
        model.save_pretrained(folder)
        if file_names := OF_CODE.get(self.stated["class"]):
            save_file(file_names(model.state_dict(), computed), folder / "model.safetensors")
            newest = False
        elif newest:
            stored = {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
            save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
        if not newest:
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
