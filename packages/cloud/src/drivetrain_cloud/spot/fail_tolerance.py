"""Fail tolerance: how many workers train when the market has taken or given nodes.

How many are worth what they cost is `worker_count`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.capacity import Market, NodePhase
from drivetrain_cloud.spot.config import Recovery

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Capacity, Node
    from drivetrain_cloud.spot.config import SpotConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Workable:
    """The nodes that can train from now on.

    Args:
        nodes: Their names; none if they are too few.
        reason: How many there are, for people.
        look_again_s: When others may do; infinite for never.
    """

    nodes: tuple[str, ...]
    reason: str
    look_again_s: float = math.inf


def workable(now_s: float, capacity: Capacity, config: SpotConfig) -> Workable:
    """Returns with which nodes training can go on, those that train first.

    A node that will be taken away is not among them. Nodes on demand are there only as
    long as too few spot nodes have stayed for `return_after_s`.

    Args:
        now_s: The time.
        capacity: What nodes there are.
        config: What the job wants.

    Example:
        >>> from drivetrain_cloud.spot import Capacity, Market, Node, NodePhase
        >>> from drivetrain_cloud.spot import SpotConfig
        >>> nodes = [Node(name=name, market=Market.SPOT, phase=NodePhase.TRAINING,
        ...               since_s=0.0) for name in "abc"]
        >>> config = SpotConfig(nodes=4, min_nodes=2, unit=2)
        >>> workable(0.0, Capacity(nodes=tuple(nodes)), config)
        Workable(nodes=('a', 'b'), reason='3 of 4 nodes can train', look_again_s=inf)
    """
    able = [node for node in capacity.nodes if node.is_able]
    spot = [node for node in able if node.market == Market.SPOT]
    chosen, look_again_s = spot, math.inf
    if len(spot) < len(able):
        lasting_s = [node.since_s + config.return_after_s for node in spot]
        gap = config.least - sum(since_s <= now_s for since_s in lasting_s)
        others = sorted((n for n in able if n.market != Market.SPOT), key=_order)
        look_again_s = min((s for s in lasting_s if s > now_s), default=math.inf)
        chosen = [*spot, *others[: max(0, gap)]]
    chosen = sorted(chosen, key=_order)
    most = config.most if config.recovery == Recovery.RESIZE else config.nodes
    size = min(len(chosen), most) // config.unit * config.unit
    reason = f"{len(able)} of {config.nodes} nodes can train"
    if size < config.least:
        reason += f", at least {config.least} are needed"
        size = 0
    return Workable(
        nodes=tuple(node.name for node in chosen[:size]),
        reason=reason,
        look_again_s=look_again_s,
    )


def _order(node: Node) -> tuple[bool, bool, float, str]:
    """Puts those first that train, then those that cost less and came earlier."""
    on_demand = node.market == Market.ON_DEMAND
    return node.phase != NodePhase.TRAINING, on_demand, node.since_s, node.name
