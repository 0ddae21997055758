"""What the check of a named plan costs, beside three steps of the program and 2 s.

The program is a byte-level language model of 3 million parameters, and each figure the
difference of medians of alternated calls with and without the check. The compiler's cache
is warm where a plan compiles.
"""

from __future__ import annotations

import statistics
import time

import torch

from drivetrain_core import accelerate
from drivetrain_core.examples import byte_lm
from drivetrain_testing import Row

STEPS, MORE_S, PAIRS = 3, 2.0, 3
PLANS = (
    [("micro_batch", 4)],
    [("precision", "bf16_autocast")],
    ["activation_checkpoint"],
    [("compile", "block")],
)


def byte_model():
    torch.manual_seed(0)
    config = byte_lm.ByteLMConfig(num_layers=4, dim=256, num_heads=4, ffn_dim=704)
    text, _ = byte_lm.read_standard_library(500_000)
    return byte_lm.ByteLM(config), byte_lm.loader(text, batch_size=16, length=128)


def timed(strategy, *, check):
    """Returns the seconds of the call, and of the first step under the plan."""
    model, data = byte_model()
    started = time.perf_counter()
    accelerated = accelerate(
        model,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        data,
        byte_lm.loss,
        strategy=strategy,
        check=check,
        cache=False,
    )
    called = time.perf_counter()
    batch = next(iter(accelerated.loader))
    accelerated.train_step(batch)
    first = time.perf_counter()
    accelerated.close()
    return called - started, first - called


def step_seconds():
    """Returns the median seconds of a step of the program as written."""
    model, data = byte_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch, times = next(iter(data)), []
    for _ in range(4):
        started = time.perf_counter()
        byte_lm.loss(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(quick):
    """The worst ratio over the plans.

    The call and the first step are taken together: what is compiled for the check is not
    compiled again for the step.
    """
    costs = {}
    for strategy in PLANS[:2] if quick else PLANS:
        timed(strategy, check=False)
        with_check, without, steps = [], [], []
        for _ in range(1 if quick else PAIRS):
            with_check.append(sum(timed(strategy, check=True)))
            without.append(sum(timed(strategy, check=False)))
            steps.append(step_seconds())
        cost = statistics.median(with_check) - statistics.median(without)
        costs[str(strategy[0])] = cost, STEPS * statistics.median(steps) + MORE_S
    texts = [
        f"{name}: {cost:.2f} of {most:.2f} s" for name, (cost, most) in costs.items()
    ]
    return Row(
        figure="; ".join(texts),
        holds=all(cost <= most for cost, most in costs.values()),
        details={"seconds_and_bounds": costs},
    )
