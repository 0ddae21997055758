"""Max wait time: what happens when nodes do not come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.actions import GiveUp, Request, Suspend
from drivetrain_cloud.spot.capacity import JobPhase, Market, NodePhase
from drivetrain_cloud.spot.config import AfterMaxWait

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Capacity
    from drivetrain_cloud.spot.config import SpotConfig
    from drivetrain_cloud.spot.fail_tolerance import Workable


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What is done about a wait.

    Args:
        action: To be carried out now, if anything is.
        look_again_s: When to ask again if nothing happens; infinite for never.
    """

    action: Request | Suspend | GiveUp | None = None
    look_again_s: float = math.inf


def limit_wait(
    now_s: float, capacity: Capacity, config: SpotConfig, able: Workable
) -> Limit:
    """Gives up, suspends or falls back when a job has waited for too long.

    Args:
        now_s: The time.
        capacity: What nodes there are.
        config: What the job wants.
        able: With whom training can go on.
    """
    if capacity.phase != JobPhase.WAITING or able.nodes:
        return Limit()
    end_s = capacity.phase_since_s + config.max_wait_s
    if now_s < end_s:
        return Limit(look_again_s=end_s)
    waited = f"{able.reason}, after {now_s - capacity.phase_since_s:.0f} s"
    if config.after_max_wait == AfterMaxWait.FAIL:
        return Limit(action=GiveUp(reason=waited))
    if config.after_max_wait == AfterMaxWait.SUSPEND:
        return Limit(action=Suspend(reason=waited))
    asked = [
        node
        for node in capacity.those(NodePhase.REQUESTED)
        if node.market == Market.ON_DEMAND
    ]
    num_able = sum(node.is_able for node in capacity.nodes)
    missing = config.least - num_able - len(asked)
    if missing > 0:
        request = Request(market=Market.ON_DEMAND, count=missing, reason=waited)
        return Limit(action=request)
    end_s = max(node.since_s for node in asked) + config.max_wait_s
    if now_s < end_s:
        return Limit(look_again_s=end_s)
    reason = f"{waited}; nodes on demand did not come either"
    return Limit(action=GiveUp(reason=reason))
