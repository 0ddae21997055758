"""Whether a training gets on, by the steps that its ranks have told of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from drivetrain_core import ProgramError


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressConfig:
    """When a training counts as hanging.

    Args:
        factor: No step was made for so many times as long as one usually takes.
        floor_s: And for so long at least.
        outside_s: And for so long while a rank is between two steps, where its script may
            evaluate.

    Raises:
        ProgramError: A value is out of range.
    """

    factor: float = 10.0
    floor_s: float = 5.0
    outside_s: float = 300.0

    def __post_init__(self) -> None:
        """Checks the values."""
        if not (self.factor > 1 and self.floor_s > 0 and self.outside_s > 0):
            message = (
                "factor must be more than 1, floor_s and outside_s more than 0, got "
                f"{self.factor}, {self.floor_s} and {self.outside_s}"
            )
            raise ProgramError(message)


class ProgressVerdict(NamedTuple):
    """What `judge_progress` decided.

    Attributes:
        is_hanging: Whether somebody should look at it.
        reason: Why.
        wait_s: After how many seconds to ask again.
    """

    is_hanging: bool
    reason: str
    wait_s: float


def judge_progress(
    now_s: float,
    last_step_s: float,
    usual_s: float,
    config: ProgressConfig,
    *,
    is_outside: bool = False,
) -> ProgressVerdict:
    """Decides whether a training hangs.

    Args:
        now_s: The time.
        last_step_s: When a rank of the world last told of a new step.
        usual_s: How long a step usually takes; 0 while none was made, when nothing is known.
        config: The limits.
        is_outside: Whether a rank is between two steps.

    Example:
        >>> judge_progress(107.0, 100.0, 0.5, ProgressConfig()).reason
        'no step for 7.0 s, where one takes 0.50 s'
        >>> judge_progress(102.0, 100.0, 0.5, ProgressConfig())
        ProgressVerdict(is_hanging=False, reason='', wait_s=3.0)
    """
    if usual_s <= 0:
        return ProgressVerdict(False, "", config.floor_s)
    floor_s = config.outside_s if is_outside else config.floor_s
    limit_s = max(floor_s, config.factor * usual_s)
    still_s = now_s - last_step_s
    if still_s < limit_s:
        return ProgressVerdict(False, "", limit_s - still_s)
    reason = f"no step for {still_s:.1f} s, where one takes {usual_s:.2f} s"
    return ProgressVerdict(True, reason, config.floor_s)
