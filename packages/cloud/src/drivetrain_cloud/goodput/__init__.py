"""How much of a training's time counts: simulated, from what fails and what recovery takes.

A job's failures strike at random; what follows is decided by the functions that the master
and its agents use, on a virtual clock. Importing this imports neither torch nor matplotlib.
"""

from __future__ import annotations

from drivetrain_cloud.goodput._analytic import (
    daly_interval_s,
    restart_goodput,
    survivor_goodput,
    young_interval_s,
)
from drivetrain_cloud.goodput._config import GoodputConfig
from drivetrain_cloud.goodput._draw import (
    check_plot_path,
    plot_losses,
    plot_sensitivity,
    plot_sweep,
)
from drivetrain_cloud.goodput._ledger import Loss
from drivetrain_cloud.goodput._modes import (
    LLAMA3_MTBF_GPU_H,
    FailureMode,
    Sign,
    usual_failures,
)
from drivetrain_cloud.goodput._presets import PRESETS, Origin, Preset, Sourced, preset
from drivetrain_cloud.goodput._profile import CheckpointPlan, RecoveryProfile
from drivetrain_cloud.goodput._published import Case, Outcome, published_cases
from drivetrain_cloud.goodput._simulation import Run, simulate
from drivetrain_cloud.goodput._summary import Summary, simulate_many
from drivetrain_cloud.goodput._sweep import (
    Point,
    break_even,
    get_input,
    input_names,
    sensitivity,
    sweep,
    with_input,
)

__all__ = [
    "LLAMA3_MTBF_GPU_H",
    "PRESETS",
    "Case",
    "CheckpointPlan",
    "FailureMode",
    "GoodputConfig",
    "Loss",
    "Origin",
    "Outcome",
    "Point",
    "Preset",
    "RecoveryProfile",
    "Run",
    "Sign",
    "Sourced",
    "Summary",
    "break_even",
    "check_plot_path",
    "daly_interval_s",
    "get_input",
    "input_names",
    "plot_losses",
    "plot_sensitivity",
    "plot_sweep",
    "preset",
    "published_cases",
    "restart_goodput",
    "sensitivity",
    "simulate",
    "simulate_many",
    "survivor_goodput",
    "sweep",
    "usual_failures",
    "with_input",
    "young_interval_s",
]
