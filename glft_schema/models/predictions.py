"""Perplexity of models on a text, and the divergence between two models' predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from glft_schema.display import Progress
from glft_schema.errors import OptionError, safe
from glft_schema.lazy import torch
from glft_schema.models.token_chunks import CONTEXT, check_fits, cut, each, run, running, vocabulary_size
from glft_schema.storage.locations import shown
from glft_schema.storage.source import StrPath

DEFAULT_TEXT = Path(__file__).with_name("default_text.txt")


class Perplexity(NamedTuple):
    """The perplexity of a model on a text.

    Attributes:
        value: the exponential of the mean negative log-likelihood.
        tokens: the number of tokens predicted.
    """

    value: float
    tokens: int


class Predictions(NamedTuple):
    """Differences between the predictions of two models, A and B.

    Attributes:
        perplexity_a: of A.
        perplexity_b: of B.
        mean_divergence: mean Kullback-Leibler divergence of B from A, in nats per token.
        max_divergence: the largest divergence of a token, in nats.
        same_top: the share of tokens for which both models have the same most likely token.
        tokens: the number of tokens predicted.
    """

    perplexity_a: float
    perplexity_b: float
    mean_divergence: float
    max_divergence: float
    same_top: float
    tokens: int


def perplexity(
    model: StrPath | torch.nn.Module,
    text: str | Sequence[int] | None = None,
    *,
    tokenizer: Any = None,
    context: int = CONTEXT,
    chunks: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Measures how well a model predicts a text, as ``llama-perplexity`` does.

    The second half of each chunk is predicted, each token from those before it in the chunk.

    Args:
        model: a GGUF file of a declared family, a Hugging Face folder, or a model in memory.
        text: the text, or its tokens; by default a text of the package.
        tokenizer: a tokenizer of transformers, or a folder or GGUF file with one; by default the
            model's.
        context: tokens in a chunk.
        chunks: the maximum number of chunks; by default all whole chunks.
        progress: called after each chunk with its number and the share that is done, from 0 to 1.

    Raises:
        OptionError: if transformers or the tokenizer is missing, the text is shorter than a chunk,
            or the model does not predict tokens, or has too few tokens or positions.
        FormatError: if the model or the tokenizer cannot be loaded.
        OSError: if a file cannot be read.
    """
    tokens, loss = cut(_text_of(text), model, tokenizer, context, chunks), 0.0
    count = _count_predicted(tokens)
    with running(model) as module:
        check_fits(module, tokens)
        for chunk in each(tokens, progress):
            loss += _loss(_log_probabilities(_logits(module, chunk)), chunk)
    return Perplexity(_exp(loss / count), count)


def compare_predictions(
    one: StrPath | torch.nn.Module,
    other: StrPath | torch.nn.Module,
    *,
    text: str | Sequence[int] | None = None,
    tokenizer: Any = None,
    context: int = CONTEXT,
    chunks: int | None = None,
    progress: Progress | None = None,
) -> Predictions:
    """Compares the predictions of two models: `compare_each` with one other."""
    options: dict[str, Any] = {"text": text, "tokenizer": tokenizer, "context": context, "chunks": chunks, "progress": progress}
    [found] = compare_each(one, [other], **options)
    return found


def compare_each(
    one: StrPath | torch.nn.Module,
    others: Iterable[StrPath | torch.nn.Module],
    *,
    text: str | Sequence[int] | None = None,
    tokenizer: Any = None,
    context: int = CONTEXT,
    chunks: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Predictions]:
    """Compares a model's predictions with those of others, as ``llama-perplexity --kl-divergence``.

    The models run one after another, each in float32 if it is a file. The first one's logits, four
    bytes for each predicted token and entry of the vocabulary, lie in a temporary folder meanwhile.
    Raises as `perplexity`, and OptionError if the vocabularies differ in size.

    Args:
        one: A, the model to compare with. The tokenizer is A's.
        others: each of them is B.
        text: the text, or its tokens; by default a text of the package.
        tokenizer, context, chunks: as for `perplexity`.
        progress: called for each model in turn, as for `perplexity`.

    Yields:
        The differences of each of the others, in order.
    """
    tokens = cut(_text_of(text), one, tokenizer, context, chunks)
    count = _count_predicted(tokens)
    with TemporaryDirectory() as folder:
        paths = [Path(folder, str(i)) for i in range(len(tokens))]
        with running(one) as module:
            size = vocabulary_size(module)
            check_fits(module, tokens)
            for path, chunk in zip(paths, each(tokens, progress), strict=True):
                torch.save(_logits(module, chunk), path)
        for other in others:
            losses, divergences, same = [0.0, 0.0], [], 0
            with running(other) as module:
                _check_same(size, vocabulary_size(module), other)
                check_fits(module, tokens)
                for path, chunk in zip(paths, each(tokens, progress), strict=True):
                    a, b = (_log_probabilities(logits) for logits in (torch.load(path), _logits(module, chunk)))
                    _check_same(a.shape[1], b.shape[1], other)
                    losses = [loss + _loss(logs, chunk) for loss, logs in zip(losses, (a, b), strict=True)]
                    divergences.append((a.exp() * (a - b)).sum(-1))
                    same += int((a.argmax(-1) == b.argmax(-1)).sum())
            joined, values = torch.cat(divergences), [_exp(loss / count) for loss in losses]
            yield Predictions(values[0], values[1], float(joined.mean()), float(joined.max()), same / count, count)


def _text_of(text: str | Sequence[int] | None) -> str | Sequence[int]:
    """Returns a text or tokens, by default a text of the package."""
    return DEFAULT_TEXT.read_text("utf-8") if text is None else text


def _count_predicted(tokens: torch.Tensor) -> int:
    """Returns how many tokens are predicted. Raises OptionError if none are."""
    chunks, context = tokens.shape
    count: int = chunks * (context - 1 - context // 2)
    if not count:
        raise OptionError(f"expected a context of at least 3 tokens, found {context}")
    return count


def _check_same(one: int | None, other: int | None, model: StrPath | torch.nn.Module) -> None:
    """Raises OptionError if the sizes of two vocabularies are known and differ."""
    if one is not None and other is not None and one != other:
        place = "" if isinstance(model, torch.nn.Module) else f" in {safe(shown(model))}"
        raise OptionError(f"expected models of one vocabulary, found {one} and {other} tokens{place}")


def _logits(module: Any, chunk: torch.Tensor) -> torch.Tensor:
    """Returns [tokens, vocabulary] for a chunk's second half, except its first token."""
    output, kind = run(module, chunk), type(module).__name__
    logits = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    is_one_for_each = logits is not None and logits.dim() == 3 and logits.shape[2] > int(chunk.max())
    if logits is None or not is_one_for_each or kind.endswith("MaskedLM"):  # masked models see later tokens
        raise OptionError(f"expected a causal language model, found {kind}, which does not predict the next token")
    return logits[0, len(chunk) // 2 : -1].cpu().clone()


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1)


def _exp(number: float) -> float:
    """Returns the exponential, or infinity if it is too large."""
    return float(torch.tensor(number, dtype=torch.float64).exp())


def _loss(logs: torch.Tensor, chunk: torch.Tensor) -> float:
    """Returns the sum of the negative log-likelihoods of a chunk's predicted tokens."""
    return -float(logs.gather(1, chunk[len(chunk) // 2 + 1 :, None]).sum())
