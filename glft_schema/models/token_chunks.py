"""Splits texts into chunks of tokens, as llama-imatrix and llama-perplexity do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from glft_schema.display import Progress
from glft_schema.errors import OptionError
from glft_schema.families.config import refusing
from glft_schema.lazy import torch
from glft_schema.models.from_gguf import load_model
from glft_schema.models.tokenization import load_vocabulary, vocabulary_of
from glft_schema.storage.source import StrPath

CONTEXT = 512  # default number of tokens in a chunk, as in these tools
POSITIONS = ("wpe", "position_embeddings")  # tables of positions, of gpt2 and bert


def cut(
    text: str | Sequence[int], model: StrPath | torch.nn.Module, tokenizer: Any, context: int, chunks: int | None
) -> torch.Tensor:
    """Returns int64[chunks, context], the tokens of a text.

    Tokens after the last whole chunk are left out. If the tokenizer begins texts with a start
    token, it replaces the first token of each chunk.

    Args:
        text: the text, or its tokens, which get no start token.
        model: the model whose tokenizer is used.
        tokenizer: a tokenizer of transformers, or a folder or GGUF file with one; by default the
            model's.
        context: tokens in a chunk.
        chunks: the maximum number of chunks; by default all whole chunks.

    Raises:
        OptionError: if `context` or `chunks` is below 1, there is no tokenizer, or the text is
            too short.
        FormatError: if the tokenizer fails.
        FormatError, OSError: see `load_vocabulary`.
    """
    if context < 1 or (chunks is not None and chunks < 1):
        raise OptionError(f"expected at least 1, found context={context}, chunks={chunks}")
    start = None
    if isinstance(text, str):
        source = model if tokenizer is None else tokenizer
        if isinstance(source, torch.nn.Module):
            raise OptionError("a model in memory has no tokenizer: pass tokenizer=, or tokens instead of a text")
        is_path = tokenizer is None or isinstance(tokenizer, (str, os.PathLike))
        vocabulary = load_vocabulary(source) if is_path else vocabulary_of(source)
        with refusing(source if is_path else type(source).__name__, "a tokenizer for the text"):
            text, start = vocabulary.tokens(text), vocabulary.start
    if len(text) < context:
        expected = f"expected a text of at least one chunk, {context} tokens, found {len(text)}"
        raise OptionError(f"{expected}: use a longer text or a smaller context (--context)")
    count = min(len(text) // context, chunks or len(text))
    tokens = torch.tensor(text[: count * context]).reshape(count, context)
    if start is not None:
        tokens[:, 0] = start
    return tokens


@contextmanager
def running(model: StrPath | torch.nn.Module) -> Iterator[Any]:
    """Yields a model in evaluation mode without gradients, loaded if given as a path."""
    module = model if isinstance(model, torch.nn.Module) else load_model(model)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield module
    finally:
        module.train(was_training)


def vocabulary_size(module: Any) -> int | None:
    """Returns the rows of a model's token embedding, or None if it is unknown."""
    embedding = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
    return getattr(embedding, "num_embeddings", None)


def check_fits(module: Any, tokens: torch.Tensor) -> None:
    """Raises OptionError if a model has too few tokens or positions for int64[chunks, context]."""
    size, context = vocabulary_size(module), tokens.shape[1]
    for token in (int(tokens.min()), int(tokens.max())):
        if size is not None and not 0 <= token < size:
            expected = f"expected tokens of 0 to {size - 1}, the model's vocabulary, found {token}"
            raise OptionError(f"{expected}: the tokenizer has tokens that the model lacks")
    for name, layer in module.named_modules():
        if name.rpartition(".")[2] in POSITIONS and getattr(layer, "num_embeddings", context) < context:
            expected = f"expected a context of at most {layer.num_embeddings} tokens, the model's positions"
            raise OptionError(f"{expected}, found {context}; --context sets it")


def each(tokens: torch.Tensor, progress: Progress | None) -> Iterator[torch.Tensor]:
    """Yields the chunks, and reports each when it is done."""
    for i, chunk in enumerate(tokens):
        yield chunk
        if progress:
            progress(f"chunk {i + 1}", (i + 1) / len(tokens))


def run(module: Any, tokens: torch.Tensor) -> Any:
    """Returns the model's output for one chunk, int64[tokens]."""
    device = next(module.parameters()).device
    return module(tokens.unsqueeze(0).to(device))
