"""Node table of a job, and the placement of replicas across failure domains."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._fields import are_counts, check_fields, is_count, is_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = {
    **dict.fromkeys(("id", "host", "domain"), is_name),
    "port": lambda value: is_count(value) and value < 1 << 16,
    "ranks": are_counts,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node of a job: one daemon.

    Args:
        id: What no other daemon is called.
        host: Where its daemon listens.
        port: On which port.
        domain: What fails together has the same one: a rack, a switch, a power supply.
        ranks: The ranks that run there.
    """

    id: str
    host: str
    port: int
    domain: str
    ranks: tuple[int, ...]

    @property
    def address(self) -> str:
        """Where its daemon listens, as `host:port`."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeTable:
    """All nodes of a job, in the order of their lowest rank.

    Args:
        here: The id of this node.
        nodes: The nodes.
    """

    here: str
    nodes: tuple[Node, ...]

    def to_plain(self) -> dict[str, Any]:
        """Returns the table as lists and numbers."""
        return {"here": self.here, "nodes": [asdict(node) for node in self.nodes]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> NodeTable:
        """Returns the table that `to_plain` wrote.

        Raises:
            ValueError: It is none.
        """
        try:
            for node in plain["nodes"]:
                check_fields(node, _FIELDS)
            nodes = [Node(**{**n, "ranks": tuple(n["ranks"])}) for n in plain["nodes"]]
            here = {node.id: node for node in nodes}[plain["here"]]
        except (AttributeError, KeyError, TypeError) as error:
            message = f"not a table of nodes: {error}"
            raise ValueError(message) from error
        return cls(here.id, tuple(nodes))

    @property
    def others(self) -> tuple[Node, ...]:
        """The nodes but for this one."""
        return tuple(node for node in self.nodes if node.id != self.here)


def replica_holders(
    nodes: Sequence[Node], num_replicas: int
) -> dict[str, tuple[str, ...]]:
    """Returns which nodes hold the replicas of each node's memory.

    Nodes stand in a ring in which neighbours are of different failure domains as far
    as that goes. Each node's replicas go to the nodes after it: first to one in every
    other domain, then to what is left. Every node holds as many as it gives where the
    domains are of one size.

    Args:
        nodes: All nodes.
        num_replicas: How many nodes beside its own hold each node's memory.

    Raises:
        ValueError: There are not as many other nodes.

    Example:
        >>> def node(name, rack):
        ...     return Node(id=name, host="", port=0, domain=rack, ranks=())
        >>> nodes = [node("a", "r1"), node("b", "r1"), node("c", "r2"), node("d", "r2")]
        >>> replica_holders(nodes, 1)
        {'a': ('c',), 'c': ('b',), 'b': ('d',), 'd': ('a',)}
    """
    if num_replicas >= len(nodes) and num_replicas:
        message = f"{num_replicas} replicas need more than {len(nodes)} nodes"
        raise ValueError(message)
    ring = _interleaved(nodes)
    found = {}
    for at, node in enumerate(ring):
        after = [*ring[at + 1 :], *ring[:at]]
        seen = {node.domain}
        first: list[str] = []
        later: list[str] = []
        for other in after:
            (later if other.domain in seen else first).append(other.id)
            seen.add(other.domain)
        found[node.id] = tuple([*first, *later][:num_replicas])
    return found


def _interleaved(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes with one of each domain after the other."""
    domains: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        domains[node.domain].append(node)
    queues = sorted(domains.values(), key=len, reverse=True)
    return [node for turn in zip_longest(*queues) for node in turn if node]
