"""Agreement of all ranks on a save, from what each of them proposes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Policy = Literal["wait", "skip", "drop_oldest"]
"""What a save does while memory is still needed for earlier ones."""


class Proposal(NamedTuple):
    """What one rank says before a save.

    Args:
        step: The step.
        digest: A checksum of what must be equal on all ranks.
        problem: Why this rank cannot save, or nothing.
        has_memory: Whether a generation was set aside for it.
        dropped: The save that would be given up for it, if one would.
        save_id: What the save would be called.
        saved_at_ns: The time, in nanoseconds since 1970.
        persist: Whether storage is to follow; it does if one rank says so.
    """

    step: int
    digest: str
    problem: str
    has_memory: bool
    dropped: str | None
    save_id: str
    saved_at_ns: int
    persist: bool = True


class Verdict(NamedTuple):
    """What is to be done, the same on each rank.

    Args:
        action: Save; wait for memory and save then; leave the save out; or raise.
        because: Why.
        dropped: The saves that are given up.
    """

    action: Literal["save", "wait", "skip", "raise"]
    because: str = ""
    dropped: tuple[str, ...] = ()


def agree(proposals: Sequence[Proposal], policy: Policy) -> Verdict:
    """Returns what all ranks do.

    Example:
        >>> one = Proposal(5, "d", "", True, None, "x", 0)
        >>> agree([one, one], "skip").action
        'save'
        >>> agree([one, one._replace(has_memory=False)], "skip").action
        'skip'
        >>> agree([one, one._replace(step=6)], "skip").because[:42]
        'rank 0 and rank 1 save different steps (5,'
    """
    first = proposals[0]
    for rank, other in enumerate(proposals):
        if other.problem:
            return Verdict("raise", f"rank {rank} cannot save: {other.problem}")
    for rank, other in enumerate(proposals):
        if other.step != first.step:
            return Verdict(
                "raise",
                f"rank 0 and rank {rank} save different steps "
                f"({first.step}, {other.step})",
            )
        if other.digest != first.digest:
            return Verdict(
                "raise",
                f"rank 0 and rank {rank} save different plain data, names or shapes in "
                "what is one for all ranks",
            )
    busy = [rank for rank, other in enumerate(proposals) if not other.has_memory]
    if busy:
        because = f"earlier saves of rank {busy[0]} are still being written"
        return Verdict("skip" if policy == "skip" else "wait", because)
    dropped = {other.dropped for other in proposals if other.dropped is not None}
    return Verdict("save", "", tuple(sorted(dropped)))
