"""Loading whole files as state dicts, and one row of a large tensor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import glft_schema
from glft_schema import load_file, save_file
from glft_schema.transformers import load
from tests.bench import files
from tests.bench.measure import Row, in_turn, seconds_of

PAGE = os.sysconf("SC_PAGE_SIZE")


def by_transformers(path: Path) -> dict[str, torch.Tensor]:
    """Returns transformers' state dict; loading the model would need more packages."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path.parent, gguf_file=path.name))
    tensors: dict[str, torch.Tensor] = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    return tensors


def by_from_pretrained(path: Path) -> tuple[object, object]:
    """Returns the model and the tokenizer of transformers' own loading."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": path.name, "local_files_only": True}
    return AutoModelForCausalLM.from_pretrained(path.parent, **source), AutoTokenizer.from_pretrained(path.parent, **source)


def bytes_of_a_row(folder: Path) -> Iterator[Row]:
    """Counts the bytes that the process reads for one row of a 2 GB tensor."""
    rows, columns = 1 << 16, 1 << 13
    for scheme, stored in (("f32", 4 * columns), ("q8_0", columns // 32 * 34)):
        path = folder / "large.gguf"
        piece = torch.zeros(rows // 16, columns)
        save_file({"w": piece.repeat(16, 1)}, path, schemes={"w": scheme})
        with glft_schema.open(path, mmap=False) as file:
            before = _bytes_read()
            _ = file.tensors["w"][rows // 2]
            read = _bytes_read() - before
        what = f"one row of {path.stat().st_size / 1e9:.1f} GB of {scheme}, bytes read"
        yield Row(what, read, "the row and two pages", stored + 2 * PAGE, "B", 1.0)
        path.unlink()


def _bytes_read() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def rows() -> Iterator[Row]:
    model = files.smollm2()
    for what, ours, theirs, goal in (
        ("load SmolLM2 as a state dict, again", load_file, by_transformers, 1 / 50),
        ("load SmolLM2 and its tokenizer, packed", load, by_from_pretrained, 1 / 20),
    ):
        time = in_turn({"ours": partial(ours, model)})["ours"]
        yield Row(what, time, "transformers, gguf_file=", seconds_of(partial(theirs, model)), "s", goal)
    with tempfile.TemporaryDirectory() as name:
        yield from bytes_of_a_row(Path(name))
