"""Which model families tensor parallelism splits, and how much of their blocks.

Each family is planned for two and for four ranks; what a plan computes is compared with
one process on the whole model, all ranks simulated: loss and every gradient. Where a
model has a plan of its own, it says how much of that is right, and is used.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import torch
from model_families import FAMILIES, loss_of

from drivetrain_core import PlanError
from drivetrain_parallel.tensor import (
    Style,
    plan_tensor_parallel,
    verify_tensor_plan,
)
from drivetrain_testing import Row

NUM_WANTED = 13


def cell(family, degree):
    """Returns whether a family is split exactly, its coverage, and a line on it."""
    torch.manual_seed(0)
    model, batch, loss = family.build(), family.batch(5), partial(loss_of, family)
    start = time.perf_counter()
    try:
        plan = plan_tensor_parallel(model, batch, loss, degree)
    except PlanError as error:
        return False, 0.0, f"refused: {error}"
    took_s = time.perf_counter() - start
    verdict = verify_tensor_plan(model, batch, loss, plan)
    joined = sum(m.style is Style.COLWISE_GATHERED for m in plan.modules.values())
    least = min(plan.coverage.values())
    unused = sum(len(one.names) for one in plan.dropped if one.is_declared)
    says = "exact" if verdict.is_exact else f"WRONG: {verdict.because}"
    line = (
        f"{says}, {least:.0%} of each block or more, worst gradient "
        f"{verdict.gradient_error:.0e}, {joined} matrices joined, "
        f"{len(plan.declared)} kinds of modules as declared, {unused} otherwise, "
        f"{took_s:.1f} s"
    )
    return verdict.is_exact, least, line


def cells(names):
    for name in names:
        for degree in (2, 4):
            yield name, degree, *cell(FAMILIES[name], degree)


def measure(quick):
    """Counts the families, mixtures of experts left out, that two and four ranks run."""
    names = [n for n, family in FAMILIES.items() if family.kind != "mixture"]
    found = list(cells(names[:3] if quick else names))
    good = [all(c[2] for c in found if c[0] == name) for name in {c[0] for c in found}]
    wanted = len(good) if quick else NUM_WANTED
    return Row(
        figure=f"{sum(good)} of {len(good)} families",
        holds=sum(good) >= wanted,
        details={f"{name} tp{degree}": line for name, degree, _, _, line in found},
    )


if __name__ == "__main__":
    for name, degree, _, _, line in cells(sys.argv[1:] or FAMILIES):
        print(f"{name:10} tp{degree}  {line}", flush=True)
