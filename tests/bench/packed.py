"""Packed layers beside dense ones and diffusers', and models beside llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import glft_schema as glft
from glft_schema.nn import Linear
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.bench.files import smollm2
from tests.bench.measure import Row, compared, in_turn, seconds_of

TYPES = ("Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS")
SIZE = 4096
GOALS = {1: 5.0, 32: 4.0, 512: 2.0}  # times diffusers' speed, by batch
FLOAT32_GOALS = {1: 0.7, 8: 0.7, 512: 0.0}  # of a dense layer's time, by batch
PROMPT, TOKENS = "The capital of France is", 40


def by_diffusers(packed: torch.Tensor, name: str) -> nn.Module | None:
    """Returns diffusers' layer with the same bytes, or None if it is not installed or lacks the
    type."""
    if not find_spec("diffusers"):
        return None
    import gguf
    from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES, GGUFLinear, GGUFParameter

    type_ = gguf.GGMLQuantizationType[name]
    if type_ not in SUPPORTED_GGUF_QUANT_TYPES:
        return None
    layer = GGUFLinear(SIZE, SIZE, bias=False, compute_dtype=torch.bfloat16)
    layer.weight = GGUFParameter(packed.clone(), requires_grad=False, quant_type=type_)
    return layer


def rows() -> Iterator[Row]:
    yield from in_bfloat16()
    yield from in_float32()
    yield from tokens()


def in_bfloat16() -> Iterator[Row]:
    dense = {dtype: nn.Linear(SIZE, SIZE, bias=False, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)}
    weights = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) / 64
    ratios = []
    for name in TYPES:
        layer, type_ = Linear(SIZE, SIZE, name), GGML_TYPES[name]
        layer.weight.copy_(torch.from_numpy(type_.pack(type_.encode(weights, "w"))))
        theirs = by_diffusers(layer.weight.data, name)
        for batch, goal in GOALS.items():
            x = torch.randn(batch, SIZE).to(torch.bfloat16)
            what = f"forward of packed {name}, 4096 x 4096, batch {batch}, bfloat16"
            peers = {
                "dense bfloat16": partial(dense[torch.bfloat16], x),
                "dense float32": partial(dense[torch.float32], x.float()),
            }
            if theirs is not None:
                peers["diffusers' GGUFLinear"] = partial(theirs, x)
            with torch.no_grad():
                found = list(compared(what, partial(layer, x), peers, {"diffusers' GGUFLinear": 1 / goal}))
            yield from found
            ratios += [found[0].ratio] * (batch == 512)
    mean = sum(ratios) / len(ratios)
    yield Row("forward of packed layers, batch 512, mean of the types", mean, "dense bfloat16", 1.0, "of its time", 1.3)


def in_float32() -> Iterator[Row]:
    """Layers of three sizes, in one thread and in all threads."""
    threads = torch.get_num_threads()
    for size in (576, 2048, 4096):
        layer, dense = Linear(size, size, "q4_0"), nn.Linear(size, size, bias=False)
        layer.set_weights(dense.weight.detach())
        for batch, goal in FLOAT32_GOALS.items():
            x, what = torch.randn(batch, size), f"forward of packed Q4_0, {size} x {size}, batch {batch}, float32"
            repeats = min(max((1 << 28) // (size * size * batch), 5), 200)
            run, peers = partial(layer, x), {"dense float32": partial(dense, x)}
            with torch.no_grad():
                for count in (1, threads):
                    torch.set_num_threads(count)
                    goals = {"dense float32": goal} if goal else {}
                    yield from compared(f"{what}, {count} threads", run, peers, goals, repeats=repeats)
                in_both = {str(count): partial(seconds_in_threads, count, run) for count in (1, threads)}
                times = in_turn(in_both, repeats, lambda timed: float(timed()))  # type: ignore[arg-type]
            yield Row(f"{what}, {threads} threads", times[str(threads)], "1 thread", times["1"], "s", 1.05)


def seconds_in_threads(count: int, run: Callable[[], object]) -> float:
    torch.set_num_threads(count)
    return seconds_of(run)


def tokens() -> Iterator[Row]:
    """Tokens a second of SmolLM2."""
    path, runs = smollm2(), dict[str, Any]()
    for name, packed in (("", True), ("dense float32", False)):
        model, tokenizer = glft.transformers.load(path, packed=packed)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        runs[name] = partial(model.generate, **prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    if find_spec("xllamacpp"):
        runs["llama.cpp"] = by_llama_cpp(path)
    speeds = {name: TOKENS / seconds for name, seconds in in_turn(runs, 3).items()}
    for peer in list(speeds)[1:]:
        goal = {"dense float32": 1.0}.get(peer)
        yield Row("SmolLM2 packed, Q4_1, tokens", speeds[""], peer, speeds[peer], "tokens/s", goal)


def by_llama_cpp(path: Path) -> Any:
    """Returns a call that generates as many tokens by llama.cpp."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path, options.n_gpu_layers, options.n_ctx, options.verbosity = str(path), 0, 256, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = torch.get_num_threads()
    server = xllamacpp.Server(options)
    request = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    return partial(server.handle_completions, request)
