"""The flows of collectives, and of a job that is parallel in three ways.

Collectives run in groups of members, which are network cards: an array of shape
(groups, members). All flows of a collective run at the same time, each with all that it
carries until the end: a ring moves in steps, but each of its links is busy in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_fabric.network._clos import FloatArray, IntArray

_MOST_FLOWS = 4_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Flows:
    """Flows that run at the same time.

    Args:
        source: The network cards that send.
        target: The network cards that receive.
        size_bytes: What each carries.
        num_steps: How many messages wait for each other, one after another.
    """

    source: IntArray
    target: IntArray
    size_bytes: FloatArray
    num_steps: int = 0

    def __post_init__(self) -> None:
        """Checks that there is one size for each flow, and none is negative."""
        lengths = [len(each) for each in (self.source, self.target, self.size_bytes)]
        if len(set(lengths)) > 1:
            message = f"flows have as many sources as targets and sizes, got {lengths}"
            raise FabricError(message)
        if not (np.isfinite(self.size_bytes) & (self.size_bytes >= 0)).all():
            message = (
                f"sizes of flows must be at least zero, got {self.size_bytes.min():g} "
                f"to {self.size_bytes.max():g}"
            )
            raise FabricError(message)

    def __len__(self) -> int:
        """Returns the number of flows."""
        return len(self.source)

    @classmethod
    def join(cls, parts: Sequence[Flows]) -> Flows:
        """Returns the flows of several collectives that run at the same time.

        Args:
            parts: The collectives.
        """
        return cls(
            source=np.concatenate([part.source for part in parts]),
            target=np.concatenate([part.target for part in parts]),
            size_bytes=np.concatenate([part.size_bytes for part in parts]),
            num_steps=max(part.num_steps for part in parts),
        )

    def placed(self, order: IntArray, nics_per_node: int) -> Flows:
        """Returns the flows with the nodes of a job on those of a fabric.

        What stays in a node is left out: it does not reach the fabric.

        Args:
            order: The fabric's node of each node of the job.
            nics_per_node: How many network cards a node has.
        """
        nodes = self.source // nics_per_node, self.target // nics_per_node
        leaves = nodes[0] != nodes[1]
        ends = (
            order[node[leaves]] * nics_per_node + nics[leaves] % nics_per_node
            for node, nics in zip(nodes, (self.source, self.target), strict=True)
        )
        source, target = ends
        return Flows(
            source=source,
            target=target,
            size_bytes=self.size_bytes[leaves],
            num_steps=self.num_steps,
        )


def channels(num_nodes: int, nics_per_node: int) -> IntArray:
    """Returns the members of one collective over all nodes in each channel.

    Channel `k` goes through card `k` of every node, as a library with one channel a
    card does; inside a node it passes from device to device.

    Args:
        num_nodes: The nodes.
        nics_per_node: The channels.

    Example:
        >>> channels(3, 2)
        array([[0, 2, 4],
               [1, 3, 5]])
    """
    if num_nodes < 1 or nics_per_node < 1:
        message = f"there must be one node at least, got {num_nodes}"
        raise FabricError(message)
    nics = np.arange(num_nodes * nics_per_node).reshape(num_nodes, nics_per_node)
    return nics.T


def all_reduce(
    members: IntArray, size_bytes: float, *, num_ranks: int | None = None
) -> Flows:
    """Returns the flows of a ring all-reduce.

    Args:
        members: The groups, in the order of their rings.
        size_bytes: The vector of one group.
        num_ranks: How many ranks a ring goes through, those that share a node
            included; by default one for each member.

    Raises:
        FabricError: There are no members, or the size is negative.

    Example:
        >>> all_reduce(channels(4, 1), 100).size_bytes
        array([150., 150., 150., 150.])
    """
    return _ring(members, size_bytes, num_ranks, turns=2)


def reduce_scatter(
    members: IntArray, size_bytes: float, *, num_ranks: int | None = None
) -> Flows:
    """Returns the flows of a ring reduce-scatter, with the arguments of `all_reduce`."""
    return _ring(members, size_bytes, num_ranks, turns=1)


def all_gather(
    members: IntArray, size_bytes: float, *, num_ranks: int | None = None
) -> Flows:
    """Returns the flows of a ring all-gather, with the arguments of `all_reduce`.

    They are those of a reduce-scatter; the size is that of what each has at the end.
    """
    return _ring(members, size_bytes, num_ranks, turns=1)


def tree_all_reduce(members: IntArray, size_bytes: float) -> Flows:
    """Returns the flows of an all-reduce over two binary trees, half the vector each.

    A member that has children in one tree is a leaf of the other, or nearly: so nobody
    sends much more than the vector.

    Args:
        members: The groups.
        size_bytes: The vector of one group.

    Raises:
        FabricError: There are no members, or the size is negative.

    Example:
        >>> flows = tree_all_reduce(channels(4, 1), 100)
        >>> np.bincount(flows.source, flows.size_bytes)
        array([100., 200., 200., 100.])
    """
    num = _num_members(members, size_bytes)
    child = np.arange(1, num)
    low = child & -child
    parent = (child ^ low) | (low << 1)
    parent = np.where(parent < num, parent, child ^ low)
    parts = []
    for tree in (_same, _turned if num % 2 == 0 else _shifted):
        below = members[:, tree(child, num)].ravel()
        above = members[:, tree(parent, num)].ravel()
        half = np.full(len(below), size_bytes / 2)
        steps = 2 * math.ceil(math.log2(num)) if num > 1 else 0
        parts += [
            Flows(source=below, target=above, size_bytes=half, num_steps=steps),
            Flows(source=above, target=below, size_bytes=half, num_steps=steps),
        ]
    return Flows.join(parts)


def all_to_all(members: IntArray, size_bytes: float) -> Flows:
    """Returns the flows of an all-to-all, in which each sends to each other.

    Args:
        members: The groups.
        size_bytes: What one member has; each other member gets an equal part.

    Raises:
        FabricError: There are no members, the size is negative, or there would be too
            many flows.

    Example:
        >>> len(all_to_all(channels(4, 1), 100))
        12
    """
    num = _num_members(members, size_bytes)
    if members.size * (num - 1) > _MOST_FLOWS:
        message = (
            f"an all-to-all of {num} members in each of {len(members)} groups has "
            f"{members.size * (num - 1)} flows, more than the {_MOST_FLOWS} that are "
            "simulated: take smaller groups"
        )
        raise FabricError(message)
    one, other = np.nonzero(~np.eye(num, dtype=bool))
    source, target = members[:, one].ravel(), members[:, other].ravel()
    part = np.full(len(source), size_bytes / num)
    return Flows(source=source, target=target, size_bytes=part, num_steps=1)


def send(source: IntArray, target: IntArray, size_bytes: float) -> Flows:
    """Returns flows from cards to others, such as those between pipeline stages.

    Args:
        source: The network cards that send.
        target: The network cards that receive.
        size_bytes: What each sends.

    Raises:
        FabricError: There are not as many sources as targets, or the size is negative.
    """
    sizes = np.full(len(source), float(size_bytes))
    return Flows(source=source, target=target, size_bytes=sizes, num_steps=1)


def _ring(
    members: IntArray, size_bytes: float, num_ranks: int | None, turns: int
) -> Flows:
    num = _num_members(members, size_bytes)
    ranks = num if num_ranks is None else num_ranks
    if ranks < num:
        message = f"a ring of {num} members goes through {num} ranks at least"
        raise FabricError(message)
    if num == 1:
        members = members[:0]
    source, target = members.ravel(), np.roll(members, -1, axis=1).ravel()
    sizes = np.full(len(source), turns * (ranks - 1) / ranks * size_bytes)
    steps = turns * (num - 1)
    return Flows(source=source, target=target, size_bytes=sizes, num_steps=steps)


def _num_members(members: IntArray, size_bytes: float) -> int:
    if members.ndim != 2 or members.size == 0:
        message = (
            "members are an array of groups and their members, one at least; got the "
            f"shape {members.shape}"
        )
        raise FabricError(message)
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        message = f"size_bytes must be at least zero, got {size_bytes:g}"
        raise FabricError(message)
    return int(members.shape[1])


def _same(position: IntArray, num: int) -> IntArray:  # noqa: ARG001
    return position


def _turned(position: IntArray, num: int) -> IntArray:
    return num - 1 - position


def _shifted(position: IntArray, num: int) -> IntArray:
    return (position + 1) % num
