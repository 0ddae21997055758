"""Measures on this machine what drivetrain-horovod claims, against its bounds."""

from __future__ import annotations

import sys

import state
import steps

from drivetrain_testing import Bar, run_bars

BARS = (
    Bar(
        name="step-beside-ddp",
        bound="<= 1.15 x a step of DDP, the same losses",
        measure=steps.measure,
    ),
    Bar(
        name="state-save",
        bound="<= 1.5 x a copy of its tensors",
        measure=state.measure,
    ),
)

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
