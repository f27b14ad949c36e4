"""Quantizing a whole model, each time in a fresh process: SmolLM2 in F32 to ten file types."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from glft_schema import convert
from glft_schema.quantizer.recipes import recipe_named
from tests.bench.files import CACHE, smollm2
from tests.bench.measure import Row, compared
from tests.oracles import llama_quantize

RECIPES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K", "IQ4_XS", "IQ3_S")
GLFT = "from glft_schema.cli import main; main()"


def rows() -> Iterator[Row]:
    package = llama_quantize.package(CACHE / f"llama-quantize-{llama_quantize.VERSION}")
    oracle, threads = [sys.executable, llama_quantize.__file__, str(package)], torch.get_num_threads()
    run = partial(subprocess.run, capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        source, ours, theirs = (str(Path(folder, name)) for name in ("f32.gguf", "ours.gguf", "theirs.gguf"))
        convert(smollm2(), source, schemes={"*": "f32"})
        for name in RECIPES:
            job = json.dumps([{"source": source, "out": theirs, "ftype": recipe_named(name).code, "nthread": threads}])
            by_us = partial(run, [sys.executable, "-c", GLFT, "quantize", source, ours, name])
            by_c = {"llama_model_quantize": partial(run, oracle, input=job.encode())}
            yield from compared(f"glft quantize SmolLM2 {name}, {threads} threads", by_us, by_c, repeats=2)
            assert Path(ours).read_bytes() == Path(theirs).read_bytes(), name
