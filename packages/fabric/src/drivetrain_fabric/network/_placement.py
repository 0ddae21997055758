"""Which node of a fabric each node of a job gets, and what that sends up the tiers.

The advice joins nodes that talk most with each other, then such pairs, and so on, so
that what stands together in the order talks most (heavy-edge matching); then it exchanges
pairs of nodes as long as that keeps bytes further down (2-opt). It is never worse than
the nodes sorted by rack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._seed import check_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_fabric.network._clos import Clos, FloatArray, IntArray
    from drivetrain_fabric.network._job import Phase

PLACEMENTS = ("given", "random", "packed", "advised")
_NUM_CANDIDATES = 512
# More than there are nodes: two numbers of nodes make one.
_MANY = 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """How far up bytes go.

    Args:
        total_bytes: All bytes between nodes.
        between_racks_bytes: Those between racks, which go through a spine.
        between_pods_bytes: Those between pods, which go through a core.
    """

    total_bytes: float
    between_racks_bytes: float
    between_pods_bytes: float

    @property
    def share_between_racks(self) -> float:
        """Returns the part of all bytes that leaves its rack."""
        return self.between_racks_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def cost_bytes(self) -> float:
        """Returns what advice makes small: each byte, times the tiers it climbs."""
        return self.between_racks_bytes + self.between_pods_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The order in which nodes are best used.

    Args:
        order: The fabric's node of each node of the job: what to write in a host file.
        before: What crosses racks and pods with the nodes as they were given.
        after: What does with this order.
    """

    order: tuple[int, ...]
    before: Crossing
    after: Crossing

    @property
    def gain(self) -> float:
        """Returns how much less is sent up, from 0 to 1."""
        before = self.before.cost_bytes
        return 1 - self.after.cost_bytes / before if before else 0.0


def place(
    kind: str,
    clos: Clos,
    phases: Sequence[Phase],
    *,
    nodes: Sequence[int],
    seed: int = 0,
) -> IntArray:
    """Returns the fabric's node of each node of a job.

    Args:
        kind: `given`, in the order of `nodes`; `random`; `packed`, sorted by rack; or
            `advised`, by what the job sends.
        clos: The fabric.
        phases: What the job sends.
        nodes: The nodes that the job has got.
        seed: Of the random order.

    Raises:
        FabricError: The kind is not known, the nodes are not there, or the seed is
            negative.
    """
    if kind not in PLACEMENTS:
        message = f"placement must be one of {', '.join(PLACEMENTS)}, got {kind!r}"
        raise FabricError(message)
    check_seed(seed)
    given = _checked(clos, nodes)
    if kind == "random":
        return np.random.default_rng(seed).permutation(given)
    if kind == "packed":
        return np.sort(given)
    if kind == "advised":
        return np.array(advise(clos, phases, nodes=nodes).order)
    return given


def crossing(clos: Clos, phases: Sequence[Phase], order: IntArray) -> Crossing:
    """Returns how far up a job's bytes go.

    Args:
        clos: The fabric.
        phases: What the job sends.
        order: The fabric's node of each node of the job.
    """
    one, other, size_bytes = _pairs(clos, phases)
    return _crossing(clos, order[one], order[other], size_bytes)


def advise(
    clos: Clos,
    phases: Sequence[Phase],
    *,
    nodes: Sequence[int],
    most_exchanges: int = 400,
) -> Advice:
    """Returns the order in which a job best uses the nodes that it has got.

    Args:
        clos: The fabric.
        phases: What the job sends.
        nodes: The nodes, in any order.
        most_exchanges: How many pairs of nodes are exchanged at most.

    Raises:
        FabricError: The nodes are not there.
    """
    given = _checked(clos, nodes)
    traffic = _Traffic(clos, phases, len(given))
    packed = np.sort(given)
    starts = (packed, traffic.joined(packed))
    found = [packed, given]
    found += [traffic.improve(start, most_exchanges) for start in starts]
    best = min(found, key=traffic.cost)
    one, other, size_bytes = traffic.pairs
    before, after = (
        _crossing(clos, order[one], order[other], size_bytes) for order in (given, best)
    )
    return Advice(order=tuple(best.tolist()), before=before, after=after)


def _checked(clos: Clos, nodes: Sequence[int]) -> IntArray:
    given = np.array(nodes, dtype=np.int64)
    if not len(given):
        message = "a job needs one node at least, got none"
        raise FabricError(message)
    if not 0 <= given.min() <= given.max() < clos.num_nodes:
        message = (
            f"nodes are 0 to {clos.num_nodes - 1}, got {given.min()} to {given.max()}"
        )
        raise FabricError(message)
    if len(np.unique(given)) < len(given):
        message = "a node is given twice"
        raise FabricError(message)
    return given


def _pairs(
    clos: Clos, phases: Sequence[Phase]
) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns what nodes of a job send each other, each pair once."""
    num = clos.nics_per_node
    flows = [phase.flows for phase in phases]
    one = np.concatenate([each.source // num for each in flows])
    other = np.concatenate([each.target // num for each in flows])
    size_bytes = np.concatenate([each.size_bytes for each in flows])
    return _summed(one, other, size_bytes)


def _summed(
    one: IntArray, other: IntArray, size_bytes: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns pairs that differ, each once and the smaller first, with their bytes."""
    differ = one != other
    low, high = np.minimum(one, other)[differ], np.maximum(one, other)[differ]
    keys, places = np.unique(low * _MANY + high, return_inverse=True)
    sums = np.zeros(len(keys))
    np.add.at(sums, places, size_bytes[differ])
    return keys // _MANY, keys % _MANY, sums


def _matched(
    one: IntArray, other: IntArray, size_bytes: FloatArray, num: int
) -> IntArray:
    """Returns the new group of each group: those that send each other most are one."""
    partner = list(range(num))
    # Of pairs that send the same, the first ones stand first.
    order = np.lexsort((other, one, -size_bytes))
    for i, j in zip(one[order].tolist(), other[order].tolist(), strict=True):
        if partner[i] == i and partner[j] == j:
            partner[i], partner[j] = j, i
    first = np.minimum(np.arange(num), partner)
    _, place = np.unique(first, return_inverse=True)
    return place.astype(np.int64)


def _crossing(
    clos: Clos, one: IntArray, other: IntArray, size_bytes: FloatArray
) -> Crossing:
    racks = clos.rack_of(one) != clos.rack_of(other)
    pods = clos.pod_of(one) != clos.pod_of(other)
    return Crossing(
        total_bytes=float(size_bytes.sum()),
        between_racks_bytes=float(size_bytes[racks].sum()),
        between_pods_bytes=float(size_bytes[pods].sum()),
    )


class _Traffic:
    """What nodes of a job send each other, by node."""

    def __init__(self, clos: Clos, phases: Sequence[Phase], num_nodes: int) -> None:
        self._clos = clos
        self.pairs = _pairs(clos, phases)
        one, other, size_bytes = self.pairs
        if len(one) and other.max() >= num_nodes:
            message = (
                f"the job sends between {other.max() + 1} nodes, but got {num_nodes}"
            )
            raise FabricError(message)
        ends = np.concatenate([one, other])
        order = np.argsort(ends, kind="stable")
        self._peers = np.concatenate([other, one])[order]
        self._bytes = np.concatenate([size_bytes, size_bytes])[order]
        self._first = np.searchsorted(ends[order], np.arange(num_nodes + 1))

    def cost(self, order: IntArray) -> float:
        one, other, size_bytes = self.pairs
        return _crossing(self._clos, order[one], order[other], size_bytes).cost_bytes

    def _of(self, node: int) -> tuple[IntArray, FloatArray]:
        part = slice(self._first[node], self._first[node + 1])
        return self._peers[part], self._bytes[part]

    def joined(self, nodes: IntArray) -> IntArray:
        """Returns an order in which groups that talk most stand together.

        Args:
            nodes: The fabric's nodes, sorted.
        """
        groups = [[i] for i in range(len(nodes))]
        one, other, size_bytes = self.pairs
        while len(size_bytes):
            place = _matched(one, other, size_bytes, len(groups))
            merged: list[list[int]] = [[] for _ in range(int(place.max()) + 1)]
            for group, at in zip(groups, place.tolist(), strict=True):
                merged[at] += group
            groups = merged
            one, other, size_bytes = _summed(place[one], place[other], size_bytes)
        order = np.empty(len(nodes), np.int64)
        order[np.concatenate(groups)] = nodes
        return order

    def improve(self, order: IntArray, most_exchanges: int) -> IntArray:
        """Returns an order in which no exchange of two nodes is better, or nearly."""
        order = order.copy()
        racks, where = np.unique(self._clos.rack_of(order), return_inverse=True)
        pods = racks // self._clos.racks_per_pod
        far = (racks[:, None] != racks).astype(float) + (pods[:, None] != pods)
        # What a node's bytes climb if it stood in each of the racks.
        costs = np.zeros((len(order), len(racks)))
        one, other, size_bytes = self.pairs
        np.add.at(costs, one, size_bytes[:, None] * far[where[other]])
        np.add.at(costs, other, size_bytes[:, None] * far[where[one]])
        least = 1e-9 * max(float(size_bytes.sum()), 1.0)
        for _ in range(most_exchanges):
            i, j, gain = self._best_exchange(costs, where, far)
            if gain <= least:
                break
            order[[i, j]] = order[[j, i]]
            for node, (old, new) in ((i, where[[i, j]]), (j, where[[j, i]])):
                peers, sent = self._of(node)
                costs[peers] += sent[:, None] * (far[new] - far[old])
            where[[i, j]] = where[[j, i]]
        return order

    def _best_exchange(
        self, costs: FloatArray, where: IntArray, far: FloatArray
    ) -> tuple[int, int, float]:
        """Returns the pair to exchange, and by how much less its bytes climb then."""
        own = costs[np.arange(len(where)), where]
        # Those whose bytes climb most have most to win: only they are tried with all.
        most = np.argsort(-(own - costs.min(axis=1)), kind="stable")[:_NUM_CANDIDATES]
        gains = own[most, None] + own - costs[most][:, where]
        gains -= costs[:, where[most]].T
        row_of = np.full(len(where), -1)
        row_of[most] = np.arange(len(most))
        # What the two send each other climbs as before.
        one, other, size_bytes = self.pairs
        kept = 2 * size_bytes * far[where[one], where[other]]
        for a, b in ((one, other), (other, one)):
            rows = row_of[a]
            tried = rows >= 0
            gains[rows[tried], b[tried]] -= kept[tried]
        best = int(gains.argmax())
        row, j = divmod(best, len(where))
        return int(most[row]), j, float(gains[row, j])
