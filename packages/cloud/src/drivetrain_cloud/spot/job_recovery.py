"""Job recovery: when training begins, grows, and waits for the nodes it lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.actions import Pause, Train
from drivetrain_cloud.spot.capacity import JobPhase, NodePhase
from drivetrain_cloud.spot.config import Recovery

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Capacity
    from drivetrain_cloud.spot.config import SpotConfig
    from drivetrain_cloud.spot.fail_tolerance import Workable


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What becomes of the world of training.

    Args:
        action: To be carried out now, if anything is.
        look_again_s: When to ask again if nothing happens; infinite for never.
    """

    action: Train | Pause | None = None
    look_again_s: float = math.inf


def recover(
    now_s: float,
    capacity: Capacity,
    config: SpotConfig,
    able: Workable,
    stays: tuple[str, ...] = (),
) -> Step:
    """Decides whether training begins, changes its nodes, or pauses.

    With `Recovery.WAIT_FULL` it pauses until all nodes that are needed are there, and
    the global batch stays as it is. With `Recovery.RESIZE` it goes on with those that
    are left; how the batch follows is up to `BatchScaling`. Nodes that only add to a
    world wait, so that ones that come and go do not disturb it.

    Args:
        now_s: The time.
        capacity: What nodes there are.
        config: What the job wants.
        able: With whom training can go on.
        stays: Who will be taken away, and trains on until then.
    """
    if capacity.phase == JobPhase.WAITING:
        return _begin(now_s, capacity, config, able)
    if capacity.phase != JobPhase.TRAINING:
        return Step()
    if not able.nodes:
        return Step(action=Pause(reason=able.reason))
    training = {node.name for node in capacity.those(NodePhase.TRAINING)}
    new = [node for node in capacity.nodes if node.name in able.nodes]
    new = [node for node in new if node.name not in training]
    here = [node for node in capacity.nodes if node.is_able and node.name in training]
    # Too few are left when the others go: those that came take over while all are there.
    fits = len(here) >= config.least and len(here) % config.unit == 0
    if not new and fits and len(here) <= len(able.nodes):
        return Step()
    due_s = now_s
    if new and fits:
        # It trains as it is: what comes must have proven that it stays.
        due_s = max(
            capacity.changed_s + config.grow_after_s,
            *(node.since_s + config.settle_s for node in new),
        )
    if now_s < due_s:
        return Step(look_again_s=due_s)
    names = ", ".join(node.name for node in new)
    reason = f"{names} joined; {able.reason}" if new else able.reason
    both = (*able.nodes, *stays)
    nodes = both if len(both) % config.unit == 0 else able.nodes
    return Step(action=Train(nodes=nodes, reason=reason))


def _begin(
    now_s: float, capacity: Capacity, config: SpotConfig, able: Workable
) -> Step:
    if not able.nodes:
        return Step()
    full = len(able.nodes) >= config.nodes
    if not full and config.recovery == Recovery.RESIZE:
        last_s = max(node.since_s for node in capacity.nodes if node.name in able.nodes)
        if now_s < last_s + config.settle_s:
            return Step(look_again_s=last_s + config.settle_s)
    return Step(action=Train(nodes=able.nodes, reason=able.reason))
