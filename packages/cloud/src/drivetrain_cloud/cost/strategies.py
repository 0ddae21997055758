"""What a job may do about nodes that are taken away: the strategies that are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from drivetrain_cloud.spot.config import AfterMaxWait, Recovery, SpotConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """What a job does about nodes that are taken away.

    Args:
        name: For people.
        about: What it does, in a few words.
        config: What the decisions are asked with.
        heeds_notices: Whether it hears that a node will be taken away.
        keeps_state: Whether nodes that stay still hold the state of the training.
    """

    name: str
    about: str
    config: SpotConfig
    heeds_notices: bool = True
    keeps_state: bool = True


def usual_strategies(
    nodes: int, *, min_nodes: int | None = None, max_wait_s: float = 600.0
) -> tuple[Strategy, ...]:
    """Returns the strategies that are usually compared, the plainest first.

    Args:
        nodes: Nodes that the job asks for.
        min_nodes: The fewest that train when it resizes; half of them by default.
        max_wait_s: How long it waits before it takes nodes on demand, where it does.

    Raises:
        ProgramError: The numbers contradict each other.

    Example:
        >>> [one.name for one in usual_strategies(4)]
        ['restart', 'wait-full', 'resize', 'wait-full+fallback', 'resize+fallback']
    """
    least = max(1, nodes // 2) if min_nodes is None else min_nodes
    full = SpotConfig(nodes=nodes, recovery=Recovery.WAIT_FULL, max_wait_s=math.inf)
    resize = SpotConfig(nodes=nodes, min_nodes=least, max_wait_s=math.inf)
    full_fallback, resize_fallback = (
        replace(one, max_wait_s=max_wait_s, after_max_wait=AfterMaxWait.ON_DEMAND)
        for one in (full, resize)
    )
    return (
        Strategy(
            name="restart",
            about="no fault tolerance: notices are not heard, all begin again",
            config=full,
            heeds_notices=False,
            keeps_state=False,
        ),
        Strategy(name="wait-full", about="saves, and waits for all nodes", config=full),
        Strategy(
            name="resize", about="goes on with those that are left", config=resize
        ),
        Strategy(
            name="wait-full+fallback",
            about="waits, then fills the gap on demand",
            config=full_fallback,
        ),
        Strategy(
            name="resize+fallback",
            about="goes on; with too few, fills the gap on demand",
            config=resize_fallback,
        ),
    )
