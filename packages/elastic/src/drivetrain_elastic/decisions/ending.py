"""When a job has ended, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_elastic.decisions.membership import Status

if TYPE_CHECKING:
    from drivetrain_elastic.decisions.membership import MembershipState, Verdict


class Ending(NamedTuple):
    """How a job has ended.

    Attributes:
        exit_code: 0 if all went well.
        reason: For people.
    """

    exit_code: int
    reason: str


@dataclass(kw_only=True, slots=True)
class Results:
    """What has become of workers that have ended.

    Attributes:
        finished: Those that made all steps.
        failed: How some of them ended nevertheless, and others since then.
        given_up: Why places on nodes stay empty for good.
        short_since_s: Since when there are too few workers; None while there are enough.
    """

    finished: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    short_since_s: float | None = None


def judge_ending(
    now_s: float,
    state: MembershipState,
    results: Results,
    verdict: Verdict,
    *,
    patience_s: float,
) -> Ending | float | None:
    """Decides whether the job has ended.

    Args:
        now_s: The time, on the master's monotonic clock.
        state: Of the workers.
        results: Of those that have ended.
        verdict: What `next_world` says.
        patience_s: How long a job with too few workers waits for more.

    Returns:
        The ending; or after how many seconds to ask again; None when something has
        changed.

    Example:
        >>> from drivetrain_elastic.decisions.membership import *
        >>> state = MembershipState(world=World(1, ("a/0", "a/1"), "ready"))
        >>> for slot in range(2):
        ...     state.add(Worker(f"a/{slot}", "a", slot, Status.MEMBER))
        >>> results = Results(finished={"a/0"})
        >>> verdict = Verdict(None, "nothing has changed")
        >>> judge_ending(5.0, state, results, verdict, patience_s=60)
        >>> results.finished.add("a/1")
        >>> judge_ending(5.0, state, results, verdict, patience_s=60)
        Ending(exit_code=0, reason='all workers have finished')
    """
    if results.finished:
        members = state.world.members if state.world is not None else ()
        left = [m for m in members if m in state.workers and m not in results.finished]
        # A world that broke then was formed too late: those who are new in it have
        # nothing left to do.
        if any(state.workers[m].has_state or state.broken_s is None for m in left):
            return None
        if results.failed:
            return Ending(1, f"training has finished, but {results.failed[0]}")
        return Ending(0, "all workers have finished")
    if not verdict.is_short:
        return None
    coming = {Status.STARTING, Status.LEAVING}
    if results.given_up and not any(w.status in coming for w in state.workers.values()):
        return Ending(1, f"{verdict.reason}: {results.given_up[-1]}")
    since_s = now_s if results.short_since_s is None else results.short_since_s
    left_s = since_s + patience_s - now_s
    if left_s > 0:
        return left_s
    return Ending(1, f"{verdict.reason}, and no more came within {patience_s:g} s")
