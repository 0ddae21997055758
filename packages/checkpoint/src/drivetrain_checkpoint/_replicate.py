"""Sends saves to the memory of other nodes, and keeps theirs."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._nodes import holders
from drivetrain_checkpoint._peers import connect_to
from drivetrain_checkpoint._ticket import REPLICATE

if TYPE_CHECKING:
    from drivetrain_checkpoint._custody import Custody
    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._neighbours import Neighbours
    from drivetrain_checkpoint._nodes import Node
    from drivetrain_checkpoint._ticket import Ticket
    from drivetrain_checkpoint._wire import Connection

__all__ = ["Bucket", "Replica", "ReplicaStore", "Replicator"]

logger = logging.getLogger(__name__)

_SCAN_S = 0.25
_PART_BYTES = 1 << 20


class Bucket:
    """A token bucket: what several threads send together stays below a rate.

    Args:
        bytes_per_s: The rate; None is without limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        """Starts with an empty bucket."""
        self._rate = bytes_per_s
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Waits until so much may be sent."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + size_bytes / self._rate
        time.sleep(max(0.0, start - now))


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
        record = bytearray(length)
        connection.receive_into(memoryview(record))
        at = arena.image_address(length, 0)
        image = arena.view(at - arena.address, size)
        connection.receive_into(image)
        # Both ends reckon at once: one after the other took 2% of 20 MB/s.
        mine = _native.checksums(at, size, 1)
        if connection.receive()[0]["crc32c"] != mine:
            message_text = "the replica is not what was sent"
            raise ValueError(message_text)
        arena.publish(0, message["sequence"], bytes(record), length, size)
        replica = Replica(message["rank"], message["source"], arena)
        with self._lock:
            self._replicas[replica.rank] = replica


class Replicator:
    """Sends what ranks publish to the nodes that hold their replicas.

    Args:
        custody: The memory.
        neighbours: The other nodes.
    """

    def __init__(self, custody: Custody, neighbours: Neighbours) -> None:
        """Sends nothing yet."""
        self.num_replicas = 0
        self.bucket = Bucket(None)
        self._custody = custody
        self._neighbours = neighbours
        self._ranks: set[int] = set()

    def serve(self, rank: int) -> None:
        """Takes care of a rank from now on."""
        if rank not in self._ranks:
            self._ranks.add(rank)
            threading.Thread(target=self._run, args=(rank,), daemon=True).start()

    def sources(self) -> set[str]:
        """Returns the nodes whose replicas belong here."""
        nodes = self._neighbours.nodes
        if nodes is None or not self.num_replicas:
            return set()
        table = holders(nodes.nodes, self.num_replicas)
        return {node for node, held_by in table.items() if nodes.here in held_by}

    def _run(self, rank: int) -> None:
        while True:
            ticket = self._custody.begin(rank, REPLICATE, _SCAN_S)
            if ticket is None:
                continue
            error = ""
            try:
                self._send(ticket, ticket.running[REPLICATE])
            # A peer that is gone costs a replica, never the save or the daemon.
            except Exception as problem:  # noqa: BLE001
                error = str(problem) or type(problem).__name__
                logger.warning("rank %d has no replica: %s", rank, error)
            self._custody.end(ticket, REPLICATE, error)

    def _send(self, ticket: Ticket, progress: Progress) -> None:
        nodes = self._neighbours.nodes
        if nodes is None:
            message = "the job has one node"
            raise DaemonError(message)
        chosen = holders(nodes.nodes, self.num_replicas)[nodes.here]
        errors = []
        for node in nodes.nodes:
            if node.id in chosen:
                try:
                    self._send_to(node, nodes.here, ticket, progress)
                except (OSError, EOFError, DaemonError) as error:
                    errors.append(f"{node.host}:{node.port}: {error}")
        if errors:
            raise DaemonError("; ".join(errors))

    def _send_to(
        self, node: Node, here: str, ticket: Ticket, progress: Progress
    ) -> None:
        generation, arena = ticket.generation, ticket.arena
        record = arena.view(generation.record_at, generation.record_bytes)
        size = generation.image_bytes
        with contextlib.closing(
            connect_to(node.host, node.port, self._neighbours.secret)
        ) as connection:
            answer = connection.ask(
                {
                    "op": "replica",
                    "rank": ticket.rank,
                    "source": here,
                    "sequence": generation.sequence,
                    "record_bytes": len(record),
                    "image_bytes": size,
                }
            )
            if "ok" not in answer:
                raise DaemonError(str(answer.get("refused")))
            sock = connection.socket
            sock.sendall(record)
            at, end = generation.image_at, generation.image_at + size
            while at < end:
                if progress.stop:
                    message = "it was given up"
                    raise DaemonError(message)
                part = min(_PART_BYTES, end - at)
                self.bucket.take(part)
                done = 0
                while done < part:
                    # From memory to the network without a copy in between.
                    done += os.sendfile(sock.fileno(), arena.fd, at + done, part - done)
                at += part
                progress.done += part
            address = arena.address + generation.image_at
            sums = _native.checksums(address, size, 1)
            if "ok" not in connection.ask({"crc32c": sums}):
                message = "it refuses the replica"
                raise DaemonError(message)
