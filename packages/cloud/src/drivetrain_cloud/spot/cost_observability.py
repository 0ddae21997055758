"""Cost observability: who was there, on what terms, and what the job did meanwhile.

Money comes later, from a list of prices: these are the facts that have to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.capacity import NodePhase

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Capacity, JobPhase, Market


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeUse:
    """A node that a job had, from its first moment to its last.

    Args:
        node: Its name.
        market: On what terms.
        offer: What a list of prices calls its kind.
        begin_s: When it came.
        end_s: When it was gone; None while it is there.
        was_taken: Whether it went under a notice.
    """

    node: str
    market: Market
    offer: str
    begin_s: float
    end_s: float | None = None
    was_taken: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTime:
    """What a job was doing.

    Args:
        phase: What.
        begin_s: Since when.
        end_s: Until when; None while it does.
    """

    phase: JobPhase
    begin_s: float
    end_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """All that is kept of a job.

    Args:
        nodes: Its nodes in the order in which they came.
        phases: What it did, in order.
    """

    nodes: tuple[NodeUse, ...] = ()
    phases: tuple[PhaseTime, ...] = ()


def observe(now_s: float, usage: Usage, capacity: Capacity) -> Usage:
    """Returns what is known after a look at the nodes.

    A node costs from when it is ready until it is no longer listed; one that is only
    asked for costs nothing.

    Args:
        now_s: The time.
        usage: What was known before.
        capacity: What nodes there are now.

    Example:
        >>> from drivetrain_cloud.spot import Capacity, Market, Node, NodePhase
        >>> node = Node(name="a", market=Market.SPOT, phase=NodePhase.READY, since_s=2.0)
        >>> usage = observe(2.0, Usage(), Capacity(nodes=(node,)))
        >>> [(use.node, use.begin_s, use.end_s) for use in usage.nodes]
        [('a', 2.0, None)]
        >>> [use.end_s for use in observe(9.0, usage, Capacity()).nodes]
        [9.0]
    """
    here = {n.name: n for n in capacity.nodes if n.phase != NodePhase.REQUESTED}
    nodes = []
    open_names = set()
    for use in usage.nodes:
        if use.end_s is not None:
            nodes.append(use)
            continue
        node = here.get(use.node)
        if node is None:
            nodes.append(replace(use, end_s=now_s))
            continue
        open_names.add(use.node)
        is_noticed = node.notice is not None
        nodes.append(replace(use, was_taken=is_noticed))
    nodes += [
        NodeUse(node=name, market=node.market, offer=node.offer, begin_s=now_s)
        for name, node in here.items()
        if name not in open_names
    ]
    phases = usage.phases
    last = phases[-1] if phases else None
    if last is None or last.phase != capacity.phase:
        if last is not None:
            phases = (*phases[:-1], replace(last, end_s=now_s))
        phases = (*phases, PhaseTime(phase=capacity.phase, begin_s=now_s))
    return Usage(nodes=tuple(nodes), phases=phases)
