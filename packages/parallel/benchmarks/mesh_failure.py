"""How long all ranks take to end when one raises in the middle of a pipeline's step."""

from __future__ import annotations

import statistics
import sys
import time
from datetime import timedelta

import torch
from model_families import FAMILIES

from drivetrain_testing import Row, run_ranks

TIMEOUT_S, WITHIN_S, RANKS = 6.0, 5.0, 4
KINDS = ("1f1b", "gpipe", "interleaved_1f1b")


def fail(kind, failing):
    """Trains until one rank raises; returns what this rank raised, and when."""
    from drivetrain_core import accelerate

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    family = FAMILIES["llama"]
    stages = 2 if kind.startswith("interleaved") else RANKS
    mesh = {"pipeline": stages, "replicate": RANKS // stages}
    accelerated = accelerate(
        family.build,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [family.batch(16, seed=seed) for seed in range(3)],
        strategy=[("mesh", mesh), ("schedule", kind), ("micro_batch", 4)],
        progress=False,
    )
    batches = list(accelerated.loader)
    accelerated.train_step(batches[0])
    if torch.distributed.get_rank() == failing:
        block = accelerated.models()[0].get_submodule("model.layers")

        def broken(*_args, **_kwargs):
            message = "this rank is out of luck"
            raise RuntimeError(message)

        for one in block:
            one.forward = broken
    torch.distributed.barrier()
    begin = time.monotonic()
    try:
        accelerated.train_step(batches[1])
    except Exception as error:  # noqa: BLE001
        seconds = time.monotonic() - begin
        if torch.distributed.get_rank() == failing:
            # It says nothing more, and its connections stay open.
            time.sleep(TIMEOUT_S + WITHIN_S)
        return seconds, str(error).strip()[:300]
    return None, "it went on"


def measure(quick):
    """Takes the rank that ends last, over schedules and failing ranks."""
    cases = (
        [(KINDS[0], 1)] if quick else [(k, r) for k in KINDS for r in (0, RANKS - 1)]
    )
    ends, reasons = [], {}
    for kind, failing in cases:
        found = run_ranks(
            fail, RANKS, kind, failing, timeout_s=120, process_group=False
        )
        reasons[f"{kind}, rank {failing}"] = [reason for _, reason in found]
        ends.append(max((s if s is not None else float("inf")) for s, _ in found))
    return Row(
        figure=f"the last of {RANKS} ranks {max(ends):.1f} s after the first error "
        f"(median {statistics.median(ends):.1f}), time-out {TIMEOUT_S:g} s",
        holds=max(ends) <= TIMEOUT_S + WITHIN_S,
        proven_on="cpu-gloo",
        details=reasons,
    )


if __name__ == "__main__":
    row = measure("--quick" in sys.argv)
    sys.stdout.write(f"{row.figure}\n{row.details}\n")
