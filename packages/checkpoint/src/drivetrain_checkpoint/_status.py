"""What a daemon says of itself to people who look at it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._memory import held

if TYPE_CHECKING:
    from drivetrain_checkpoint._custody import Custody
    from drivetrain_checkpoint._replicate import ReplicaStore

__all__ = ["status_of"]


def status_of(custody: Custody, replicas: ReplicaStore, url: str) -> dict[str, Any]:
    """Returns what is held in memory, what is being done with it, and what has failed.

    Args:
        custody: The memory of the node's ranks.
        replicas: The memory of other nodes' ranks.
        url: Where checkpoints go.
    """
    ranks: dict[str, Any] = {}
    for found in held(custody, replicas):
        kind = "replicas" if found.is_replica else "ranks"
        rank = ranks.setdefault(kind, {}).setdefault(
            str(found.rank),
            {"memory_bytes": found.arena.size_bytes, "steps": [], "doing": {}},
        )
        rank["steps"].append(found.generation.record["step"])
    for ticket in custody.tickets():
        for task, progress in list(ticket.running.items()):
            step = ticket.generation.record["step"]
            done = f"step {step}: {progress.done:,} bytes"
            ranks.get("ranks", {}).get(str(ticket.rank), {})["doing"][task] = done
    return {
        "pid": os.getpid(),
        "folder": url,
        "ranks": ranks.get("ranks", {}),
        "replicas": ranks.get("replicas", {}),
        "failures": custody.outcomes.failures(),
    }
