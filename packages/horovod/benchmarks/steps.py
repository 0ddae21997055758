"""Steps of `hvd.DistributedOptimizer` beside those of torch's DDP, on two ranks.

Both train the same model on the same batches, in turns of some steps. What Horovod's API
costs is the ratio of the two, and both must end at the same losses.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from drivetrain_testing import Row, run_ranks

RANKS, WIDTH, LAYERS, BATCH = 2, 512, 8, 32
BOUND, NEAR = 1.15, 1e-5


def build():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def batches(number):
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(number)]


def stepper(model, optimizer):
    def step(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def in_turns(turns, steps):
    """Returns seconds a step of each turn, and the losses, by Horovod's API and by DDP."""
    import drivetrain_horovod.on_comm as hvd

    torch.set_num_threads(1)
    hvd.init()
    model, twin = build(), build()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        named_parameters=model.named_parameters(),
    )
    replica = DistributedDataParallel(twin)
    other = torch.optim.SGD(replica.parameters(), lr=0.05)
    ways = {"hvd": stepper(model, optimizer), "ddp": stepper(replica, other)}
    times = {way: [] for way in ways}
    losses = {way: [] for way in ways}
    for turn in range(turns):
        data = batches(steps)
        for way in sorted(ways, reverse=turn % 2 == 1):
            hvd.barrier()
            began = time.perf_counter()
            losses[way] += [ways[way](batch) for batch in data]
            times[way].append((time.perf_counter() - began) / steps)
    hvd.shutdown()
    # What is compiled or connected at first is no step.
    return {way: values[1:] for way, values in times.items()}, losses


def measure(quick):
    """The ratio of the two, the median over turns of the slower rank."""
    turns, steps = (5, 5) if quick else (21, 20)
    found = run_ranks(in_turns, RANKS, turns, steps, timeout_s=300.0)
    ratios = [
        max(times["hvd"][turn] for times, _ in found)
        / max(times["ddp"][turn] for times, _ in found)
        for turn in range(turns - 1)
    ]
    apart = max(
        abs(ours - theirs) / abs(theirs)
        for _, losses in found
        for ours, theirs in zip(losses["hvd"], losses["ddp"], strict=True)
    )
    ratio = statistics.median(ratios)
    quarter = statistics.quantiles(ratios, n=4)
    return Row(
        figure=f"{ratio:.2f} x a step of DDP ({quarter[0]:.2f} to {quarter[2]:.2f}), "
        f"losses {apart:.0e} apart",
        holds=ratio <= BOUND and apart <= NEAR,
        proven_on="cpu-gloo",
        details={"ratios": ratios, "apart": apart},
    )
