"""Checkpoint saving: what is done in the seconds between a notice and its deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_elastic.spot.actions import Leave, Save
from drivetrain_elastic.spot.capacity import JobPhase, NodePhase

if TYPE_CHECKING:
    from drivetrain_elastic.spot.capacity import Capacity
    from drivetrain_elastic.spot.config import SpotConfig
    from drivetrain_elastic.spot.fail_tolerance import Workable

__all__ = ["Answer", "answer_notices"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What is done about the notices that stand.

    Args:
        actions: To be carried out now.
        holds: Whether training must stay as it is until a checkpoint is written.
        look_again_s: When to ask again if nothing happens; infinite for never.
    """

    actions: tuple[Save | Leave, ...] = ()
    holds: bool = False
    look_again_s: float = math.inf


def answer_notices(
    now_s: float, capacity: Capacity, config: SpotConfig, able: Workable
) -> Answer:
    """Saves a checkpoint while there is time, then lets the nodes leave.

    The state of the training is then in a checkpoint that lasts, and in the memory of
    the nodes that stay, if some do. A notice that is too short for a checkpoint is for
    leaving, unless all go: then a checkpoint is tried, since one that is torn is never
    taken for a whole one.

    Args:
        now_s: The time.
        capacity: What nodes there are.
        config: What the job wants.
        able: With whom training can go on.
    """
    noticed = [
        (node, node.notice)
        for node in capacity.those(NodePhase.TRAINING)
        if node.notice is not None
    ]
    if not noticed or capacity.phase != JobPhase.TRAINING:
        return Answer()
    heard_s = max(notice.heard_s for _, notice in noticed)
    deadline_s = min(notice.deadline_s for _, notice in noticed)
    names = ", ".join(node.name for node, _ in noticed)
    latest_s = deadline_s - capacity.step_s - config.margin_s
    is_saved = capacity.saved_s is not None and capacity.saved_s >= heard_s
    if not is_saved and not capacity.is_saving:
        is_tried = not able.nodes and now_s < deadline_s
        if latest_s - now_s >= capacity.save_s or is_tried:
            left_s = max(0.0, deadline_s - now_s)
            reason = f"{names} will be taken away in {left_s:.0f} s"
            save = Save(deadline_s=deadline_s, reason=reason)
            return Answer(actions=(save,), holds=True, look_again_s=latest_s)
    elif not is_saved and now_s < latest_s:
        return Answer(holds=True, look_again_s=latest_s)
    if not able.nodes:
        return Answer(
            holds=not is_saved and now_s < deadline_s, look_again_s=deadline_s
        )
    saved = (
        "a checkpoint is durable" if is_saved else "there is no time for a checkpoint"
    )
    leaves = tuple(
        Leave(
            node=node.name,
            deadline_s=notice.deadline_s,
            reason=f"it will be taken away; {saved}, and {able.reason}",
        )
        for node, notice in noticed
    )
    return Answer(actions=leaves)
