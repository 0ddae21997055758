"""Models of the usual shapes, in plain torch, for recorded training steps.

Shapes carry suffixes: B batch, T tokens, D model, H heads, K dims of a head, F feed-forward,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    import random


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel:
    """A decoder and how it is trained.

    Args:
        dim: D.
        depth: Blocks.
        heads: H.
        vocab: V.
        batch: Sequences of a step.
        length: Tokens of a sequence; the most, if lengths vary.
        varies: Whether each step has a length of its own.
        lora_rank: Of the adapters that alone are trained; 0 trains everything.
        recompute: Whether blocks keep their inputs alone.
        shards: Over how many ranks weights, gradients and states are divided.
        math_attention: Whether attention keeps its whole matrix.
        experts: How many feed-forward parts a block has; a token goes to two of them.
        steps: How many are recorded.
    """

    dim: int
    depth: int
    heads: int
    vocab: int = 50_304
    batch: int = 4
    length: int = 2048
    varies: bool = False
    lora_rank: int = 0
    recompute: bool = False
    shards: int = 1
    math_attention: bool = False
    experts: int = 0
    steps: int = 6


class Linear(nn.Linear):
    """A product with, if asked, an adapter of low rank beside a frozen weight."""

    def __init__(self, inner: int, outer: int, rank: int) -> None:
        """Makes both."""
        super().__init__(inner, outer, bias=False, dtype=torch.bfloat16)
        self.rank = rank
        if rank:
            self.weight.requires_grad_(False)
            self.down = nn.Parameter(torch.empty(rank, inner, dtype=torch.bfloat16))
            self.up = nn.Parameter(torch.empty(outer, rank, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the product."""
        y = super().forward(x)
        return (
            y + functional.linear(functional.linear(x, self.down), self.up)
            if self.rank
            else y
        )


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, model: LanguageModel) -> None:
        """Makes the products."""
        super().__init__()
        self.heads, self.math = model.heads, model.math_attention
        self.qkv = Linear(model.dim, 3 * model.dim, model.lora_rank)
        self.out = Linear(model.dim, model.dim, model.lora_rank)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Returns what each token saw."""
        qkv = self.qkv(x_BTD).unflatten(-1, (3, self.heads, -1))
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        if self.math:
            scores = q_BHTK @ k_BHTK.mT
            y_BHTK = scores.float().softmax(-1).to(x_BTD.dtype) @ v_BHTK
        else:
            y_BHTK = functional.scaled_dot_product_attention(
                q_BHTK, k_BHTK, v_BHTK, is_causal=True
            )
        y: torch.Tensor = self.out(y_BHTK.transpose(1, 2).flatten(-2))
        return y


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, model: LanguageModel) -> None:
        """Makes the products."""
        super().__init__()
        hidden = model.dim * 8 // 3 // 128 * 128
        self.gate_up = Linear(model.dim, 2 * hidden, model.lora_rank)
        self.down = Linear(hidden, model.dim, model.lora_rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns D numbers a token."""
        gate, up = self.gate_up(x).chunk(2, -1)
        y: torch.Tensor = self.down(functional.silu(gate) * up)
        return y


class Experts(nn.Module):
    """Feed-forward parts, each for the tokens that happen to go there."""

    def __init__(self, model: LanguageModel, draw: random.Random) -> None:
        """Makes them."""
        super().__init__()
        self.draw = draw
        self.parts = nn.ModuleList(FeedForward(model) for _ in range(model.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns D numbers a token; which go where is drawn anew each time."""
        tokens = x.flatten(0, 1)
        count = 2 * len(tokens)
        weights = [self.draw.gammavariate(2.0, 1.0) for _ in self.parts]
        sizes = [int(count * weight / sum(weights)) for weight in weights]
        sizes[0] += count - sum(sizes)
        chosen = torch.cat([tokens, tokens])
        parts = zip(self.parts, torch.split(chosen, sizes), strict=True)
        y = torch.cat([part(piece.clone()) for part, piece in parts])
        return y.view(2, *x.shape).sum(0)


class Block(nn.Module):
    """Attention and feed-forward, each with a norm before and a residual around."""

    def __init__(self, model: LanguageModel, draw: random.Random) -> None:
        """Makes the parts."""
        super().__init__()
        self.norms = nn.ModuleList(
            nn.RMSNorm(model.dim, dtype=torch.bfloat16) for _ in range(2)
        )
        self.attention = Attention(model)
        self.rest: nn.Module = (
            Experts(model, draw) if model.experts else FeedForward(model)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the stream behind the block."""
        x = x + self.attention(self.norms[0](x))
        y: torch.Tensor = x + self.rest(self.norms[1](x))
        return y


class Decoder(nn.Module):
    """Embedding, blocks, and the loss of the next token."""

    def __init__(self, model: LanguageModel, draw: random.Random) -> None:
        """Makes the parts."""
        super().__init__()
        self.recompute = model.recompute
        self.embedding = nn.Embedding(model.vocab, model.dim, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Block(model, draw) for _ in range(model.depth))
        self.norm = nn.RMSNorm(model.dim, dtype=torch.bfloat16)
        self.head = Linear(model.dim, model.vocab, 0)
        if model.lora_rank:
            for module in (self.embedding, self.norm, self.head):
                module.requires_grad_(False)
            for norm in self.blocks.modules():
                if isinstance(norm, nn.RMSNorm):
                    norm.requires_grad_(False)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        x = self.embedding(ids_BT)
        if not x.requires_grad:
            x.requires_grad_(True)
        for block in self.blocks:
            x = (
                checkpoint(block, x, use_reentrant=False)
                if self.recompute
                else block(x)
            )
        logits_BTV = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT.flatten())


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        """Makes the convolutions."""
        super().__init__()
        outer = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.skip: nn.Module = nn.Identity()
        if inner != outer or stride > 1:
            self.skip = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of both ways."""
        return functional.relu(self.body(x) + self.skip(x))


class ResNet50(nn.Sequential):
    """Classifies images of 224 by 224 pixels."""

    def __init__(self) -> None:
        """Makes the stages."""
        stages, inner = [], 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for index in range(count):
                stride = 2 if index == 0 and width > 64 else 1
                stages.append(Bottleneck(inner, width, stride))
                inner = 4 * width
        super().__init__(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            *stages,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(inner, 1000),
        )
