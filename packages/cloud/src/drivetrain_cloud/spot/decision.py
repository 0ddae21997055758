"""What is done now for a job on nodes that may be taken away.

It asks, in this order, `fail_tolerance`, `checkpoint_saving` and `job_recovery`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.actions import GiveUp, Resume, Suspend
from drivetrain_cloud.spot.capacity import JobPhase
from drivetrain_cloud.spot.checkpoint_saving import answer_notices
from drivetrain_cloud.spot.fail_tolerance import workable
from drivetrain_cloud.spot.job_recovery import Step, recover
from drivetrain_cloud.spot.max_wait_time import limit_wait
from drivetrain_cloud.spot.node_requests import balance_requests

if TYPE_CHECKING:
    from drivetrain_cloud.spot.actions import Action
    from drivetrain_cloud.spot.capacity import Capacity
    from drivetrain_cloud.spot.config import SpotConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What is to be done.

    Args:
        actions: To be carried out in this order, before anybody asks again.
        look_again_s: When to ask again if nothing happens; infinite for never.
    """

    actions: tuple[Action, ...]
    look_again_s: float


def decide(now_s: float, capacity: Capacity, config: SpotConfig) -> Decision:
    """Decides what is done now; asks for nothing twice once it has been carried out.

    Args:
        now_s: The time, on the clock of all times in `capacity`.
        capacity: What nodes there are, and what the job is doing.
        config: What the job wants.

    Example:
        >>> from drivetrain_cloud.spot import Capacity, Market, Node, NodePhase
        >>> from drivetrain_cloud.spot import SpotConfig
        >>> one = Node(name="a", market=Market.SPOT, phase=NodePhase.READY, since_s=0.0)
        >>> found = decide(9.0, Capacity(nodes=(one,)), SpotConfig(nodes=2))
        >>> for action in found.actions:
        ...     print(type(action).__name__, action.reason)
        Train 1 of 2 nodes can train
        Request 1 of 2 nodes are there or asked for
    """
    if capacity.phase == JobPhase.ENDED:
        return Decision(actions=(), look_again_s=float("inf"))
    if capacity.phase == JobPhase.SUSPENDED:
        return _resume(now_s, capacity, config)
    able = workable(now_s, capacity, config)
    answer = answer_notices(now_s, capacity, config, able)
    step = (
        Step() if answer.holds else recover(now_s, capacity, config, able, answer.stays)
    )
    limit = limit_wait(now_s, capacity, config, able)
    if isinstance(limit.action, GiveUp | Suspend):
        return Decision(actions=(limit.action,), look_again_s=float("inf"))
    actions = (
        *answer.actions,
        step.action,
        *balance_requests(capacity, config),
        limit.action,
    )
    return Decision(
        actions=tuple(action for action in actions if action is not None),
        look_again_s=min(
            able.look_again_s,
            answer.look_again_s,
            step.look_again_s,
            limit.look_again_s,
        ),
    )


def _resume(now_s: float, capacity: Capacity, config: SpotConfig) -> Decision:
    due_s = capacity.phase_since_s + config.resume_after_s
    if now_s < due_s:
        return Decision(actions=(), look_again_s=due_s)
    resume = Resume(reason=f"it has been suspended for {config.resume_after_s:.0f} s")
    return Decision(actions=(resume,), look_again_s=float("inf"))
