"""Measures on this machine what drivetrain-cloud claims, against stated bounds.

The rows of the operator need the cluster's double: `pip install -e integration/kubernetes`.
"""

from __future__ import annotations

import sys

from goodput import predicted, published, speed
from operator_crashes import crashes, refusals, schedules, spot_crashes
from operator_scale import reaction, scale
from operator_train import image_model, language_model
from spot_cost import saving as spot_saving
from spot_cost import speed as spot_speed
from spot_run import spot_notices, spot_run, spot_wait

from drivetrain_testing import Bar, run_bars, slow

TABLE = [
    ("goodput-published", "within 3 points of each source", published),
    ("goodput-12288", ">= 98% with our measured recovery", predicted),
    ("goodput-speed", "ten times the GPUs: <= 20 x the time", speed),
    (
        "spot-trace",
        "none lost, same loss, >= 95% of node time in steps",
        slow(spot_run),
    ),
    ("spot-wait-full", "none lost or made again, same loss", slow(spot_wait)),
    ("spot-notices", "100 of 100 durable before 30 s and 120 s", slow(spot_notices)),
    ("spot-speed", "30 days of trace for 100 jobs <= 60 s", spot_speed),
    ("spot-saving", "fault tolerance saves more than none", slow(spot_saving)),
    ("operator-crashes", "killed at each call: all ends well", slow(crashes)),
    ("operator-spot-crashes", "the same in a reclaim", slow(spot_crashes)),
    ("operator-refusals", "each call refused or cut: all ends well", slow(refusals)),
    ("operator-schedules", "1,000: all end as their policies say", slow(schedules)),
    ("operator-scale", "1,000 jobs of 8 pods <= 60 s", slow(scale)),
    ("operator-reaction", "p99 <= 1 s from a loss to the next pod", reaction),
    ("operator-byte-lm", "<= 1e-9 from the undisturbed loss", slow(language_model)),
    ("operator-resnet", "<= 1e-9, the same accuracy", slow(image_model)),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
