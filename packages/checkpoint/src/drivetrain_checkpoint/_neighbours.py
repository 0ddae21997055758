"""A daemon's way to the daemons of the other nodes of its job."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._peers import connect_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._nodes import Node, Nodes
    from drivetrain_checkpoint._wire import Connection

__all__ = ["Neighbours"]

logger = logging.getLogger(__name__)


class Neighbours:
    """Tells other nodes what happened; thread-safe.

    What is told to one node is told in order, by a thread of its own, so that a node
    that does not answer holds up nobody. What a node is not told it finds on storage.
    """

    def __init__(self) -> None:
        """Knows no node yet."""
        self.nodes: Nodes | None = None
        self.absent_here: Callable[[str, str, set[int]], set[int]] = _nobody
        self.secret = ""
        self._queues: dict[str, queue.SimpleQueue[tuple[Node, dict[str, Any]]]] = {}
        self._lock = threading.Lock()

    def join(self, nodes: Nodes, secret: str) -> None:
        """Takes over the table of the nodes of the job."""
        with self._lock:
            self.nodes, self.secret = nodes, secret

    def absent(self, save_id: str, run: str, ranks: set[int]) -> set[int]:
        """Returns those ranks that will never save something, as far as can be known.

        Args:
            save_id: The save.
            run: The run of the job that it belongs to.
            ranks: The ranks that are waited for.
        """
        found = self.absent_here(save_id, run, ranks)
        for node in self.nodes.others if self.nodes else ():
            mine = ranks.intersection(node.ranks)
            if not mine:
                continue
            question = {"op": "absent", "save_id": save_id, "run": run}
            with (
                contextlib.suppress(OSError, EOFError),
                contextlib.closing(
                    connect_to(node.host, node.port, self.secret)
                ) as connection,
            ):
                answer = connection.ask({**question, "ranks": sorted(mine)})
                found |= set(answer.get("absent", ()))
        return found

    def tell_committer(self, message: dict[str, Any]) -> None:
        """Tells the node of the first rank something, unless it is this one."""
        node = self.nodes.of_rank(0) if self.nodes else None
        if node is not None and self.nodes is not None and node.id != self.nodes.here:
            self._tell(node, message)

    def tell_all(self, message: dict[str, Any]) -> None:
        """Tells all other nodes something."""
        for node in self.nodes.others if self.nodes else ():
            self._tell(node, message)

    def _tell(self, node: Node, message: dict[str, Any]) -> None:
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
            # long said nothing.
            for is_last in (False, True):
                try:
                    connection = connection or connect_to(
                        node.host, node.port, self.secret
                    )
                    connection.ask(message)
                    break
                except (OSError, EOFError) as error:
                    if connection is not None:
                        connection.close()
                        connection = None
                    if is_last:
                        place = f"{node.host}:{node.port}"
                        logger.warning("%s was not told: %s", place, error)


def _nobody(_save_id: str, _run: str, _ranks: set[int]) -> set[int]:
    return set()
