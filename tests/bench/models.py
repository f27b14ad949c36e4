"""Quantizing whole models, each time in a fresh process: SmolLM2 in F32 to ten file types, and the
same with four times as many blocks, 1.9 GB, to two.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import glft_schema
from glft_schema import convert, save_file
from glft_schema.quantizer.recipes import recipe_named
from tests.bench.files import CACHE, smollm2
from tests.bench.measure import Row, compared
from tests.oracles import llama_quantize

RECIPES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K", "IQ4_XS", "IQ3_S")
GLFT = "from glft_schema.cli import main; main()"


def deeper(source: str, path: str, times: int) -> None:
    """Writes a model with each block of another one several times."""
    with glft_schema.open(source) as file:
        blocks = file.metadata["llama.block_count"]
        tensors = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
        for name in list(tensors):
            if match := re.fullmatch(r"blk\.(\d+)\.(.*)", name):
                for number in range(1, times):
                    tensors[f"blk.{int(match[1]) + number * blocks}.{match[2]}"] = tensors[name].clone()
        save_file(tensors, path, metadata=file.metadata | {"llama.block_count": times * blocks}, schemes={"*": "f32"})


def rows() -> Iterator[Row]:
    package = llama_quantize.package(CACHE / f"llama-quantize-{llama_quantize.VERSION}")
    oracle, threads = [sys.executable, llama_quantize.__file__, str(package)], torch.get_num_threads()

    def measured(model: str, source: str, ours: str, theirs: str, name: str) -> Row:
        job = json.dumps([{"source": source, "out": theirs, "ftype": recipe_named(name).code, "nthread": threads}])
        command = [sys.executable, "-c", GLFT, "quantize", source, ours, name]
        run = partial(subprocess.run, capture_output=True, check=True)
        by_c = {"llama_model_quantize": partial(run, oracle, input=job.encode())}
        (row,) = compared(f"glft quantize {model} {name}, {threads} threads", partial(run, command), by_c, repeats=2)
        assert Path(ours).read_bytes() == Path(theirs).read_bytes(), name
        return row

    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("f32.gguf", "ours.gguf", "theirs.gguf")]
        convert(smollm2(), files[0], schemes={"*": "f32"})
        for name in RECIPES:
            yield measured("SmolLM2", *files, name)
        large = str(Path(folder, "large.gguf"))
        deeper(files[0], large, 4)
        for name in ("Q8_0", "Q4_K_M"):
            yield measured("1.9 GB", large, *files[1:], name)
