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


class Account(NamedTuple):
    """How one rank has spent its time in one world, in seconds.

    Attributes:
        forming_s: From the break of the world before, or the start, to the first step.
        redone_s: In a step of the world before that did not count.
        steps_s: In steps that count.
        outside_s: Between steps, in the script.
        saving_s: In checkpoints, while no step was made.
        first_step: The last step that counts before the world.
        last_step: The last one that counts now.
        first_sample: How many samples the training had read before the world.
        last_sample: How many it has read now.
    """

    forming_s: float = 0.0
    redone_s: float = 0.0
    steps_s: float = 0.0
    outside_s: float = 0.0
    saving_s: float = 0.0
    first_step: int = 0
    last_step: int = 0
    first_sample: int = 0
    last_sample: int = 0


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
        num_steps: How many steps count.
        lost: All other seconds by cause, the most first; what nobody has accounted for is
            a row of its own.
        num_samples: How many samples these steps are made of.
    """

    total_s: float
    effective_s: float
    num_steps: int
    lost: tuple[LedgerRow, ...]
    num_samples: int = 0


def account_for(total_s: float, worlds: Iterable[WorldFacts]) -> TimeLedger:
    """Adds up where the time of a run has gone.

    Args:
        total_s: Since the job began, on the master's clock.
        worlds: All of them.

    Example:
        >>> worlds = [
        ...     WorldFacts(1, 4, "start", "", Account(5.0, 0.0, 50.0, last_step=100)),
        ...     WorldFacts(2, 4, "killed", "",
        ...                Account(0.2, 0.3, 40.0, first_step=101, last_step=181)),
        ... ]
        >>> ledger = account_for(96.0, worlds)
        >>> ledger.num_steps
        181
        >>> round(ledger.effective_s), ledger.lost[0].what
        (90, 'world forms')
        >>> round(sum(row.seconds for row in ledger.lost) + ledger.effective_s, 6)
        96.0
    """
    seconds: dict[tuple[str, str], float] = {}
    times: dict[tuple[str, str], int] = {}

    def lose(what: str, cause: str, lost_s: float) -> None:
        if lost_s > 0:
            seconds[what, cause] = seconds.get((what, cause), 0.0) + lost_s
            times[what, cause] = times.get((what, cause), 0) + 1

    full, effective_s = 1, 0.0
    told: list[Account] = []
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
        if one.last_step:
            told.append(one)
    left_s = total_s - effective_s - math.fsum(seconds.values())
    lose("not accounted for", "unknown", left_s)
    rows = [
        LedgerRow(what, cause, lost_s, times[what, cause])
        for (what, cause), lost_s in seconds.items()
    ]
    rows.sort(key=lambda row: -row.seconds)
    # A world begins with what counts of all before it, whatever their ranks lived to tell.
    first, last = (told[0], told[-1]) if told else (Account(), Account())
    return TimeLedger(
        max(total_s, 0.0),
        effective_s,
        max(0, last.last_step - first.first_step),
        tuple(rows),
        max(0, last.last_sample - first.first_sample),
    )


def typical_account(accounts: Sequence[Account]) -> Account:
    """Returns how the ranks of a world have spent their time, by the median of each part.

    One that lies, or has just come, does not change it. What is no time counts as none. How
    far they are is what the one says that is furthest: others have died before they said it.

    Args:
        accounts: Of all ranks that have said anything.

    Example:
        >>> found = typical_account([
        ...     Account(0.2, 0.1, 1.0, last_step=5), Account(0.4, 0.1, 1.2, last_step=4)
        ... ])
        >>> found.redone_s, found.steps_s, found.last_step
        (0.1, 1.1, 5)
    """
    if not accounts:
        return Account()

    def middle(values: Iterable[float]) -> float:
        sound = [one for one in values if math.isfinite(one) and one >= 0]
        return statistics.median(sound) if sound else 0.0

    furthest = max(accounts, key=lambda one: one.last_step)
    return Account(
        forming_s=middle(one.forming_s for one in accounts),
        redone_s=middle(one.redone_s for one in accounts),
        steps_s=middle(one.steps_s for one in accounts),
        outside_s=middle(one.outside_s for one in accounts),
        saving_s=middle(one.saving_s for one in accounts),
        first_step=furthest.first_step,
        last_step=furthest.last_step,
        first_sample=furthest.first_sample,
        last_sample=furthest.last_sample,
    )
