"""Models that the selector is measured on, each with batches of a training step.

What they stand for matters more than their size: a step takes some milliseconds on two
cores. `MODELS` maps a name to a function that returns (model, batches); a batch is the
tuple of positional arguments.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from drivetrain_core.examples.byte_lm import ByteLM, ByteLMConfig

# The small models of the tests serve here as well, in other sizes.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

QUICK = ("mlp", "byte_lm", "branching")


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        stages = ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2))
        self.blocks = nn.ModuleList(Residual(*sizes) for sizes in stages)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_twice(3, 16), _twice(16, 32), _twice(32, 64)])
        self.up = nn.ModuleList([_twice(96, 32), _twice(48, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat((x, kept.pop()), 1))
        return self.head(x)


def _twice(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.GroupNorm(4, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.SiLU(),
    )


class GraphLayer(nn.Module):
    """A message passing layer: gathers, transforms, and scatters by an index."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes, edges):
        source, target = edges
        messages = F.relu(self.message(torch.cat((nodes[source], nodes[target]), -1)))
        gathered = torch.zeros_like(nodes).index_add(0, target, messages)
        return self.update(gathered, nodes)


class GraphNet(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(3))
        self.head = nn.Linear(width, 4)

    def forward(self, nodes, edges):
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return self.head(nodes)


class Branching(nn.Module):
    """Stops early, by what it has computed: data-dependent control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
            for _ in range(6)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
            if x.square().mean().item() > 1.3:
                return x.tanh()
        return x


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 96)
        self.lstm = nn.LSTM(96, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 128)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0])


class Recurrent(nn.Module):
    """A cell in a Python loop, which a compiler unrolls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(64, 128)
        self.head = nn.Linear(128, 8)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 128)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state)


class DiffusionBlock(nn.Module):
    """A block of a diffusion transformer: norms that a condition scales and shifts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, elementwise_affine=False) for _ in range(2)
        )
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x, condition):
        parts = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        inner = self.norms[0](x) * (1 + parts[0]) + parts[1]
        q, k, v = self.qkv(inner).unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        x = x + parts[2] * self.out(mixed.transpose(1, 2).flatten(2))
        inner = self.norms[1](x) * (1 + parts[3]) + parts[4]
        return x + parts[5] * self.mlp(inner)


class DiffusionTransformer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.time = nn.Linear(64, width)
        self.blocks = nn.ModuleList(DiffusionBlock(width, 4) for _ in range(4))
        self.head = nn.Linear(width, 16)

    def forward(self, x, time):
        rates = torch.exp(-torch.arange(32, device=x.device) * math.log(1e4) / 32)
        angles = time[:, None] * rates
        condition = self.time(torch.cat((angles.sin(), angles.cos()), -1))
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(x)


def _mlp():
    layers = (nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256))
    return nn.Sequential(*layers), [(torch.randn(64, 256),)]


def _tiny():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()), [(torch.randn(4, 8),)]


def _elementwise():
    class Elementwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(512))

        def forward(self, x):
            for _ in range(6):
                x = torch.sin(x * self.weight) + 0.5 * torch.cos(x) * torch.sigmoid(x)
            return x

    return Elementwise(), [(torch.randn(256, 512),)]


def _byte_lm(lengths=(128,)):
    config = ByteLMConfig(num_layers=3, dim=128, num_heads=4, ffn_dim=352)
    batches = [(torch.randint(0, 256, (4, length)),) for length in lengths]
    return ByteLM(config), batches


def _encoder():
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3)
    return model, [(torch.randn(4, 96, 128),)]


def _graph():
    edges = torch.randint(0, 512, (2, 2048))
    return GraphNet(), [(torch.randn(512, 64), edges)]


def _family(name, **sizes):
    import transformers
    from families import FAMILIES

    kind, small, batch, _ = FAMILIES[name]
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**{**small, **sizes})).train()
    if batch == "images":
        labels = torch.randint(0, 5, (4,))
        return model, [{"pixel_values": torch.randn(4, 3, 64, 64), "labels": labels}]
    ids = torch.randint(3, 96, (4, 96))
    return model, [{"input_ids": ids, "labels": ids.clone()}]


_WIDE = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3}

MODELS = {
    "mlp": _mlp,
    "tiny": _tiny,
    "elementwise": _elementwise,
    "byte_lm": _byte_lm,
    "byte_lm-lengths": lambda: _byte_lm((64, 96, 128, 80, 112)),
    "encoder-dropout": _encoder,
    "resnet": lambda: (ResNet(), [(torch.randn(8, 3, 32, 32),)]),
    "unet": lambda: (UNet(), [(torch.randn(2, 3, 64, 64),)]),
    "graph": _graph,
    "branching": lambda: (Branching(), [(torch.randn(64, 128),)]),
    "lstm": lambda: (Lstm(), [(torch.randint(0, 128, (8, 48)),)]),
    "gru-loop": lambda: (Recurrent(), [(torch.randn(16, 16, 64),)]),
    "diffusion": lambda: (
        DiffusionTransformer(),
        [(torch.randn(4, 4, 16, 16), torch.rand(4))],
    ),
    "llama": lambda: _family("llama", **_WIDE),
    "gemma2": lambda: _family("gemma2", head_dim=32, **_WIDE),
    "gpt2": lambda: _family("gpt2", n_embd=128, n_layer=3, n_positions=128),
    "bert": lambda: _family("bert", **_WIDE),
    "vit": lambda: _family("vit", image_size=64, patch_size=8, **_WIDE),
    "t5": lambda: _family("t5", d_model=128, d_ff=256, d_kv=32),
}


def make(name: str):
    """Returns a model and its batches, the same at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]()
