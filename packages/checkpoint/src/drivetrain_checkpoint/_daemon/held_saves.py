"""Saves held in the daemon's memory, replicas too: listed, sent, and reported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_checkpoint._arena import Arena, Generation
    from drivetrain_checkpoint._daemon.save_queue import SaveQueue
    from drivetrain_checkpoint._peers.connection import Connection
    from drivetrain_checkpoint._peers.replica_store import ReplicaStore
    from drivetrain_checkpoint._storage.local_store import LocalStore


class HeldSave(NamedTuple):
    """One save of one rank in this memory.

    Args:
        rank: The rank.
        is_replica: Whether it belongs to another node.
        arena: The memory.
        generation: Where in it the save lies.
    """

    rank: int
    is_replica: bool
    arena: Arena
    generation: Generation


def held_saves(queue: SaveQueue, replicas: ReplicaStore) -> Iterator[HeldSave]:
    """Yields what is held, the ranks' own memory first."""
    with queue.changed:
        arenas = dict(queue.arenas)
    for rank, arena in sorted(arenas.items()):
        for generation in arena.generations():
            yield HeldSave(rank, False, arena, generation)
    for replica in replicas.all():
        for generation in replica.arena.generations():
            yield HeldSave(replica.rank, True, replica.arena, generation)


def send_part(
    connection: Connection,
    queue: SaveQueue,
    replicas: ReplicaStore,
    local: LocalStore | None,
    *,
    rank: int,
    save_id: str,
    start: int,
    size_bytes: int,
) -> None:
    """Sends bytes of a save; afterwards, whether it was still the same save.

    They come from memory, or else from the local disk.

    Raises:
        KeyError: It is not here.
        CorruptCheckpointError: It is damaged on the disk.
    """

    def send(data: memoryview, is_intact: Callable[[], bool]) -> None:
        connection.send({"ok": True, "size_bytes": len(data)})
        connection.socket.sendall(data)
        connection.send({"intact": is_intact()})

    wanted = (rank, save_id)
    every = held_saves(queue, replicas)
    mine = (h for h in every if (h.rank, h.generation.record["save_id"]) == wanted)
    if (held := next(mine, None)) is not None:
        arena, found = held.arena, held.generation
        size = max(0, min(size_bytes, found.image_bytes - start))
        data = arena.view(found.image_at + start, size)
        send(data, lambda: arena.has(found))
        return
    for part in local.parts() if local else ():
        if (part.manifest.rank, part.manifest.save_id) == wanted:
            size = max(0, min(size_bytes, part.manifest.size_bytes - start))
            send(part.open().read(start, size), lambda: True)
            return
    message = (
        f"save {save_id} of rank {rank} is neither in this memory nor on this disk"
    )
    raise KeyError(message)


def status_of(queue: SaveQueue, replicas: ReplicaStore, url: str) -> dict[str, Any]:
    """Returns what is held in memory, what is being done with it, and what has failed.

    Args:
        queue: The saves of the node's ranks.
        replicas: The memory of other nodes' ranks.
        url: Where checkpoints go.
    """
    found: dict[str, Any] = {"ranks": {}, "replicas": {}}
    for held in held_saves(queue, replicas):
        rank = found["replicas" if held.is_replica else "ranks"].setdefault(
            str(held.rank),
            {"memory_bytes": held.arena.size_bytes, "steps": [], "doing": {}},
        )
        rank["steps"].append(held.generation.record["step"])
    for pending in queue.pending_saves():
        for task, progress in list(pending.running.items()):
            step = pending.generation.record["step"]
            done = f"step {step}: {progress.done:,} bytes"
            found["ranks"][str(pending.rank)]["doing"][task] = done
    failures = queue.results.failures()
    return {"pid": os.getpid(), "folder": url, **found, "failures": failures}
