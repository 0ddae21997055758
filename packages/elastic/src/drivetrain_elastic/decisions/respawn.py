"""What becomes of a place whose worker has died: another one, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each death soon after the one before doubles the wait for the next start.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class Respawn(NamedTuple):
    """What `judge_respawn` decided.

    Attributes:
        wait_s: How long to wait before another worker is started; None for never.
        reason: Why, for people.
    """

    wait_s: float | None
    reason: str


def judge_respawn(
    deaths_s: Sequence[float],
    *,
    max_restarts: int,
    window_s: float,
    quick_s: float,
    is_hopeless: bool = False,
) -> Respawn:
    """Decides about a place after its last worker has died.

    Deaths count against the budget for a time only: a training of months may lose more
    workers than one that cannot get going.

    Args:
        deaths_s: When workers in this place have died, in order; the last one just now.
        max_restarts: How many more workers may be started within the window.
        window_s: How long a death counts.
        quick_s: A worker that lived for less is started again with a pause.
        is_hopeless: Whether it has ended by itself before it was ready, and no worker
            here ever was.

    Example:
        >>> budget = {"max_restarts": 2, "window_s": 100.0, "quick_s": 5.0}
        >>> judge_respawn([7.0], **budget)
        Respawn(wait_s=0.0, reason='restart 1 of 2')
        >>> judge_respawn([7.0, 9.0], **budget)
        Respawn(wait_s=0.5, reason='restart 2 of 2')
        >>> judge_respawn([7.0, 9.0, 50.0], **budget)
        Respawn(wait_s=None, reason='3 deaths within 100 s, 2 restarts allowed')
        >>> judge_respawn([7.0, 9.0, 150.0], **budget)
        Respawn(wait_s=0.0, reason='restart 1 of 2')
    """
    if is_hopeless:
        return Respawn(None, "no worker has ever become ready here")
    now_s = deaths_s[-1]
    recent = [at_s for at_s in deaths_s if at_s > now_s - window_s]
    if len(recent) > max_restarts:
        reason = f"{len(recent)} deaths within {window_s:g} s, {max_restarts} restarts allowed"
        return Respawn(None, reason)
    num_quick = 0
    for before, after in zip(recent[-2::-1], recent[::-1], strict=False):
        if after - before >= quick_s:
            break
        num_quick += 1
    wait_s = _FIRST_WAIT_S * 2 ** (num_quick - 1) if num_quick else 0.0
    reason = f"restart {len(recent)} of {max_restarts}"
    return Respawn(min(wait_s, _LONGEST_WAIT_S), reason)
