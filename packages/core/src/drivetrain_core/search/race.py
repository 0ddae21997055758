"""Measures a trial rung by rung, as long as it is in the race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from drivetrain_core.search.anchor import corrected
from drivetrain_core.search.final import merge
from drivetrain_core.search.objective import score_of
from drivetrain_core.search.rungs import RUNGS, next_rung

if TYPE_CHECKING:
    from drivetrain_core._measurement import Measurement
    from drivetrain_core.search.anchor import Anchor
    from drivetrain_core.search.objective import Objective
    from drivetrain_core.search.rungs import Rung

__all__ = ["Measurable", "quiet_score", "race"]


class Measurable(Protocol):
    """What runs steps on demand, as a trial's `Session` does."""

    def measure(self, min_steps: int, min_seconds: float) -> Measurement:
        """Runs steps and returns their measurement."""
        ...


def race(
    session: Measurable,
    objective: Objective,
    leader: float | None,
    anchor: Anchor | None = None,
) -> tuple[Measurement, int]:
    """Returns a plan's measurement, and the last rung that it ran.

    Args:
        session: The plan, built and warm.
        objective: What is maximised.
        leader: The score of the best plan so far; None for the first.
        anchor: The baseline beside it, by which its times are corrected.

    Raises:
        Failure: The trial hung, crashed, ran out of memory, or raised.
        ProgramError: The objective returned no positive number.
    """
    parts: list[Measurement] = []
    rung: int | None = 0
    last = 0
    while rung is not None:
        last = rung
        parts += _bouts(session, RUNGS[rung], anchor)
        whole = merge(parts)
        rung = next_rung(
            rung,
            best=score_of(objective, whole, min(whole.step_times_s)),
            usual=quiet_score(objective, whole),
            leader=leader,
            spread=whole.spread,
        )
    return whole, last


def _bouts(session: Measurable, rung: Rung, anchor: Anchor | None) -> list[Measurement]:
    """Returns a rung's bouts, each corrected by the baseline before and after it.

    By the faster of the two: what disturbed one of them need not have been there for the
    other, nor for the plan in between.
    """

    def speed() -> float:
        return anchor.speed_now(rung) if anchor is not None else 1.0

    found, before = [], speed()
    for _ in range(rung.bouts):
        part = session.measure(rung.steps, rung.seconds)
        after = speed()
        found.append(corrected(part, max(before, after)))
        before = after
    return found


def quiet_score(objective: Objective, measurement: Measurement) -> float:
    """Returns the score that plans are ranked by: that of a quiet step."""
    return score_of(objective, measurement, measurement.quiet_step_time_s)
