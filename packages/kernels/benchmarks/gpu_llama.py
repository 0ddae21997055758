"""A training step of a Llama-like model of 1.2 billion parameters, by several sets of ops."""

import functools
import statistics
import time

import torch
from gpu_ops import eager_rope, liger_form, our_rope
from torch import nn
from torch.nn import functional

import drivetrain_kernels as dk
from drivetrain_testing import Row

HIDDEN, LAYERS, INNER, CLASSES = 2048, 16, 8192, 128256
HEADS, KEY_HEADS, HEAD_DIM = 16, 4, 128
BATCH, LENGTH = 2, 4096
# Dense bfloat16 operations a second, by the start of the GPU's name.
PEAK_FLOPS = {"NVIDIA H100": 989e12, "NVIDIA H200": 989e12, "NVIDIA A100": 312e12}


def eager_attention(q, k, v):
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    out = functional.scaled_dot_product_attention(
        *heads_first, is_causal=True, enable_gqa=True
    )
    return out.transpose(1, 2)


def eager_loss(x, w, target):
    return functional.cross_entropy((x @ w.t()).float(), target)


EAGER = {
    "norm": lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6),
    "rope": eager_rope,
    "gate": lambda g, u: functional.silu(g) * u,
    "attention": eager_attention,
    "loss": eager_loss,
}
OURS = {
    "norm": lambda x, w: dk.rms_norm(x, w),
    "rope": our_rope,
    "gate": lambda g, u: dk.swiglu(g, u),
    "attention": lambda q, k, v: dk.attention(q, k, v),
    "loss": lambda x, w, target: dk.linear_cross_entropy(x, w, target),
}


def liger_ops():
    """Liger's ops, or None if it is not installed."""
    try:
        from liger_kernel.transformers import functional as liger
    except ImportError:
        return None

    def rope(q, k):
        from gpu_ops import CASES

        found = liger_form(CASES["rope"])(q, k)
        return tuple(t.transpose(1, 2) for t in found)

    return EAGER | {
        "norm": lambda x, w: liger.liger_rms_norm(x, w, 1e-6, in_place=False),
        "rope": rope,
        "gate": liger.liger_swiglu,
        "loss": liger.liger_fused_linear_cross_entropy,
    }


class Block(nn.Module):
    """Attention and gated MLP, each behind a norm."""

    def __init__(self, ops):
        super().__init__()
        self.ops = ops
        self.norms = nn.ParameterList(torch.ones(HIDDEN) for _ in range(2))
        width = (HEADS + 2 * KEY_HEADS) * HEAD_DIM
        self.qkv = nn.Linear(HIDDEN, width, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        ops = self.ops
        qkv = self.qkv(ops["norm"](x, self.norms[0])).unflatten(-1, (-1, HEAD_DIM))
        q, k, v = qkv.split([HEADS, KEY_HEADS, KEY_HEADS], 2)
        q, k = ops["rope"](q, k)
        x = x + self.out(ops["attention"](q, k, v).flatten(2))
        gate, up = self.up(ops["norm"](x, self.norms[1])).chunk(2, -1)
        return x + self.down(ops["gate"](gate, up))


class Llama(nn.Module):
    """The model with its loss."""

    def __init__(self, ops, layers=LAYERS, classes=CLASSES):
        super().__init__()
        self.ops = ops
        self.embedding = nn.Embedding(classes, HIDDEN)
        self.blocks = nn.ModuleList(Block(ops) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, tokens, target):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.ops["norm"](x, self.norm).flatten(0, 1)
        return self.ops["loss"](x, self.embedding.weight, target.flatten())


def flops(model, tokens, length):
    """Of a step: 6 for each parameter and token, and what causal attention multiplies."""
    parameters = sum(p.numel() for p in model.parameters())
    scores = 6 * LAYERS * HEADS * HEAD_DIM * length
    return tokens * (6 * parameters + scores)


def measure_step(ops, compiles, rounds):
    """Seconds of a step, the most bytes it took, and its operations."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(ops).to(torch.bfloat16)
        tokens = torch.randint(CLASSES, (BATCH, LENGTH + 1))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if compiles:
        model.compile()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for round_ in range(rounds + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if round_ >= 3:
            times.append(time.perf_counter() - start)
    size = torch.cuda.max_memory_allocated()
    return statistics.median(times), size, flops(model, BATCH * LENGTH, LENGTH)


@functools.cache
def steps(rounds):
    """What each set of ops takes."""
    ways = {
        "ours": (OURS, False),
        "ours, compiled": (OURS, True),
        "eager": (EAGER, False),
        "compile": (EAGER, True),
        "liger": (liger_ops(), False),
    }
    found = {}
    for name, (ops, compiles) in ways.items():
        if ops is not None:
            found[name] = measure_step(ops, compiles, rounds)
            torch.cuda.empty_cache()
    return found


def _best_of_ours(found):
    return min(seconds for name, (seconds, *_) in found.items() if "ours" in name)


def tokens_per_second(quick):
    """Tokens a second against the best other set of ops, with what memory each takes."""
    found = steps(3 if quick else 10)
    ours = _best_of_ours(found)
    others = {n: f[0] for n, f in found.items() if "ours" not in n}
    best = min(others, key=others.get)
    ratio = others[best] / ours
    details = {
        name: {"tokens_per_second": BATCH * LENGTH / seconds, "peak_bytes": size}
        for name, (seconds, size, _) in found.items()
    }
    return Row(
        figure=f"{BATCH * LENGTH / ours:.0f} tokens/s, {ratio:.2f} x {best}",
        holds=ratio >= 1.0,
        proven_on=torch.cuda.get_device_name(),
        details=details,
    )


def mfu(quick):
    """The share of the GPU's dense bfloat16 operations that a step makes use of."""
    found = steps(3 if quick else 10)
    name = torch.cuda.get_device_name()
    peaks = [peak for start, peak in PEAK_FLOPS.items() if name.startswith(start)]
    if not peaks:
        return Row(
            figure=f"the peak of {name} is not known", holds=None, proven_on=name
        )
    operations = next(iter(found.values()))[2]
    share = operations / _best_of_ours(found) / peaks[0]
    return Row(figure=f"{share:.0%}", holds=share >= 0.5, proven_on=name)
