"""A small decoder with a fused matrix, a tied head and buffers, trained over meshes."""

from __future__ import annotations

import resource
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as f

from drivetrain_core import accelerate
from drivetrain_core.services import DcpCheckpointer

WIDTH, HEADS, VOCAB, LENGTH, BATCH = 32, 4, 48, 6, 4


class Block(nn.Module):
    """Attention whose query, key and value are one matrix."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        # Without a bias: the gradient of a key's is zero but for rounding, of which
        # Adam makes whole steps.
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, hidden):
        parts = self.qkv(self.norm(hidden)).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for x in parts)
        found = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.out(found.transpose(1, 2).flatten(2))
        return hidden + self.down(f.gelu(self.up(hidden)))


class Decoder(nn.Module):
    """Blocks between an embedding and a head that is the same matrix."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        places = torch.linspace(0, 1, LENGTH * WIDTH).view(LENGTH, WIDTH)
        self.register_buffer("places", places)
        self.register_buffer("scale", torch.full((), 0.5), persistent=False)

    def forward(self, ids):
        hidden = self.embed(ids) * self.scale + self.places[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def adam(parameters):
    """Two groups, as training scripts have them."""
    decayed, others = [], []
    for parameter in parameters:
        (decayed if parameter.dim() > 1 else others).append(parameter)
    return torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.01
    )


def batches():
    generator = torch.Generator().manual_seed(5)
    return [
        tuple(torch.randint(VOCAB, (2, BATCH, LENGTH), generator=generator))
        for _ in range(3)
    ]


def loss(output, batch):
    return f.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def program(mesh, *, seed=0, weights="build"):
    """Returns a program over a mesh, or alone where it is empty."""
    torch.set_num_threads(1)
    return accelerate(
        Decoder,
        adam,
        batches(),
        loss,
        strategy=[("mesh", mesh)] if mesh else [],
        seed=seed,
        weights=weights,
        progress=False,
    )


def train(accelerated, steps=3):
    """Returns the mean losses over all ranks."""
    losses = []
    for batch, _ in zip(accelerated.loader, range(steps), strict=False):
        mean = accelerated.train_step(batch).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(mean)
            mean /= torch.distributed.get_world_size()
        losses.append(float(mean))
    return losses


def train_and_save(mesh, folder):
    accelerated = program(mesh)
    losses = train(accelerated, 2)
    DcpCheckpointer(folder).save(2, {**accelerated.state(), "position": 7})
    return losses


def restore_and_save(mesh, folder, other):
    accelerated = program(mesh, seed=1)
    state = {**accelerated.state(), "position": 0}
    step = DcpCheckpointer(folder).restore(state)
    DcpCheckpointer(other).save(step, state)
    return state["position"], train(accelerated, 1)


def size(mesh):
    number = 1
    for ranks in mesh.values():
        number *= ranks
    return number


def alone(folder=None):
    """Returns model and optimizer as a plain script has them, restored or trained."""
    torch.manual_seed(0 if folder is None else 9)
    model = Decoder()
    optimizer = adam(model.parameters())
    if folder is not None:
        DcpCheckpointer(folder).restore({"model": model, "optimizer": optimizer})
        return model, optimizer
    for batch in batches()[:2]:
        loss(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


class Wide(nn.Module):
    """A model of 256 MiB in blocks of 32 MiB."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
            for _ in range(8)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def build_wide(weights, limit_bytes):
    """Builds it over all ranks with so much more address space; returns the growth."""
    torch.set_num_threads(1)
    data = [(torch.ones(4, 1024), torch.ones(4, 1024))]

    def build(model, weights):
        return accelerate(
            model,
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            data,
            lambda output, batch: f.mse_loss(output, batch[1]),
            strategy=[("mesh", {"shard": 4})],
            weights=weights,
            progress=False,
        )

    build(nn.Linear(1024, 1024), "build")  # what only the first program loads
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + limit_bytes, resource.RLIM_INFINITY))
    try:
        accelerated = build(Wide, weights)
    finally:
        resource.setrlimit(
            resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
    named = accelerated.module.named_parameters()
    assert all(bool(p.to_local().isfinite().all()) for _, p in named)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
