"""Training of MiniGPT on the bundled text, and its loss on held-back text."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from glft_schema.lab.minigpt import VOCABULARY, MiniGPT
from glft_schema.tensor_types.workers import in_one_thread

HELD_BACK = 10  # the last tenth of the text is held back from training
BATCH = 8
LEARNING_RATE = 3e-3


def corpus() -> tuple[Tensor, Tensor]:
    """Returns the bundled text as int64 bytes: the training part and the held-back part."""
    text = files("glft_schema.lab").joinpath("corpus.txt").read_bytes()
    tokens = torch.tensor(list(text))
    split = len(tokens) * (HELD_BACK - 1) // HELD_BACK
    return tokens[:split], tokens[split:]


def train(model: MiniGPT, steps: int, seed: int, watch: Callable[[int, float], None] | None = None) -> float:
    """Trains `model` in place with AdamW, a one-cycle learning rate and clipped gradients.

    Each step runs in one thread: more threads gain a third on idle cores, but make a step take up
    to ten times as long on busy ones.

    Args:
        model: the model.
        steps: number of batches.
        seed: random seed for the choice of batches.
        watch: called with step and loss after each batch.

    Returns:
        The loss of the last batch, in nats per byte.
    """
    tokens, _ = corpus()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    span = torch.arange(model.config.context + 1)
    last = 0.0

    @torch.enable_grad()
    def learn() -> None:
        nonlocal last
        starts = torch.randint(len(tokens) - len(span) + 1, (BATCH, 1), generator=generator)
        batch = tokens[starts + span]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        last = loss.item()

    model.train()
    for step in range(steps):
        in_one_thread(learn)
        if watch:
            watch(step, last)
    model.eval()
    return last


@torch.no_grad()
def held_back_loss(model: MiniGPT) -> float:
    """Returns the loss of `model` on the held-back text, in nats per byte."""
    _, tokens = corpus()
    context = model.config.context
    windows = tokens[: (len(tokens) - 1) // context * context + 1]
    inputs, targets = windows[:-1].view(-1, context), windows[1:].view(-1, context)
    return F.cross_entropy(model(inputs).reshape(-1, VOCABULARY), targets.reshape(-1)).item()
