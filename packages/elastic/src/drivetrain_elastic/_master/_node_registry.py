"""Registry of nodes: which are there, and the streams to their agents."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_elastic._master._agent_stream import AgentStream
from drivetrain_elastic._master._node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drivetrain_elastic.decisions.membership import MembershipState
    from drivetrain_elastic.protocol import messages as pb


class DuplicateNodeError(ProgramError):
    """Another agent has the same node's name."""


class NodeRegistry:
    """Keeps which nodes there are, and reaches them; used from one event loop."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        # Of nodes that are gone as well.
        self._machines: dict[str, str] = {}

    def __iter__(self) -> Iterator[Node]:
        """Yields the nodes of this moment."""
        return iter(list(self._nodes.values()))

    def get(self, name: str) -> Node | None:
        """Returns a node; None if it is not there."""
        return self._nodes.get(name)

    def machine_of(self, name: str) -> str:
        """Returns the machine of a node, which may be gone."""
        return self._machines.get(name, name)

    def present(self) -> list[str]:
        """Returns the names of the nodes that can be told something."""
        return [node.name for node in self if node.stream is not None]

    def is_coming(self, state: MembershipState) -> bool:
        """Whether a node is there, to stay, whose workers have not come yet."""
        busy = {one.node for one in state.workers.values()}
        there = [node for node in self if node.stream is not None and not node.leave]
        return state.admitted is None and any(one.name not in busy for one in there)

    def place_of(self, name: str, nodes: Iterable[str]) -> int:
        """Returns which of the nodes that are there one is, in the order of all."""
        return [one for one in nodes if one in self._nodes].index(name)

    def expect(self, name: str) -> None:
        """Takes a node for there whose agent has not come yet."""
        self._nodes.setdefault(name, Node(name=name, heard_s=time.monotonic()))

    def open(self, hello: pb.Hello) -> tuple[Node, bool]:
        """Opens a stream to an agent; returns its node, and whether it is a new agent.

        Raises:
            DuplicateNodeError: Another agent has the name, and a stream.
        """
        node = self._nodes.setdefault(hello.node, Node(name=hello.node))
        if node.stream is not None:
            if (node.host, node.pid, node.agent) != (
                hello.host,
                hello.pid,
                hello.agent,
            ):
                message = (
                    f"node {node.name!r} is there already: process {node.pid} on "
                    f"{node.host}; give each agent a name of its own"
                )
                raise DuplicateNodeError(message)
            node.stream.close()
        is_new = node.take_agent(hello)
        self._machines[node.name] = node.machine
        node.stream, node.heard_s = AgentStream(), time.monotonic()
        return node, is_new

    def remove(self, node: Node) -> None:
        """Forgets a node, and ends the stream to it."""
        self._nodes.pop(node.name, None)
        if node.stream is not None:
            node.stream.close()
            node.stream = None

    def tell(self, name: str, message: Any) -> None:
        """Tells one node something, if it can be reached."""
        node = self._nodes.get(name)
        if node is not None and node.stream is not None:
            node.stream.send(message)

    def tell_all(self, message: Any) -> None:
        """Tells all nodes something that can be reached."""
        for name in self.present():
            self.tell(name, message)

    def heard_s(self) -> dict[str, float]:
        """Returns when each node was last heard of."""
        return {node.name: node.heard_s for node in self}

    def forgive(self, silent_s: float) -> None:
        """Lets no node pay for a time in which nobody listened."""
        for node in self:
            node.heard_s += silent_s
