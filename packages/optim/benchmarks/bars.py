"""Measures on this machine what drivetrain-optim claims, against stated bounds.

Times compare with torch's own optimizers and, where they are installed, with those of
timm and pytorch_optimizer, in turns within the same run.
"""

from __future__ import annotations

import sys

import accuracy
import gpu
import sharpness
import speed

from drivetrain_optim import AGD, LAMB
from drivetrain_testing import Bar, run_bars

MILLION = 1_000_000
FOREACH = {"foreach": True}
FUSED = {"fused": True}
TABLE = [
    ("agd-exactness-fp64", "<= 1e-12", accuracy.exactness),
    ("paths-fp32", "<= 2 x the loop's error", accuracy.paths),
    ("lamb-timm-preset", "<= 1e-12 from timm's", accuracy.presets),
    ("agd-10m", "<= 1.25 x AdamW(fused)", speed.agd_fused(10 * MILLION)),
    ("agd-100m", "<= 1.25 x AdamW(fused)", speed.agd_fused(100 * MILLION)),
    ("agd-10m-foreach", "<= 1 x AdamW(foreach)", speed.agd_foreach(10 * MILLION)),
    ("agd-100m-foreach", "<= 1 x AdamW(foreach)", speed.agd_foreach(100 * MILLION)),
    ("agd-own-foreach", "<= 1 x AdamW(foreach)", speed.agd_own_foreach),
    ("lamb-10m", "<= 1.6 x AdamW(fused)", speed.lamb_fused(10 * MILLION)),
    ("lamb-100m", "<= 1.6 x AdamW(fused)", speed.lamb_fused(100 * MILLION)),
    ("lamb-timm", ">= 1.5 x faster", speed.lamb_peer("timm")),
    ("lamb-pytorch-optimizer", ">= 1.5 x faster", speed.lamb_peer("pytorch_optimizer")),
    ("temporaries-foreach", "<= 1 parameter set", speed.temporaries(FOREACH, 1.0)),
    ("temporaries-fused", "none", speed.temporaries(FUSED, 0.001)),
    ("host-1000-tensors", "<= 1 x AdamW(fused)", speed.host_time),
    ("wsam-passes", "2 and 2", sharpness.passes),
    ("wsam-buffers", "<= 2 parameter sets", sharpness.buffers),
    ("wsam-two-processes", "<= 1e-6 from one", sharpness.processes),
    ("agd-bandwidth-gpu", ">= 85% of copy", gpu.bandwidth(AGD)),
    ("lamb-bandwidth-gpu", ">= 85% of copy", gpu.bandwidth(LAMB)),
    ("host-1000-tensors-gpu", "<= 1 x AdamW(fused)", gpu.host_time),
]

BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
