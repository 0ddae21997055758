"""A byte-level language model on the source code of Python's standard library.

The model is a small Llama: RMSNorm, rotary positions, grouped-query attention and
SwiGLU, about ten million parameters. The text is what every machine with Python has.
It is the shared workload of examples, tests and benchmarks.

Shapes: B batch, T time, D model width, N query heads, K key-value heads, H head width,
F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

_LN_2 = 0.6931471805599453


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteLMConfig:
    """Sizes of a `ByteLM`; the defaults make about ten million parameters.

    Args:
        num_layers: Transformer blocks.
        dim: Model width.
        num_heads: Query heads.
        num_kv_heads: Key-value heads; divides the query heads.
        ffn_dim: Feed-forward width.
        vocab_size: Byte values.
        rope_base: Base of the rotary frequencies.
    """

    num_layers: int = 6
    dim: int = 384
    num_heads: int = 6
    num_kv_heads: int = 2
    ffn_dim: int = 1088
    vocab_size: int = 256
    rope_base: float = 10_000.0


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: ByteLMConfig) -> None:
        """Creates the four projections."""
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.dim // config.num_heads
        kv_dim = self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.k_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        """Returns the attention's output, B x T x D."""
        batch, time, _ = x_BTD.shape
        q_BNTH = self._heads(self.q_proj(x_BTD), self.num_heads)
        k_BKTH = self._heads(self.k_proj(x_BTD), self.num_kv_heads)
        v_BKTH = self._heads(self.v_proj(x_BTD), self.num_kv_heads)
        q_BNTH = _rotate(q_BNTH, cos_TH, sin_TH)
        k_BKTH = _rotate(k_BKTH, cos_TH, sin_TH)
        out_BNTH = F.scaled_dot_product_attention(
            q_BNTH, k_BKTH, v_BKTH, is_causal=True, enable_gqa=True
        )
        out_BTD = out_BNTH.transpose(1, 2).reshape(batch, time, -1)
        return self.o_proj(out_BTD)  # type: ignore[no-any-return]

    def _heads(self, x_BTD: Tensor, num_heads: int) -> Tensor:
        batch, time, _ = x_BTD.shape
        return x_BTD.view(batch, time, num_heads, self.head_dim).transpose(1, 2)


def _rotate(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    cos_TH, sin_TH = cos_TH.to(x_BNTH.dtype), sin_TH.to(x_BNTH.dtype)
    low, high = x_BNTH.chunk(2, dim=-1)
    return x_BNTH * cos_TH + torch.cat((-high, low), dim=-1) * sin_TH


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: ByteLMConfig) -> None:
        """Creates the three projections."""
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Returns the feed-forward's output, B x T x D."""
        gated_BTF = F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)
        return self.down_proj(gated_BTF)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each behind an RMSNorm and a residual."""

    def __init__(self, config: ByteLMConfig) -> None:
        """Creates both halves."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.ffn = FeedForward(config)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        """Returns the block's output, B x T x D."""
        normed_BTD = self.attention_norm(x_BTD)
        x_BTD = x_BTD + self.attention(normed_BTD, cos_TH, sin_TH)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))  # type: ignore[no-any-return]


class ByteLM(nn.Module):
    """A decoder-only transformer over bytes.

    Args:
        config: The sizes; the defaults when None.

    Example:
        >>> small = ByteLM(ByteLMConfig(num_layers=2, dim=32, num_heads=4, ffn_dim=64))
        >>> small(torch.zeros(1, 8, dtype=torch.long)).shape
        torch.Size([1, 8, 256])
    """

    def __init__(self, config: ByteLMConfig | None = None) -> None:
        """Creates embedding, blocks, norm and head."""
        super().__init__()
        config = config or ByteLMConfig()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Returns the logits of the next byte, B x T x V.

        Args:
            ids_BT: Byte values, int64, B x T.
        """
        cos_TH, sin_TH = self._angles(ids_BT)
        x_BTD = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TH, sin_TH)
        return self.head(self.norm(x_BTD))  # type: ignore[no-any-return]

    def _angles(self, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        head_dim = config.dim // config.num_heads
        places = torch.arange(0, head_dim, 2, device=ids_BT.device) / head_dim
        time = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        angle_TH = torch.outer(time, config.rope_base**-places).repeat(1, 2)
        return angle_TH.cos(), angle_TH.sin()


def loss(logits_BTV: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the mean cross-entropy in nats a byte."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), batch[1].flatten())


def bits_per_byte(nats: float) -> float:
    """Returns a cross-entropy in bits.

    Example:
        >>> round(bits_per_byte(5.545), 2)
        8.0
    """
    return nats / _LN_2


def read_standard_library(max_bytes: int | None = None) -> tuple[bytes, bytes]:
    """Returns the text of the standard library's sources: training and held-out.

    The split is by file, from a hash of the file's name: about one file in twenty is
    held out. Tests and installed packages are left out.

    Args:
        max_bytes: About how much text there is, a twentieth of it held out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if {"site-packages", "test", "tests", "dist-packages"} & set(inside.parts):
            continue
        held_out = zlib.crc32(inside.as_posix().encode()) % 20 == 0
        part, share = parts[held_out], 0.05 if held_out else 0.95
        if max_bytes is None or sum(map(len, part)) < share * max_bytes:
            part.append(path.read_bytes())
    return b"\n".join(parts[False]), b"\n".join(parts[True])


class ByteText(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text: input bytes, and the same shifted by one as the target.

    Args:
        text: The bytes.
        length: Bytes of a window.

    Raises:
        ValueError: The text is shorter than one window and its target.
    """

    def __init__(self, text: bytes, length: int) -> None:
        """Keeps the text as one tensor of bytes."""
        if len(text) <= length:
            message = f"a text of {len(text)} bytes has no window of {length} + 1"
            raise ValueError(message)
        self.length = length
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        """Returns the number of windows that do not overlap."""
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns input and target, int64, each of the window's length."""
        start = index * self.length
        window = self.bytes[start : start + self.length + 1].long()
        return window[:-1], window[1:]


def loader(
    text: bytes, *, batch_size: int, length: int, shuffle: bool = True
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Returns a loader of global batches; a last, smaller batch is left out."""
    return DataLoader(
        ByteText(text, length), batch_size=batch_size, shuffle=shuffle, drop_last=True
    )
