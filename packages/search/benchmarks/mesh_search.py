"""Whether the mesh that a search chooses is the fastest of all that there are.

Each mesh is applied and timed, in turns, after the search has chosen one of them.
"""

from __future__ import annotations

import statistics
import sys
import time

import mesh_program
import torch

from drivetrain_testing import Row, run_ranks

BOUND, RANKS, ROUNDS, STEPS = 0.95, 4, 5, 8


def applied(strategy):
    from drivetrain_core import accelerate

    return accelerate(
        mesh_program.build,
        mesh_program.sgd,
        mesh_program.batches(),
        mesh_program.loss,
        strategy=strategy,
        progress=False,
    )


def found():
    """Searches over meshes; returns the choices of the plan."""
    from drivetrain_core import accelerate

    torch.set_num_threads(1)
    accelerated = accelerate(
        mesh_program.build,
        mesh_program.sgd,
        mesh_program.batches(),
        mesh_program.loss,
        allow=["mesh", "ddp", "fsdp"],
        budget={"seconds": 420, "trials": 24, "trial_seconds": 60},
        progress=False,
        cache=False,
    )
    plan = [(choice.name, dict(choice.config)) for choice in accelerated.plan.choices]
    return plan, len(accelerated.report.trials) if accelerated.report else 0


def meshes():
    """Every mesh of tensor, pipeline and data axes, with copies and with shards."""
    strategies = [["ddp"], [("fsdp", 2)], [("fsdp", 3)]]
    for tensor in (1, 2, 4):
        for pipeline in (1, 2, 4):
            model = tensor * pipeline
            if model == 1 or RANKS % model:
                continue
            mesh = ("mesh", {"tensor": tensor, "pipeline": pipeline})
            kinds = ["ddp"] if model == RANKS else ["ddp", ("fsdp", 2), ("fsdp", 3)]
            strategies += [[mesh, kind] for kind in kinds]
    return strategies


def timed(strategies):
    """Returns seconds a step of each strategy: the medians of several rounds."""
    torch.set_num_threads(1)
    programs = [applied(strategy) for strategy in strategies]
    batches = [list(program.loader) for program in programs]
    times = [[] for _ in programs]
    for turn in range(ROUNDS + 1):
        for index, program in enumerate(programs):
            torch.distributed.barrier()
            begin = time.perf_counter()
            for step in range(STEPS):
                program.train_step(batches[index][step % len(batches[index])])
            torch.distributed.barrier()
            if turn:
                times[index].append((time.perf_counter() - begin) / STEPS)
    return [statistics.median(each) for each in times]


def measure(quick):
    """Searches, then measures all; the quick form does neither."""
    if quick:
        return Row(figure="takes some minutes", holds=None)
    plan, trials = run_ranks(found, RANKS, timeout_s=600)[0]
    strategies = [plan, *meshes()]
    seconds = run_ranks(timed, RANKS, strategies, timeout_s=900)[0]
    best = min(seconds)
    names = ["chosen", *(str(s) for s in strategies[1:])]
    ratio = best / seconds[0]
    return Row(
        figure=f"{ratio:.2f} of the best of {len(seconds) - 1} meshes on {RANKS} "
        f"processes, after {trials} dry runs",
        holds=ratio >= BOUND,
        proven_on="cpu-gloo",
        details={"plan": plan, "seconds": dict(zip(names, seconds, strict=True))},
    )


if __name__ == "__main__":
    row = measure(False)
    sys.stdout.write(f"{row.figure}\n{row.details}\n")
