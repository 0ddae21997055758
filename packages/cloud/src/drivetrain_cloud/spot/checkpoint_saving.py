"""Checkpoint saving: what is done in the seconds between a notice and its deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.actions import Leave, Save
from drivetrain_cloud.spot.capacity import JobPhase, NodePhase

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Capacity, Notice
    from drivetrain_cloud.spot.config import SpotConfig
    from drivetrain_cloud.spot.fail_tolerance import Workable


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What is done about the notices that stand.

    Args:
        actions: To be carried out now.
        stays: Nodes that will be taken away, and train on until then.
        holds: Whether training must stay as it is.
        look_again_s: When to ask again if nothing happens; infinite for never.
    """

    actions: tuple[Save | Leave, ...] = ()
    stays: tuple[str, ...] = ()
    holds: bool = False
    look_again_s: float = math.inf


def answer_notices(
    now_s: float, capacity: Capacity, config: SpotConfig, able: Workable
) -> Answer:
    """Saves a checkpoint at once, and lets the nodes leave as late as is safe.

    The state of the training is then in a checkpoint that lasts, and in the memory of
    the nodes that stay, if some do. If too few would stay, another checkpoint is saved as
    late as is safe, and training pauses after it: nothing that was trained is lost. A
    notice that is too short for a checkpoint is for leaving, unless all go: then one is
    tried, since one that is torn is never taken for a whole one.

    Args:
        now_s: The time.
        capacity: What nodes there are.
        config: What the job wants.
        able: With whom training can go on.
    """
    training = capacity.those(NodePhase.TRAINING)
    notices = {node.name: node.notice for node in training if node.notice is not None}
    is_training = capacity.phase == JobPhase.TRAINING
    # With fewer no step is made, after which something could be saved.
    if not notices or not is_training or len(training) < config.least:
        return Answer()
    spare_s = capacity.step_s + config.margin_s
    deadline_s = min(notice.deadline_s for notice in notices.values())
    latest_s = deadline_s - spare_s
    due_s = max(notice.heard_s for notice in notices.values())
    if not able.nodes:
        due_s = max(due_s, latest_s - capacity.save_s)
    is_saved = capacity.saved_s is not None and capacity.saved_s >= due_s
    if capacity.is_saving and not is_saved and now_s < latest_s:
        return Answer(stays=tuple(notices), holds=True, look_again_s=latest_s)
    if now_s < due_s and not is_saved:
        return _before_the_last(now_s, capacity, notices, due_s)
    if not is_saved and not capacity.is_saving:
        is_tried = not able.nodes and now_s < deadline_s
        if latest_s - now_s >= capacity.save_s or is_tried:
            return _save(now_s, notices, deadline_s, latest_s)
    if not able.nodes:
        return Answer(
            holds=not is_saved and now_s < deadline_s, look_again_s=deadline_s
        )
    return _leave(now_s, notices, spare_s, able, is_saved=is_saved)


def _save(
    now_s: float, notices: dict[str, Notice], deadline_s: float, latest_s: float
) -> Answer:
    left_s = max(0.0, deadline_s - now_s)
    reason = f"{', '.join(notices)} will be taken away in {left_s:.0f} s"
    return Answer(
        actions=(Save(deadline_s=deadline_s, reason=reason),),
        stays=tuple(notices),
        holds=True,
        look_again_s=latest_s,
    )


def _before_the_last(
    now_s: float, capacity: Capacity, notices: dict[str, Notice], due_s: float
) -> Answer:
    """Has a checkpoint soon, and trains on until the last one is due."""
    heard_s = max(notice.heard_s for notice in notices.values())
    is_saved = capacity.saved_s is not None and capacity.saved_s >= heard_s
    if not is_saved and not capacity.is_saving:
        deadline_s = min(notice.deadline_s for notice in notices.values())
        return _save(now_s, notices, deadline_s, due_s)
    return Answer(stays=tuple(notices), holds=True, look_again_s=due_s)


def _leave(
    now_s: float,
    notices: dict[str, Notice],
    spare_s: float,
    able: Workable,
    *,
    is_saved: bool,
) -> Answer:
    """Lets those leave whose time has come, or all if there is no checkpoint."""
    dues_s = {
        name: notice.deadline_s - spare_s if is_saved else now_s
        for name, notice in notices.items()
    }
    saved = (
        "a checkpoint is durable" if is_saved else "there is no time for a checkpoint"
    )
    leaves = tuple(
        Leave(
            node=name,
            deadline_s=notice.deadline_s,
            reason=f"it will be taken away; {saved}, and {able.reason}",
        )
        for name, notice in notices.items()
        if dues_s[name] <= now_s
    )
    later_s = [due_s for due_s in dues_s.values() if due_s > now_s]
    return Answer(
        actions=leaves,
        stays=tuple(name for name, due_s in dues_s.items() if due_s > now_s),
        look_again_s=min(later_s, default=math.inf),
    )
