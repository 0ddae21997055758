"""Replica store: the newest saves of other nodes' ranks, in the memory of this node."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._layout.manifest import RankManifest

if TYPE_CHECKING:
    from drivetrain_checkpoint._peers.connection import Connection


@dataclass(frozen=True, slots=True)
class Replica:
    """A save of a rank of another node.

    Args:
        rank: The rank.
        source: The node that sent it.
        arena: The memory, whose first generation it is.
    """

    rank: int
    source: str
    arena: Arena


class ReplicaStore:
    """The replicas that this node holds, the newest of each rank; thread-safe.

    A replica is dropped when a newer one is whole, so that for a moment there are two.
    """

    def __init__(self) -> None:
        """Holds none yet."""
        self._replicas: dict[int, Replica] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Replica]:
        """Returns what is held."""
        with self._lock:
            return list(self._replicas.values())

    def retain(self, sources: set[str]) -> None:
        """Drops what came from other nodes than these."""
        with self._lock:
            kept = {r: x for r, x in self._replicas.items() if x.source in sources}
            self._replicas = kept

    def receive(self, connection: Connection, message: dict[str, Any]) -> None:
        """Takes a replica from the network.

        Raises:
            ValueError: It is not what was sent.
            MemoryError: There is no room for it.
            OSError: The sender is gone.
        """
        size, length = message["image_bytes"], message["record_bytes"]
        arena = Arena.create(size, length)
        connection.send({"ok": True})
        record = connection.receive_bytes(length)
        at = arena.image_address(length, 0)
        image = arena.view(at - arena.address, size)
        connection.receive_into(image)
        # Both ends reckon at once: one after the other took 2% of 20 MB/s.
        mine = _native.checksums(image, 1)
        if connection.receive()[0]["crc32c"] != mine:
            text = "the replica is not what was sent"
            raise ValueError(text)
        arena.publish(0, message["sequence"], record, length, size)
        # Whoever asks what is held reads every record: none may be odd.
        held = arena.generations()[0].record
        named = RankManifest.from_fields(held["manifest"], "the replica").rank
        if named != message["rank"]:
            text = f"the replica is that of rank {named}, not {message['rank']}"
            raise ValueError(text)
        replica = Replica(message["rank"], message["source"], arena)
        with self._lock:
            self._replicas[replica.rank] = replica
