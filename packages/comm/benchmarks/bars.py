"""Measures on this machine what drivetrain-comm claims, against stated bounds.

What has links needs root: hosts are network namespaces, as `integration/rig` makes them.
"""

from __future__ import annotations

import sys

import ddp
import device_buckets
import gpu
import links
import nccl_tuner
import schedules
import simulated_ddp
import startup
from buckets import buckets
from calls import calls
from kills import kills
from losses import losses
from programs import random_programs
from torch_tests import torch_tests
from tuner import ablation, tuner

from drivetrain_testing import Bar, run_bars

TABLE = [
    (
        "ddp-scenarios",
        ">= 1.5 x stock, best >= 2 x, none < 1.15 x, >= 1.15 x by hand",
        ddp.scenarios,
    ),
    ("ddp-overhead", "<= 1.01 x stock where nothing can be gained", ddp.overhead),
    ("tuner", "<= 1.02 x the best of all, < 5% of 50 steps", tuner),
    ("kills", "all are told, within the time-out", kills),
    ("buckets", ">= 1.15 x, torch's backend in both", buckets),
    ("ablation", ">= 0.98 x as fast as layer by layer", ablation),
    *links.BARS,
    *startup.TABLE,
    ("losses", "fp64 <= 1e-9 relative in 200 steps", losses),
    (
        "random-programs",
        "1,000 programs: equal to stock, no hang, memory bounded",
        random_programs,
    ),
    (
        "torch-tests",
        ">= 200 rows, none wrong, none hangs, <= 10 % refused",
        torch_tests,
    ),
    ("engine-call", "<= 1.5 x Gloo's, until its end", calls),
    *schedules.BARS,
    *nccl_tuner.BARS,
    (
        "device-buckets",
        "<= 1.05 x a sweep's best, <= 1.01 x stock, in 30 steps",
        device_buckets.device_buckets,
    ),
    ("device-ddp", ">= 1.15 x stock, equal to the bit", simulated_ddp.simulated_ddp),
    ("gpu-overhead", "<= 1% of a step", gpu.overhead),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
