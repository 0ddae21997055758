"""What the runtime costs when nothing happens: a step with it and without it."""

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic.testing import LocalJob
from drivetrain_testing import Row, run_ranks

_STEP_S = 0.05
_NUM_RANKS = 2


def overhead(quick):
    """Takes turns: steps of 50 ms under an agent, and the same ones by hand."""
    num_steps, rounds = (60, 1) if quick else (200, 5)
    plain, elastic = [], []
    for _ in range(rounds):
        plain.append(statistics.median(run_ranks(by_hand, _NUM_RANKS, num_steps)))
        elastic.append(under_an_agent(num_steps))
    cost = statistics.median(elastic) / statistics.median(plain) - 1
    return Row(
        figure=f"{cost:+.2%} of a step of {statistics.median(plain) * 1e3:.1f} ms",
        holds=cost <= 0.005,
        proven_on="cpu-gloo",
        details={"plain": plain, "elastic": elastic},
    )


def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), torch.rand(64, 64)


def usual(times):
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(gaps[10:])


def by_hand(num_steps):
    """The same loop as any script has it."""
    model, optimizer, data = make()
    half = len(data) // _NUM_RANKS
    mine = data[dist.get_rank() * half :][:half]
    times = []
    for _ in range(num_steps):
        time.sleep(_STEP_S)
        optimizer.zero_grad()
        (model(mine).square().mean() / _NUM_RANKS).backward()
        flat = torch.cat([one.grad.flatten() for one in model.parameters()])
        dist.all_reduce(flat)
        parts = flat.split([one.numel() for one in model.parameters()])
        for one, part in zip(model.parameters(), parts, strict=True):
            one.grad.copy_(part.view_as(one))
        optimizer.step()
        times.append(time.perf_counter())
    return usual(times)


def under_an_agent(num_steps):
    options = ["--nproc-per-node", str(_NUM_RANKS), "--standbys", "0"]
    with tempfile.TemporaryDirectory() as folder:
        program = [str(Path(__file__).resolve()), folder]
        with LocalJob(
            folder, options=options, program=program, arguments=[str(num_steps)]
        ) as job:
            job.start_node()
            if set(job.wait().values()) != {0}:
                raise RuntimeError(job.text())
        times = [float(path.read_text()) for path in Path(folder).glob("usual-*")]
    return statistics.median(times)


def worker(folder, num_steps):
    """The loop, as a worker under an agent."""
    model, optimizer, data = make()
    loop = ElasticLoop(
        model,
        optimizer,
        schedule=Schedule(num_samples=len(data), global_batch=len(data)),
        num_steps=num_steps,
    )
    times = []
    for step in loop:
        with step:
            time.sleep(_STEP_S)
            for part in step.parts():
                loss = model(data[part.indices]).square().mean() * part.weight
                loss.backward()
        times.append(time.perf_counter())
    Path(folder, f"usual-{step.rank}").write_text(str(usual(times)))


if __name__ == "__main__":
    worker(sys.argv[1], int(sys.argv[2]))
