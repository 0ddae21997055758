"""Sources of a rank's save in memory: that of this node, or of another one."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._layout.shard_source import ShardSource
from drivetrain_checkpoint._peers.peer_server import connect_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_checkpoint._arena import Arena, Generation
    from drivetrain_checkpoint._peers.connection import Connection
    from drivetrain_checkpoint._peers.nodes import Node


class MemorySource(ShardSource):
    """A save in the memory of this node.

    Args:
        arena: The memory.
        generation: Where in it the save lies.
    """

    is_local = True

    def __init__(self, arena: Arena, generation: Generation) -> None:
        """Copies nothing."""
        self._arena = arena
        self._generation = generation
        self._at = generation.image_at
        self.where = "the memory of this node"
        self.header_bytes = generation.record["manifest"]["header_bytes"]
        self.size_bytes = generation.image_bytes

    def address(self, start: int) -> int:
        """Returns where bytes of the image lie in this process."""
        return self._arena.address + self._at + start

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns the memory itself."""
        return self._arena.view(self._at + start, size_bytes)

    def is_intact(self) -> bool:
        """Whether a trainer has not begun another save here."""
        return self._arena.has(self._generation)


class PeerSource(ShardSource):
    """A save in the memory of another node.

    Args:
        node: The node.
        secret: The secret of the job.
        manifest: The manifest of the rank, as memory holds it.
    """

    def __init__(self, node: Node, secret: str, manifest: Mapping[str, Any]) -> None:
        """Connects to nobody yet."""
        self._node = node
        self._secret = secret
        self._manifest = manifest
        self._lock = threading.Lock()
        self.where = f"the memory of {node.address}"
        self.header_bytes = manifest["header_bytes"]
        self.size_bytes = manifest["size_bytes"]

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns bytes from the network.

        Raises:
            DaemonError: The node is gone, or the save is not there any more.
        """
        rank = self._manifest["rank"]
        part = {"start": start, "size_bytes": size_bytes}
        about = {"rank": rank, "save_id": self._manifest["save_id"], **part}
        target = memoryview(bytearray(size_bytes))
        try:
            with self._lock:
                answer = self._connection.ask({"op": "fetch", **about})
                if answer.get("size_bytes") == size_bytes:
                    self._connection.receive_into(target)
                    if self._connection.receive()[0]["intact"]:
                        return target
        except (OSError, EOFError) as error:
            answer = {"refused": str(error) or "it hung up"}
        because = answer.get("refused", "the save was overwritten meanwhile")
        message = (
            f"step {self._manifest['step']} of rank {rank} does not come from "
            f"{self._node.address}: {because}"
        )
        raise DaemonError(message)

    @functools.cached_property
    def _connection(self) -> Connection:
        return connect_to(self._node, self._secret)
