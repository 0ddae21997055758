"""Trials that are lost to memory, in searches on a machine with too little of it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from unittest import mock

from zoo import adamw

from drivetrain_core import SearchError, accelerate
from drivetrain_core._errors import Code
from drivetrain_core.examples import byte_lm
from drivetrain_testing import Row

BOUND = 0.1
GIB = 1 << 30
SIZES_GIB = (0.9, 1.2, 1.6)
ALLOW = ("precision", "activation_checkpoint", "micro_batch", "optimizer_impl")


def searched(size_gib):
    """One search on a machine with so much memory left."""
    config = byte_lm.ByteLMConfig(
        num_layers=6, dim=256, num_heads=4, num_kv_heads=2, ffn_dim=704
    )
    train, _ = byte_lm.read_standard_library(500_000)
    left = SimpleNamespace(total=int(size_gib * GIB), available=int(size_gib * GIB))
    with mock.patch("psutil.virtual_memory", return_value=left):
        try:
            accelerated = accelerate(
                partial(byte_lm.ByteLM, config),
                adamw,
                byte_lm.loader(train, batch_size=32, length=128),
                byte_lm.loss,
                allow=ALLOW,
                budget={"seconds": 300, "trials": 12},
                progress=False,
                cache=False,
            )
        except SearchError as error:
            return {"trials": 0, "lost": 0, "spared": 0, "error": str(error)}
    records, plan = accelerated.report.trials, accelerated.plan
    lost = [t for t in records if t.code == Code.MEMORY]
    spared = [r for r in plan.rejected if "no trial: it would need" in r.because]
    return {
        "trials": len(records),
        "lost": len(lost),
        # The program as written is tried whatever is foreseen.
        "lost_beside_the_baseline": sum(bool(t.choices) for t in lost),
        "spared": len(spared),
        "plan": str(plan),
    }


def measure(quick):
    """Trials that ran out of memory over all trials."""
    if quick:
        return Row(figure="takes longer than the quick form", holds=None)
    found = {f"{size} GiB": searched(size) for size in SIZES_GIB}
    lost = sum(each["lost"] for each in found.values())
    trials = sum(each["trials"] for each in found.values())
    spared = sum(each["spared"] for each in found.values())
    return Row(
        figure=f"{lost} of {trials} trials ran out of memory and {spared} plans were "
        f"spared one, with {', '.join(found)}",
        holds=lost <= BOUND * trials,
        details=found,
    )
