"""`replace` on real architectures, and a language model trained with it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch

from drivetrain_core.examples import byte_lm
from drivetrain_kernels import replace
from drivetrain_testing import Row

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PLAN = dict.fromkeys(
    ("rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy"), "reference"
)
TOLERANCE = 1e-5
SEEDS = (0, 1, 2)


def step(model, batch):
    model.zero_grad()
    torch.manual_seed(0)
    loss = model(**batch).loss
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return float(loss.detach()), grads


def distance(ours, theirs):
    apart = sum(
        float((a - b).double().square().sum())
        for a, b in zip(ours, theirs, strict=True)
    )
    return (apart / sum(float(b.double().square().sum()) for b in theirs)) ** 0.5


def families(quick):
    try:
        from families import FAMILIES, family
    except ModuleNotFoundError:
        return Row(figure="transformers is not installed", holds=None)
    names = list(FAMILIES)[:3] if quick else list(FAMILIES)
    worst, exact, num = 0.0, True, 0
    for name in names:
        model, batch = family(name)
        loss, grads = step(model, batch)
        replacement = replace(model, PLAN)
        num += len(replacement.replaced)
        found, found_grads = step(model, batch)
        worst = max(worst, abs(found - loss) / abs(loss), distance(found_grads, grads))
        replacement.undo()
        again, again_grads = step(model, batch)
        same = all(torch.equal(a, b) for a, b in zip(again_grads, grads, strict=True))
        exact = exact and same and again == loss
    undone = "undone exactly" if exact else "not undone"
    figure = f"{len(names)} families, {num} modules: {worst:.1e} apart, {undone}"
    return Row(figure=figure, holds=worst <= TOLERANCE and exact)


def curve(seed, replaced, num_steps):
    """Returns the mean training loss of the last quarter of a short run, in bits."""
    torch.manual_seed(seed)
    config = byte_lm.ByteLMConfig(num_layers=3, dim=128, num_heads=4, ffn_dim=352)
    model = byte_lm.ByteLM(config)
    if replaced:
        handle = replace(model, PLAN)
        assert len(handle.replaced) == 3 * 3 + 1, str(handle)
    text, _ = byte_lm.read_standard_library(2_000_000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    loader = byte_lm.loader(text, batch_size=8, length=128)
    for _, batch in zip(range(num_steps), loader, strict=False):
        optimizer.zero_grad()
        loss = byte_lm.loss(model(batch[0]), batch)
        loss.backward()
        optimizer.step()
        losses.append(byte_lm.bits_per_byte(float(loss.detach())))
    return statistics.fmean(losses[-max(1, num_steps // 4) :])


def training(quick):
    num_steps = 20 if quick else 300
    plain = [curve(seed, False, num_steps) for seed in SEEDS]
    ours = [curve(seed, True, num_steps) for seed in SEEDS]
    apart = abs(statistics.fmean(ours) - statistics.fmean(plain))
    noise = statistics.stdev(plain)
    figure = (
        f"{statistics.fmean(ours):.4f} bits a byte, unreplaced "
        f"{statistics.fmean(plain):.4f} +- {noise:.4f}"
    )
    return Row(
        figure=figure, holds=apart <= noise, details={"plain": plain, "ours": ours}
    )


TABLE = [
    ("replace-families", "<= 1e-5 apart, exact undo", families),
    ("replace-training", "within the noise of 3 seeds", training),
]

if __name__ == "__main__":
    from drivetrain_testing import Bar, run_bars

    bars = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]
    sys.exit(run_bars(bars, description=__doc__))
