"""What the master does about nodes that will be taken away."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reclaim(NamedTuple):
    """A node will be taken away.

    Attributes:
        heard_s: When the master heard of it.
        deadline_s: When the node may be gone.
    """

    heard_s: float
    deadline_s: float


class ReclaimVerdict(NamedTuple):
    """What `judge_reclaims` decided.

    Attributes:
        save_by_s: When a checkpoint must be durable that is to be asked for now; None to
            ask for none.
        leave: The nodes that are to leave now.
        wait_s: After how many seconds to ask again; None when something has changed.
    """

    save_by_s: float | None
    leave: tuple[str, ...]
    wait_s: float | None


def judge_reclaims(
    now_s: float,
    reclaims: Mapping[str, Reclaim],
    *,
    num_others: int,
    asked_s: float = -math.inf,
    step_s: float = 1.0,
    save_s: float = 5.0,
    margin_s: float = 2.0,
) -> ReclaimVerdict:
    """Decides when a checkpoint is saved, and when a node leaves.

    A checkpoint is asked for as soon as a notice is heard. A node then trains on, and
    leaves as late as is safe. If no node would be left, another checkpoint is saved as
    late as is safe, in place of leaving.

    Args:
        now_s: The time, on the master's monotonic clock.
        reclaims: What is known, by node.
        num_others: Nodes that train and are not taken away.
        asked_s: When a checkpoint was last asked for.
        step_s: How long a step takes.
        save_s: How long a checkpoint takes until it is durable.
        margin_s: What is kept of each notice for what cannot be foreseen.

    Example:
        >>> reclaims = {"a": Reclaim(heard_s=0.0, deadline_s=30.0)}
        >>> judge_reclaims(0.0, reclaims, num_others=3)
        ReclaimVerdict(save_by_s=30.0, leave=(), wait_s=27.0)
        >>> judge_reclaims(27.0, reclaims, num_others=3, asked_s=0.0)
        ReclaimVerdict(save_by_s=None, leave=('a',), wait_s=None)
    """
    if not reclaims:
        return ReclaimVerdict(None, (), None)
    first_s = min(one.deadline_s for one in reclaims.values())
    is_asked = asked_s >= max(one.heard_s for one in reclaims.values())
    spare_s = step_s + margin_s
    dues_s = {node: one.deadline_s - spare_s for node, one in reclaims.items()}
    leave: tuple[str, ...] = ()
    if num_others > 0:
        leave = tuple(node for node, due_s in dues_s.items() if due_s <= now_s)
    else:
        # Nobody goes on: what is trained after the last checkpoint is lost.
        last_s = first_s - spare_s - save_s
        dues_s = {"": last_s}
        is_asked = is_asked and (asked_s >= last_s or now_s < last_s)
    waits = [due_s - now_s for due_s in dues_s.values() if due_s > now_s]
    is_late = now_s >= first_s
    return ReclaimVerdict(
        None if is_asked or is_late else first_s, leave, min(waits, default=None)
    )
