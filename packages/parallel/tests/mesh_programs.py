"""A small transformer and a small mixture of experts, for tests of meshes."""

import torch
from torch import nn
from torch.nn import functional as f

WIDTH, HEADS, VOCAB, LENGTH, BATCH = 32, 4, 40, 12, 8


class Experts(nn.Module):
    """Four experts, one matrix each."""

    def __init__(self, number=4):
        super().__init__()
        self.num_experts = number
        self.up = nn.Parameter(torch.randn(number, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, tokens, index, weights):
        out = torch.zeros_like(tokens)
        for expert in range(self.num_experts):
            row, column = torch.where(index == expert)
            found = f.gelu(tokens[row] @ self.up[expert]) * weights[row, column, None]
            out = out.index_add(0, row, found)
        return out


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = Experts()

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, index = self.router(tokens).softmax(-1).topk(2, -1)
        return self.experts(tokens, index, weights).view_as(x)


class Block(nn.Module):
    def __init__(self, mixes):
        super().__init__()
        self.norm_one, self.norm_two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = Mixture() if mixes else None
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm_one(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm_two(x)
        x = x + self.down(f.gelu(self.up(y)))
        return x if self.mlp is None else x + self.mlp(y)


class Model(nn.Module):
    def __init__(self, mixes=False, blocks=4, tied=True):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        # Of one shape: with one sample, both get one and the same gradient.
        self.shift = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.tilt = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block(mixes) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        x = x + (self.shift + self.tilt)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(output, batch):
    return f.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def sgd(parameters):
    # Adam would make steps of what is rounding in a gradient that is zero.
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def batches(number=3, size=BATCH):
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randint(VOCAB, (size, LENGTH), generator=generator) for _ in "ab")
        for _ in range(number)
    ]


def train(strategy, mixes=False, data=None, **options):
    """Trains this module's model, as `train_model` does."""
    return train_model(lambda: Model(mixes), strategy, data, **options)


def train_model(build, strategy, data=None, **options):
    """Returns the mean losses over the ranks, and the norm before a clip."""
    from drivetrain_core import accelerate

    torch.set_num_threads(1)
    accelerated = accelerate(
        build,
        sgd,
        batches() if data is None else data,
        loss,
        strategy=strategy,
        progress=False,
        **options,
    )
    losses = []
    for batch in accelerated.loader:
        value = accelerated.train_step.accumulate(batch).clone()
        norm = float(accelerated.clip_grad_norm_(0.5))
        accelerated.train_step.optimizer_step()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        losses.append(float(value))
    accelerated.close()
    return losses, norm
