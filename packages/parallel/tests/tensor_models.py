"""Small models that each show one trap of tensor parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

WIDTH, HEADS, FFN, VOCAB, LENGTH = 32, 4, 48, 64, 6
HEAD = WIDTH // HEADS


def attend(q, k, v, bias=None):
    """Attention over [batch, length, heads, width of a head]."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    return f.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


class Plain(nn.Module):
    """Reads the number of heads off the features it gets."""

    kv_heads = HEADS

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, self.kv_heads * HEAD)
        self.v = nn.Linear(WIDTH, self.kv_heads * HEAD)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **kwargs):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        return self.out(attend(q, k, v).flatten(2))


class OneKeyHead(Plain):
    """All heads share one key and one value."""

    kv_heads = 1


class Normed(Plain):
    """Has a norm that all heads share, whose gradient each rank has a part of."""

    def __init__(self):
        super().__init__()
        self.q_norm = nn.LayerNorm(HEAD)

    def forward(self, x, **kwargs):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        return self.out(attend(self.q_norm(q), k, v).flatten(2))


class Scaled(Plain):
    """Has one number for each head, which is split with them."""

    def __init__(self):
        super().__init__()
        self.temperature = PerHead()

    def forward(self, x, **kwargs):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        return self.out(attend(self.temperature(q), k, v).flatten(2))


class PerHead(nn.Module):
    """Multiplies each head by a number of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, HEADS))

    def forward(self, x):
        return x * self.scale[:, None]


class Counting(Plain):
    """Counts heads: those that are missing would be taken from the sequence."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS

    def forward(self, x, **kwargs):
        size = x.shape[0]
        q, k, v = (
            m(x).reshape(size, -1, self.num_heads, HEAD)
            for m in (self.q, self.k, self.v)
        )
        return self.out(attend(q, k, v).reshape(*x.shape[:2], -1))


class Thirds(nn.Module):
    """Has query, key and value one after the other in one matrix."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **kwargs):
        q, k, v = (t.unflatten(-1, (-1, HEAD)) for t in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v).flatten(2))


class Grouped(nn.Module):
    """Has a larger query and a smaller key and value in one matrix."""

    def __init__(self):
        super().__init__()
        self.split_sizes = None
        self.query_size = WIDTH
        self.qkv = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **kwargs):
        qkv = self.qkv(x)
        rest = (qkv.shape[-1] - self.query_size) // 2
        parts = qkv.split([self.query_size, rest, rest], -1)
        q, k, v = (t.unflatten(-1, (-1, HEAD)) for t in parts)
        return self.out(attend(q, k, v).flatten(2))


class Interleaved(nn.Module):
    """Has query, key and value of a head next to each other."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **kwargs):
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3 * HEAD)).chunk(3, -1)
        return self.out(attend(q, k, v).flatten(2))


class Biased(Plain):
    """Gets a bias for each head from outside, as ALiBi is."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS

    def forward(self, x, *, bias):
        size = x.shape[0]
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        bias = bias.reshape(size, self.num_heads, 1, -1)
        return self.out(attend(q, k, v, bias).flatten(2))


class Relative(Plain):
    """Has a table of biases, with a column for each head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(LENGTH, HEADS)

    def forward(self, x, **kwargs):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        places = torch.arange(x.shape[1], device=x.device)
        bias = self.table((places[:, None] - places[None]).abs()).permute(2, 0, 1)
        return self.out(attend(q, k, v, bias[None]).flatten(2))


class FixedWidth(Plain):
    """Puts the heads back to a width that it takes from its input."""

    def forward(self, x, **kwargs):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        return self.out(attend(q, k, v).reshape(x.shape))


class Reweighted(nn.Linear):
    """Makes its weight anew at each call, so there is no matrix to be split."""

    def __init__(self, *args):
        super().__init__(*args)
        self.direction = nn.Parameter(self.weight.detach().clone())
        del self._parameters["weight"]

    def forward(self, x):
        self.weight = f.normalize(self.direction, dim=1)
        return super().forward(x)


class Block(nn.Module):
    def __init__(self, attention=Plain, linear=nn.Linear, ffn=FFN):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = attention()
        self.norm2 = nn.LayerNorm(WIDTH) if ffn else None
        self.up = linear(WIDTH, ffn) if ffn else None
        self.down = linear(ffn, WIDTH) if ffn else None

    def forward(self, x, bias):
        x = x + self.attention(self.norm1(x), bias=bias)
        if self.up is None:
            return x
        mixed = self.down(f.gelu(self.up(self.norm2(x))))
        # In place on the output of a matrix, which must not be a view.
        mixed += x
        return mixed


class Toy(nn.Module):
    """Embedding, blocks and a head; `passes` runs the same blocks more than once."""

    def __init__(self, attention=Plain, *, tied=False, blocks=2, passes=1, **options):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(Block(attention, **options) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.passes = passes

    def forward(self, ids):
        x = self.embedding(ids)
        slopes = torch.linspace(0.1, 1.0, HEADS)[:, None] * torch.arange(ids.shape[1])
        bias = slopes.repeat(ids.shape[0], 1).unsqueeze(1)
        for _ in range(self.passes):
            for block in self.blocks:
                x = block(x, bias)
        return self.head(self.norm(x))


def make(*args, **options):
    torch.manual_seed(0)
    return Toy(*args, **options)


def make_batch(size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (size, LENGTH), generator=generator)


def loss_of(model, ids):
    logits = model(ids)
    return f.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
