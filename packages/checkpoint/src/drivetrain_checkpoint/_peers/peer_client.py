"""Client of the peers' daemons: tells other nodes of a job what became of its saves."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._peers.peer_server import connect_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._peers.connection import Connection
    from drivetrain_checkpoint._peers.nodes import Node, NodeTable

logger = logging.getLogger(__name__)


class PeerClient:
    """Sends messages to the daemons of other nodes; thread-safe.

    The messages to one node are sent in order, by a thread of its own, so that a node
    that does not answer holds up no other. What does not reach a node it finds on
    storage.
    """

    def __init__(self) -> None:
        """Knows no node yet."""
        self.nodes: NodeTable | None = None
        self.absent_here: Callable[[str, str, set[int]], set[int]] = lambda *_: set()
        self._secret = ""
        self._queues: dict[str, queue.SimpleQueue[tuple[Node, dict[str, Any]]]] = {}
        self._lock = threading.Lock()

    def join(self, nodes: NodeTable, secret: str) -> None:
        """Takes over the table of the nodes of the job."""
        with self._lock:
            self.nodes, self._secret = nodes, secret

    def connect(self, node: Node) -> Connection:
        """Returns a new connection to the daemon of a node.

        Raises:
            OSError: It is not reached, or it is another job's.
        """
        return connect_to(node, self._secret)

    def absent(self, save_id: str, run: str, ranks: set[int]) -> set[int]:
        """Returns those ranks that will never save something, as far as can be known.

        Args:
            save_id: The save.
            run: The run of the job that it belongs to.
            ranks: The ranks that are waited for.
        """
        found = self.absent_here(save_id, run, ranks)
        question = {"op": "absent", "save_id": save_id, "run": run}
        for node in self._others():
            mine = ranks.intersection(node.ranks)
            if not mine:
                continue
            with (
                contextlib.suppress(OSError, EOFError),
                contextlib.closing(self.connect(node)) as connection,
            ):
                answer = connection.ask({**question, "ranks": sorted(mine)})
                found |= mine.intersection(answer.get("absent", ()))
        return found

    def notify_committer(self, message: dict[str, Any]) -> None:
        """Sends a message to the node of the first rank, unless it is this one."""
        for node in self._others():
            if 0 in node.ranks:
                self._notify(node, message)

    def notify_all(self, message: dict[str, Any]) -> None:
        """Sends a message to all other nodes."""
        for node in self._others():
            self._notify(node, message)

    def _others(self) -> tuple[Node, ...]:
        return self.nodes.others if self.nodes else ()

    def _notify(self, node: Node, message: dict[str, Any]) -> None:
        with self._lock:
            waiting = self._queues.get(node.id)
            if waiting is None:
                waiting = self._queues[node.id] = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(waiting,), daemon=True).start()
        waiting.put((node, message))

    def _run(self, waiting: queue.SimpleQueue[tuple[Node, dict[str, Any]]]) -> None:
        connection: Connection | None = None
        while True:
            node, message = waiting.get()
            # The second time with a new connection: the other end closes one that has
            # long been idle.
            for is_last in (False, True):
                try:
                    connection = connection or self.connect(node)
                    connection.ask(message)
                    break
                except (OSError, EOFError) as error:
                    if connection is not None:
                        connection.close()
                        connection = None
                    if is_last:
                        logger.warning("%s was not told: %s", node.address, error)
