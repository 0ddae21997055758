"""Measures a trial turn by turn, as long as it is in the race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from drivetrain_search.final import merge
from drivetrain_search.reference_trial import corrected
from drivetrain_search.score import score_of
from drivetrain_search.stopping import Verdict, half_width, step_noise, turn_of, verdict

if TYPE_CHECKING:
    from drivetrain_core import Measurement
    from drivetrain_core.objective import Objective
    from drivetrain_search.reference_trial import ReferenceTrial
    from drivetrain_search.stopping import Turn


class Measurable(Protocol):
    """What runs steps on demand, as a trial's `Session` does."""

    def measure(self, min_steps: int, min_seconds: float) -> Measurement:
        """Runs steps and returns their measurement."""
        ...


def race(
    session: Measurable,
    objective: Objective,
    leader: Measurement | None,
    reference: ReferenceTrial | None = None,
    *,
    step_s: float,
    limit_s: float,
) -> tuple[Measurement, bool]:
    """Returns a plan's measurement, and whether it was outrun.

    Args:
        session: The plan, built and warm.
        objective: What is maximised.
        leader: The best plan so far; None for the first.
        reference: The baseline beside it, by which its times are corrected.
        step_s: About what a step takes.
        limit_s: What its turns may take; a first turn is always had.

    Raises:
        Failure: The trial hung, crashed, ran out of memory, or raised.
        ProgramError: The objective returned no positive number.
    """
    turn = turn_of(step_s)
    reached = None if leader is None else surely_reached(objective, leader)
    parts: list[Measurement] = []
    spent_s, before = 0.0, _speed(reference, turn)
    while True:
        part = session.measure(turn.steps, turn.seconds)
        after = _speed(reference, turn)
        # By the faster of the two: what disturbed one of them need not have been there
        # for the other, nor for the plan in between.
        parts.append(corrected(part, max(before, after)))
        before = after
        spent_s += sum(part.step_times_s)
        whole = merge(parts)
        noise = step_noise(whole.step_times_s)
        found = verdict(
            surely_within(objective, whole),
            reached,
            width=half_width(noise, len(whole.step_times_s), of_plan=False),
            turns=len(parts),
            seconds=spent_s,
            limit_s=limit_s,
        )
        if found is not Verdict.GOES_ON:
            return whole, found is Verdict.OUTRUN


def _speed(reference: ReferenceTrial | None, turn: Turn) -> float:
    return 1.0 if reference is None else reference.speed_now(turn)


def quiet_score(objective: Objective, measurement: Measurement) -> float:
    """Returns the score that plans are ranked by: that of a quiet step."""
    return score_of(objective, measurement, measurement.quiet_step_time_s)


def surely_within(objective: Objective, measurement: Measurement) -> float:
    """Returns the score at the fast end of a plan's interval."""
    return score_of(objective, measurement, step_bounds_s(measurement)[0])


def surely_reached(objective: Objective, measurement: Measurement) -> float:
    """Returns the score at the slow end of a plan's interval."""
    return score_of(objective, measurement, step_bounds_s(measurement)[1])


def step_bounds_s(measurement: Measurement) -> tuple[float, float]:
    """Returns the fast and the slow end of the interval of a plan's quiet step.

    Example:
        >>> from drivetrain_core import Measurement
        >>> steady = Measurement(step_times_s=(1.0,) * 50, samples_per_step=1)
        >>> low, high = step_bounds_s(steady)
        >>> 0.9 < low < 1.0 < high < 1.1
        True
    """
    times_s, quiet_s = measurement.step_times_s, measurement.quiet_step_time_s
    width = half_width(step_noise(times_s), len(times_s))
    return quiet_s / (1.0 + width), quiet_s * (1.0 + width)
