"""MiniGPT: a byte-level GPT that is small enough to train in a minute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class MiniGPTConfig:
    """The sizes of a `MiniGPT`.

    Attributes:
        width: width of the residual stream; a multiple of 64, the group size of Q4_per_group_64.
        heads: number of attention heads; a divisor of `width`.
        layers: number of blocks.
        context: maximum number of tokens.
        tied: whether the head shares its weights with the token embedding.
    """

    width: int = 128
    heads: int = 4
    layers: int = 4
    context: int = 128
    tied: bool = False


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, 4 * config.width)
        self.fc2 = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """Attention and MLP, each with a layer norm before it and a residual connection around it."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same."""
        x = x + self.attn(self.ln1(x))
        out: Tensor = x + self.mlp(self.ln2(x))
        return out


class MiniGPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(VOCABULARY, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        if config.tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, tokens] -> logits [batch, tokens, 256]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.ln_f(x))
        return logits
