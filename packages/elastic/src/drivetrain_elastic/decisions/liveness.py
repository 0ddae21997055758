"""Whether a worker that is silent still lives, and whether one that speaks is stuck.

A worker's messages come from a thread of its own. They stop when the process is stopped
or frozen, and also while some C code keeps the interpreter to itself, or the machine has
no processor for it: those are running, or have run, and are given more time.
"""

from __future__ import annotations

from typing import NamedTuple

from drivetrain_health.failures import Health


class Signs(NamedTuple):
    """What is seen of a worker from outside, and what it says of itself.

    Attributes:
        silent_s: How long ago it was heard of.
        idle_s: For how long it has not used the processor.
        state: Of the process, as the system names it: R, S, D, T.
        phase: What it says it does.
        phase_s: Since when.
    """

    silent_s: float
    idle_s: float
    state: str
    phase: str
    phase_s: float


def judge_liveness(
    signs: Signs, *, frozen_s: float, stuck_s: float
) -> tuple[Health, str]:
    """Decides how a worker is, and why.

    Args:
        signs: Of the worker.
        frozen_s: How long a process that does nothing may be silent.
        stuck_s: How long a step may compute, or a busy process be silent.

    Example:
        >>> limits = {"frozen_s": 2.0, "stuck_s": 300.0}
        >>> judge_liveness(Signs(2.1, 1.9, "T", "computing", 1.0), **limits)
        (<Health.FROZEN: 'frozen'>, 'stopped, and silent for 2.1 s')
        >>> judge_liveness(Signs(2.1, 0.1, "R", "computing", 1.0), **limits)
        (<Health.WELL: 'well'>, 'in state R')
    """
    does = "stopped" if signs.state in {"T", "t"} else f"in state {signs.state}"
    # It may have used the processor for a while after it was last heard of.
    is_idle = signs.idle_s >= frozen_s / 2 and signs.state != "R"
    if signs.silent_s >= frozen_s and is_idle:
        return Health.FROZEN, f"{does}, and silent for {signs.silent_s:.1f} s"
    if signs.silent_s >= stuck_s:
        return Health.STUCK, f"busy, and silent for {signs.silent_s:.1f} s"
    if signs.phase == "computing" and signs.phase_s >= stuck_s:
        return Health.STUCK, f"computing the same step for {signs.phase_s:.1f} s"
    return Health.WELL, does
