"""Commit decision: whether a save becomes a checkpoint now, waits, or fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection


class Decision(NamedTuple):
    """What is to be done about a save.

    Args:
        action: Commit it, wait, look at the storage for what was not reported, or fail.
        because: Why.
    """

    action: Literal["commit", "wait", "look", "fail"]
    because: str


_GRACE_S = 30.0
"""How long a storage of several nodes may take to show one what another wrote."""


def decide(
    *,
    reported: Collection[int],
    absent: Collection[int],
    on_storage: Collection[int],
    world_size: int,
    error: str,
    quiet_s: float,
    unseen_s: float,
    limit_s: float,
) -> Decision:
    """Returns what is to be done about a save.

    Args:
        reported: The ranks that have said that their part is on storage.
        absent: The ranks whose part will never come.
        on_storage: The ranks whose part was there when somebody looked last.
        world_size: How many ranks there are.
        error: What has failed anywhere, or nothing.
        quiet_s: For how long no rank has said anything new.
        unseen_s: For how long nobody has looked at the storage; infinite if nobody has
            since the last rank said something.
        limit_s: How long a rank may keep all others waiting.

    Example:
        >>> decide(reported=[0, 1], absent=[], on_storage=[], world_size=2, error="",
        ...        quiet_s=0, unseen_s=float("inf"), limit_s=600).action
        'look'
        >>> decide(reported=[0], absent=[], on_storage=[0], world_size=2, error="",
        ...        quiet_s=700, unseen_s=0, limit_s=600).because
        'rank 1 has written nothing for 600 s'
    """
    if error:
        return Decision("fail", error)
    if absent:
        late = "ended before it had saved, or has used its memory for another save"
        return Decision("fail", f"{_listing(sorted(absent))} {late}")
    missing = sorted(set(range(world_size)) - set(on_storage))
    if not missing:
        return Decision("commit", "every rank's part is on storage")
    unsaid = sorted(set(range(world_size)) - set(reported))
    if not unsaid:
        if quiet_s >= min(_GRACE_S, limit_s) and unseen_s < quiet_s:
            return Decision(
                "fail",
                f"what {_listing(missing)} wrote is not there: all nodes must see the "
                "same storage",
            )
        if unseen_s >= 0.5:
            return Decision("look", "every rank says that it has written")
        return Decision("wait", f"to see what {_listing(missing)} wrote")
    if quiet_s >= limit_s:
        has = "has" if len(missing) == 1 else "have"
        waited = f"{has} written nothing for {limit_s:.0f} s"
        return Decision("fail", f"{_listing(missing)} {waited}")
    # Word of a rank may be lost with a daemon; its files are not.
    if 0.02 <= unseen_s < float("inf") and unseen_s >= min(2.0, quiet_s / 8):
        return Decision("look", "not every rank has said that it has written")
    return Decision("wait", f"for {_listing(unsaid)}")


def _listing(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
