"""When a master renews its lease, and when it has lost it.

A lease lasts for a time on the clock of whoever gave it, from the moment when the request
arrived there. The master counts from the moment before it asked, on its own clock, so that
it stops before the lease ends. It compares no times of two clocks. A clock that runs wrong,
or a master that was paused between its last look at the clock and a write, does no harm:
the journal refuses what comes from a master after the next one has claimed it.
"""

from __future__ import annotations

from typing import NamedTuple

# In parts of a lease: when it is renewed, and how soon again after that has failed.
_RENEWALS, _RETRIES = 3, 20


class LeaseState(NamedTuple):
    """What a master knows of its lease.

    Attributes:
        renewed_s: When it asked for the renewal that was granted last.
        tried_s: When it asked last, granted or not.
        is_taken: Whether it was told that the lease is another's.
    """

    renewed_s: float
    tried_s: float
    is_taken: bool = False


def renew_in(
    now_s: float, state: LeaseState, lease_s: float
) -> tuple[float | None, str]:
    """Returns in how many seconds to renew, or None if the lease is lost, and why.

    Args:
        now_s: On the master's own clock, as are the times of the state.
        state: What is known.
        lease_s: How long the lease lasts.

    Example:
        >>> renew_in(0.5, LeaseState(renewed_s=0.0, tried_s=0.0), 3.0)
        (0.5, 'the lease is renewed in time')
        >>> renew_in(7.0, LeaseState(renewed_s=0.0, tried_s=6.0), 3.0)
        (None, 'the lease of 3 s was last renewed 7.0 s ago')
    """
    if state.is_taken:
        return None, "another master has the lease"
    age_s = now_s - state.renewed_s
    if age_s >= lease_s:
        return None, f"the lease of {lease_s:g} s was last renewed {age_s:.1f} s ago"
    if state.tried_s <= state.renewed_s:
        due_s, reason = state.renewed_s + lease_s / _RENEWALS, "is renewed in time"
    else:
        due_s, reason = state.tried_s + lease_s / _RETRIES, "was not renewed yet"
    due_s = min(due_s, state.renewed_s + lease_s)
    return max(0.0, due_s - now_s), f"the lease {reason}"
