"""Score of a trial: what the objective says of its measurement."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from drivetrain_core import Measurement, Objective


def score_of(objective: Objective, measurement: Measurement, step_s: float) -> float:
    """Returns the objective's value if every step took as long as given.

    Args:
        objective: What the search maximises.
        measurement: What was measured.
        step_s: The time that each step is taken to have.

    Raises:
        ProgramError: The value is no positive number.

    Example:
        >>> from drivetrain_core import Measurement
        >>> from drivetrain_core.objective import throughput
        >>> measured = Measurement(step_times_s=(0.4, 0.5), samples_per_step=8)
        >>> score_of(throughput, measured, 0.25)
        32.0
    """
    steady = dataclasses.replace(measurement, step_times_s=(step_s,))
    try:
        value: Any = objective(steady)
    except Exception as error:
        message = f"objective raised {type(error).__name__}: {error}"
        raise ProgramError(message) from error
    # A number of numpy or torch is one as well.
    plain = value.item() if hasattr(value, "item") else value
    number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if number and math.isfinite(plain) and plain > 0:
        return float(plain)
    message = f"objective must return a positive number, got {value!r}"
    raise ProgramError(message)
