"""What a step under a given plan costs beyond the same code written by hand.

Two models of one initialisation are trained side by side, one by `train_step`, one by
the loop that a person would write for the same plan. The model is tiny, so that the
host's own work is nearly all that is measured. Steps alternate in pairs, and the
median of the paired differences, as a share of the step by hand, gets a 95% interval by
bootstrap.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

import torch
from torch import nn

from drivetrain_core import accelerate
from drivetrain_testing import Row

BOUND = 0.15


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def loss(output, batch):
    return nn.functional.mse_loss(output, batch[1])


def data():
    return [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(4)]


def plain():
    net = model()
    optimizer = adamw(net.parameters())

    def step(batch):
        value = loss(net(batch[0]), batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


def autocast_fused():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step(batch):
        with torch.autocast("cpu", torch.bfloat16):
            output = net(batch[0])
        value = loss(output.float(), batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


def two_parts():
    net = model()
    optimizer = adamw(net.parameters())

    def step(batch):
        total = None
        for part in zip(*(tensor.split(2) for tensor in batch), strict=True):
            value = loss(net(part[0]), part) * 0.5
            value.backward()
            share = value.detach()
            total = share if total is None else total + share
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


CASES = {
    "baseline": ([], plain),
    "bf16 + fused": (
        [("precision", "bf16_autocast"), "optimizer_impl"],
        autocast_fused,
    ),
    "2 micro-batches": ([("micro_batch", 2)], two_parts),
}


def paired_differences(ours, theirs, batches, pairs):
    """Differences in microseconds, and the time by hand."""

    def timed(step, batch):
        start = time.perf_counter_ns()
        step(batch)
        return (time.perf_counter_ns() - start) / 1e3

    for batch in batches * 25:
        ours(batch)
        theirs(batch)
    differences, by_hand = [], []
    gc.disable()
    try:
        for index in range(pairs):
            batch = batches[index % len(batches)]
            if index % 2:
                mine, other = timed(ours, batch), timed(theirs, batch)
            else:
                other, mine = timed(theirs, batch), timed(ours, batch)
            differences.append(mine - other)
            by_hand.append(other)
    finally:
        gc.enable()
    return differences, statistics.median(by_hand)


def interval(values, resamples=1000):
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


def measure(quick):
    """The worst of three plans, each with its interval."""
    pairs = 1000 if quick else 5000
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = {}
        for name, (strategy, by_hand) in CASES.items():
            batches = data()
            torch.manual_seed(0)
            accelerated = accelerate(model, adamw, batches, loss, strategy=strategy)
            found, whole = paired_differences(
                accelerated.train_step, by_hand(), batches, pairs
            )
            rows[name] = (statistics.median(found), *interval(found), whole)
    finally:
        torch.set_num_threads(threads)
    texts = [
        f"{name}: {middle / whole:.1%} [{low / whole:.1%}, {high / whole:.1%}], "
        f"{middle:.1f} us"
        for name, (middle, low, high, whole) in rows.items()
    ]
    return Row(
        figure="; ".join(texts),
        holds=max(high / whole for _, _, high, whole in rows.values()) <= BOUND,
        details={"pairs": pairs, "median_low_high_by_hand_us": rows},
    )
