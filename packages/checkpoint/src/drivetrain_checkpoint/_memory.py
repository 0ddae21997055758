"""The saves in a daemon's memory as others see them: its own ranks', and replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_checkpoint._sources import StorageSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_checkpoint._arena import Arena, Generation
    from drivetrain_checkpoint._custody import Custody
    from drivetrain_checkpoint._local import LocalStore
    from drivetrain_checkpoint._replicate import ReplicaStore
    from drivetrain_checkpoint._wire import Connection

__all__ = ["Held", "held", "send_part"]


class Held(NamedTuple):
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


def held(custody: Custody, replicas: ReplicaStore) -> Iterator[Held]:
    """Yields what is held, the ranks' own memory first."""
    with custody.changed:
        arenas = dict(custody.arenas)
    for rank, arena in sorted(arenas.items()):
        for generation in arena.generations():
            yield Held(rank, False, arena, generation)
    for replica in replicas.all():
        for generation in replica.arena.generations():
            yield Held(replica.rank, True, replica.arena, generation)


def send_part(
    connection: Connection,
    custody: Custody,
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
    for found in held(custody, replicas):
        generation = found.generation
        if (found.rank, generation.record["save_id"]) != (rank, save_id):
            continue
        size = max(0, min(size_bytes, generation.image_bytes - start))
        connection.send({"ok": True, "size_bytes": size})
        connection.socket.sendall(found.arena.view(generation.image_at + start, size))
        now = found.arena.sequences()[generation.index]
        connection.send({"intact": now == generation.sequence})
        return
    for part in local.parts() if local else ():
        if (part.manifest.rank, part.manifest.save_id) == (rank, save_id):
            assert local is not None
            source = StorageSource(local.storage, part.name, part.manifest, dict)
            size = max(0, min(size_bytes, part.manifest.size_bytes - start))
            data = source.read(start, size)
            connection.send({"ok": True, "size_bytes": size})
            connection.socket.sendall(data)
            connection.send({"intact": True})
            return
    message = (
        f"save {save_id} of rank {rank} is neither in this memory nor on this disk"
    )
    raise KeyError(message)
