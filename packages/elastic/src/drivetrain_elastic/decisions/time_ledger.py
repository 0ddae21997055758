"""Where the time of a run has gone: what its steps took, and each lost second with its cause.

All ranks of a training make the same steps together, so that time lost by one is lost by all:
what is accounted for is wall-clock time, world by world, as the ranks themselves have measured
it. A world begins with a pause, in which it forms and the step in flight may be made again; then
come steps, and between them what the script does and what checkpoints stall. A world smaller
than the largest one so far makes the same steps with less: that share is lost to whatever took
the others away.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Account",
    "LedgerRow",
    "TimeLedger",
    "WorldFacts",
    "account_for",
    "typical_account",
]


class Account(NamedTuple):
    """How one rank has spent its time in one world, in seconds.

    Attributes:
        forming_s: From the break of the world before, or the start, to the first step.
        redone_s: In a step of the world before that did not count.
        num_steps: Steps that count.
        steps_s: In these.
        outside_s: Between steps, in the script.
        saving_s: In checkpoints, while no step was made.
    """

    forming_s: float = 0.0
    redone_s: float = 0.0
    num_steps: int = 0
    steps_s: float = 0.0
    outside_s: float = 0.0
    saving_s: float = 0.0


class WorldFacts(NamedTuple):
    """What the ledger knows of one world.

    Attributes:
        epoch: Of the world.
        size: How many ranks it has.
        cause: Why it was formed.
        shortage: Why it is smaller than the largest one was; empty if it is not.
        account: How its ranks have spent their time, typically.
        straggler_s: Of its steps, what they took longer than without a slow rank.
    """

    epoch: int
    size: int
    cause: str
    shortage: str
    account: Account
    straggler_s: float = 0.0


class LedgerRow(NamedTuple):
    """Seconds with a cause.

    Attributes:
        what: In what they were lost: "world forms", "step made again", for example.
        cause: Through what.
        seconds: How many.
        times: How often.
    """

    what: str
    cause: str
    seconds: float
    times: int


class TimeLedger(NamedTuple):
    """Where the time has gone.

    Attributes:
        total_s: Since the job began.
        effective_s: In steps that count, with all ranks at their usual speed.
        num_steps: How many these are.
        lost: All other seconds by cause, the most first; what nobody has accounted for is
            a row of its own.
    """

    total_s: float
    effective_s: float
    num_steps: int
    lost: tuple[LedgerRow, ...]

    @property
    def effective_share(self) -> float:
        """The share of the time that was effective; 0 before any."""
        return self.effective_s / self.total_s if self.total_s > 0 else 0.0


def account_for(total_s: float, worlds: Iterable[WorldFacts]) -> TimeLedger:
    """Adds up where the time of a run has gone.

    Args:
        total_s: Since the job began, on the master's clock.
        worlds: All of them.

    Example:
        >>> worlds = [
        ...     WorldFacts(1, 4, "start", "", Account(5.0, 0.0, 100, 50.0)),
        ...     WorldFacts(2, 4, "killed", "", Account(0.2, 0.3, 80, 40.0)),
        ... ]
        >>> ledger = account_for(96.0, worlds)
        >>> round(ledger.effective_share, 3), ledger.lost[0].what
        (0.938, 'world forms')
        >>> round(sum(row.seconds for row in ledger.lost) + ledger.effective_s, 6)
        96.0
    """
    seconds: dict[tuple[str, str], float] = {}
    times: dict[tuple[str, str], int] = {}

    def lose(what: str, cause: str, lost_s: float) -> None:
        if lost_s > 0:
            seconds[what, cause] = seconds.get((what, cause), 0.0) + lost_s
            times[what, cause] = times.get((what, cause), 0) + 1

    full, effective_s, num_steps = 1, 0.0, 0
    for world in worlds:
        full = max(full, world.size)
        one = world.account
        lose("world forms", world.cause, one.forming_s)
        lose("step made again", world.cause, one.redone_s)
        lose("script between steps", "script", one.outside_s)
        lose("checkpoint", "save", one.saving_s)
        slow_s = min(world.straggler_s, one.steps_s)
        lose("slow rank", "straggler", slow_s)
        useful_s = (one.steps_s - slow_s) * world.size / full
        lose(
            "too few ranks",
            world.shortage or world.cause,
            one.steps_s - slow_s - useful_s,
        )
        effective_s += useful_s
        num_steps += one.num_steps
    left_s = total_s - effective_s - math.fsum(seconds.values())
    lose("not accounted for", "unknown", left_s)
    rows = [
        LedgerRow(what, cause, lost_s, times[what, cause])
        for (what, cause), lost_s in seconds.items()
    ]
    rows.sort(key=lambda row: -row.seconds)
    return TimeLedger(max(total_s, 0.0), effective_s, num_steps, tuple(rows))


def typical_account(accounts: Sequence[Account]) -> Account:
    """Returns how the ranks of a world have spent their time, by the median of each part.

    One that lies, or has just come, does not change it. What is no time counts as none.

    Args:
        accounts: Of all ranks that have said anything.

    Example:
        >>> typical_account([Account(0.2, 0.1, 5, 1.0), Account(0.4, 0.1, 5, 1.2)])
        Account(forming_s=0.30000000000000004, redone_s=0.1, num_steps=5, steps_s=1.1, \
outside_s=0.0, saving_s=0.0)
    """
    if not accounts:
        return Account()

    def middle(values: Iterable[float]) -> float:
        sound = [one for one in values if math.isfinite(one) and one >= 0]
        return statistics.median(sound) if sound else 0.0

    return Account(
        forming_s=middle(one.forming_s for one in accounts),
        redone_s=middle(one.redone_s for one in accounts),
        num_steps=int(middle(one.num_steps for one in accounts)),
        steps_s=middle(one.steps_s for one in accounts),
        outside_s=middle(one.outside_s for one in accounts),
        saving_s=middle(one.saving_s for one in accounts),
    )
