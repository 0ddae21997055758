"""Replicator: sends saves to the memory of the nodes that hold their replicas."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._daemon.pending_save import REPLICATE
from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._peers.nodes import replica_holders

if TYPE_CHECKING:
    from drivetrain_checkpoint._daemon.pending_save import PendingSave
    from drivetrain_checkpoint._daemon.save_queue import SaveQueue
    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._peers.nodes import Node
    from drivetrain_checkpoint._peers.peer_client import PeerClient

logger = logging.getLogger(__name__)

_SCAN_S = 0.25
_PART_BYTES = 1 << 20


class RateLimiter:
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


class Replicator:
    """Sends what ranks publish to the nodes that hold their replicas.

    Args:
        queue: The saves in memory.
        peers: The other nodes.

    Attributes:
        num_replicas: How many other nodes hold each save.
        rate: How fast all of them are sent together.
    """

    def __init__(self, queue: SaveQueue, peers: PeerClient) -> None:
        """Sends nothing yet."""
        self.num_replicas = 0
        self.rate = RateLimiter(None)
        self._queue = queue
        self._peers = peers
        self._ranks: set[int] = set()

    def serve(self, rank: int) -> None:
        """Takes care of a rank from now on."""
        if rank not in self._ranks:
            self._ranks.add(rank)
            threading.Thread(target=self._run, args=(rank,), daemon=True).start()

    def sources(self) -> set[str]:
        """Returns the nodes whose replicas belong here."""
        nodes = self._peers.nodes
        if nodes is None or not self.num_replicas:
            return set()
        table = replica_holders(nodes.nodes, self.num_replicas)
        return {node for node, held_by in table.items() if nodes.here in held_by}

    def _run(self, rank: int) -> None:
        while True:
            pending = self._queue.begin(rank, REPLICATE, _SCAN_S)
            if pending is None:
                continue
            error = ""
            try:
                self._send(pending, pending.running[REPLICATE])
            # A peer that is gone costs a replica, never the save or the daemon.
            except Exception as problem:  # noqa: BLE001
                error = str(problem) or type(problem).__name__
                logger.warning("rank %d has no replica: %s", rank, error)
            self._queue.end(pending, REPLICATE, error)

    def _send(self, pending: PendingSave, progress: Progress) -> None:
        nodes = self._peers.nodes
        if nodes is None:
            message = "the job has one node"
            raise DaemonError(message)
        chosen = replica_holders(nodes.nodes, self.num_replicas)[nodes.here]
        errors = []
        for node in nodes.nodes:
            if node.id in chosen:
                try:
                    self._send_to(node, nodes.here, pending, progress)
                except (OSError, EOFError, DaemonError) as error:
                    errors.append(f"{node.address}: {error}")
        if errors:
            raise DaemonError("; ".join(errors))

    def _send_to(
        self, node: Node, here: str, pending: PendingSave, progress: Progress
    ) -> None:
        generation, arena = pending.generation, pending.arena
        record = arena.view(generation.record_at, generation.record_bytes)
        size = generation.image_bytes
        with contextlib.closing(self._peers.connect(node)) as connection:
            answer = connection.ask(
                {
                    "op": "replica",
                    "rank": pending.rank,
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
                self.rate.take(part)
                done = 0
                while done < part:
                    # From memory to the network without a copy in between.
                    done += os.sendfile(sock.fileno(), arena.fd, at + done, part - done)
                at += part
                progress.done += part
            sums = _native.checksums(arena.view(generation.image_at, size), 1)
            if "ok" not in connection.ask({"crc32c": sums}):
                message = "it refuses the replica"
                raise DaemonError(message)
