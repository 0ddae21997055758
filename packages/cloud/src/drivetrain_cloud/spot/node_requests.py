"""Which nodes are asked for, and which are given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cloud.spot.actions import Cancel, Release, Request
from drivetrain_cloud.spot.capacity import JobPhase, Market, NodePhase
from drivetrain_cloud.spot.config import Recovery

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Capacity, Node
    from drivetrain_cloud.spot.config import SpotConfig


def balance_requests(
    capacity: Capacity, config: SpotConfig
) -> tuple[Request | Cancel | Release, ...]:
    """Asks for what is missing as soon as that is known, and gives back what is extra.

    A node with a notice does not count: its successor is asked for at once. Nodes on
    demand do not count either; they are given back when enough others train.

    Args:
        capacity: What nodes there are.
        config: What the job wants.
    """
    if capacity.phase not in {JobPhase.WAITING, JobPhase.TRAINING}:
        return ()
    spot = [node for node in capacity.nodes if _stays(node, Market.SPOT)]
    missing = config.nodes - len(spot)
    actions: list[Request | Cancel | Release] = []
    if missing > 0:
        reason = f"{len(spot)} of {config.nodes} nodes are there or asked for"
        request = Request(market=Market.SPOT, count=missing, reason=reason)
        actions.append(request)
    elif capacity.offered and config.recovery == Recovery.RESIZE:
        room = (config.most - len(spot)) // config.unit * config.unit
        count = min(room, capacity.offered // config.unit * config.unit)
        if count > 0:
            reason = f"{capacity.offered} nodes of the pool are idle"
            actions.append(Request(market=Market.SPOT, count=count, reason=reason))
    actions += _extra(capacity, config, spot)
    return tuple(actions)


def _stays(node: Node, market: Market) -> bool:
    is_here = node.phase != NodePhase.LEAVING and node.notice is None
    return is_here and node.market == market


def _extra(
    capacity: Capacity, config: SpotConfig, spot: list[Node]
) -> list[Cancel | Release]:
    """Gives back what there is too much of, what costs most first."""
    most = config.most if config.recovery == Recovery.RESIZE else config.nodes
    actions: list[Cancel | Release] = []
    dear = [node for node in capacity.nodes if _stays(node, Market.ON_DEMAND)]
    if not dear and len(spot) <= most:
        return actions
    training = [
        n for n in capacity.nodes if n.phase == NodePhase.TRAINING and n.is_able
    ]
    enough = capacity.phase == JobPhase.TRAINING and len(training) >= config.least
    for node in dear if enough else ():
        actions += _give_back(node, f"{len(training)} nodes train without it")
    order = {NodePhase.REQUESTED: 0, NodePhase.READY: 1, NodePhase.TRAINING: 2}
    spot = sorted(spot, key=lambda node: (order[node.phase], -node.since_s))
    for node in spot[: max(0, len(spot) - most)]:
        reason = f"{len(spot)} nodes are there or asked for, and {most} wanted"
        actions += _give_back(node, reason)
    return actions


def _give_back(node: Node, reason: str) -> list[Cancel | Release]:
    """Returns how a node that does not train is given back; nothing for others."""
    if node.phase == NodePhase.REQUESTED:
        return [Cancel(node=node.name, reason=reason)]
    if node.phase == NodePhase.READY:
        return [Release(node=node.name, reason=reason)]
    return []
