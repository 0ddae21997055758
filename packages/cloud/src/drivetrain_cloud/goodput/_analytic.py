"""What can be said of goodput without a simulation, by formulas; the tests compare both.

Symbols: m the mean time between failures, R what recovery takes, t the seconds of training
between two checkpoints, c how long all wait for one.
"""

from __future__ import annotations

import math

from drivetrain_cloud.goodput._checks import check_number
from drivetrain_core import ProgramError


def restart_goodput(
    *, mtbf_s: float, recovery_s: float, interval_s: float, stall_s: float = 0.0
) -> float:
    """Returns the share of the time that counts, when each failure restarts all.

    Failures come at random, also while all restart, which then begins again. One interval
    takes m e^(R/m) (e^((t+c)/m) - 1) in the mean (Daly, "A higher order estimate of the
    optimum checkpoint interval for restart dumps", 2006, equation 20), and t of it counts.

    Args:
        mtbf_s: The mean time between failures.
        recovery_s: From a failure to the next step, however far that is behind.
        interval_s: Seconds of training between two checkpoints.
        stall_s: How long all wait for one.

    Raises:
        ProgramError: A value is out of range.

    Example:
        >>> share = restart_goodput(mtbf_s=6650.0, recovery_s=300.0, interval_s=3600.0)
        >>> round(share, 3)
        0.72
    """
    _check(mtbf_s=mtbf_s, recovery_s=recovery_s, interval_s=interval_s, stall_s=stall_s)
    if math.isinf(mtbf_s):
        return interval_s / (interval_s + stall_s)
    try:
        wall_s = (
            mtbf_s
            * math.exp(recovery_s / mtbf_s)
            * math.expm1((interval_s + stall_s) / mtbf_s)
        )
    except OverflowError:
        return 0.0
    return interval_s / wall_s


def survivor_goodput(
    *,
    mtbf_s: float,
    recovery_s: float,
    step_s: float,
    interval_s: float = math.inf,
    stall_s: float = 0.0,
) -> float:
    """Returns the share of the time that counts, when survivors keep what they have.

    A failure costs its recovery and half a step; checkpoints cost their stalls only.

    Args:
        mtbf_s: The mean time between failures.
        recovery_s: From a failure to the next step.
        step_s: How long a step takes.
        interval_s: Seconds of training between two checkpoints.
        stall_s: How long all wait for one.

    Raises:
        ProgramError: A value is out of range.

    Example:
        >>> round(survivor_goodput(mtbf_s=14_600.0, recovery_s=2.0, step_s=10.0), 5)
        0.99952
    """
    _check(mtbf_s=mtbf_s, recovery_s=recovery_s, interval_s=interval_s, stall_s=stall_s)
    check_number("step_s", step_s)
    up_share = math.exp(-recovery_s / mtbf_s)
    lost_share = step_s / 2 / mtbf_s
    return max(0.0, up_share / (1 + stall_s / interval_s) - lost_share)


def young_interval_s(*, stall_s: float, mtbf_s: float) -> float:
    """Returns the best time between checkpoints, to first order: sqrt(2 c m).

    Young, "A first order approximation to the optimum checkpoint interval", 1974.

    Args:
        stall_s: How long all wait for one.
        mtbf_s: The mean time between failures.

    Raises:
        ProgramError: A value is out of range.

    Example:
        >>> young_interval_s(stall_s=10.0, mtbf_s=8862.0).__round__()
        421
    """
    check_number("stall_s", stall_s)
    _check(mtbf_s=mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_interval_s(*, stall_s: float, mtbf_s: float) -> float:
    """Returns the best time between checkpoints, to a higher order.

    sqrt(2 c m) (1 + sqrt(c / 2m) / 3 + c / 18m) - c where c < 2m, and m otherwise (Daly,
    2006, equation 37).

    Args:
        stall_s: How long all wait for one.
        mtbf_s: The mean time between failures.

    Raises:
        ProgramError: A value is out of range.

    Example:
        >>> daly_interval_s(stall_s=10.0, mtbf_s=8862.0).__round__()
        414
    """
    check_number("stall_s", stall_s)
    _check(mtbf_s=mtbf_s)
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    return (
        math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9)
        - stall_s
    )


def _check(**values: float) -> None:
    for name, value in values.items():
        check_number(name, value)
        if value == 0 and name in {"mtbf_s", "interval_s"}:
            message = f"{name} must be more than 0, got 0"
            raise ProgramError(message)
