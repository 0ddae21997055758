"""The way of each flow through a fabric: the links that hashing picks for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._ecmp import source_ports
from drivetrain_fabric.network._errors import FabricError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drivetrain_fabric.network._clos import Clos, FloatArray, IntArray
    from drivetrain_fabric.network._ecmp import Ecmp, HashArray
    from drivetrain_fabric.network._traffic import Flows

_MOST_FLOWS = 16_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Routes:
    """Flows on links.

    Args:
        links: The links of each flow, of shape (flows, hops); what is left of a row is
            filled with the number of links, which is no link.
        size_bytes: What each flow carries.
    """

    links: IntArray
    size_bytes: FloatArray


def route(clos: Clos, flows: Flows, *, ecmp: Ecmp, num_queue_pairs: int = 1) -> Routes:
    """Returns the way of each queue pair's flow.

    A flow becomes as many as its connection has queue pairs, each with an equal part.
    Switches that know of a failed link hash over those that still lead to the target.

    Args:
        clos: The fabric.
        flows: Flows between network cards of different nodes.
        ecmp: How switches hash; its seed is that of the source ports as well.
        num_queue_pairs: The queue pairs of a connection.

    Raises:
        FabricError: A card is not there, a flow stays in its node, there is no queue
            pair, or no way is left.
    """
    _check(clos, flows, num_queue_pairs)
    pairs = np.tile(np.arange(num_queue_pairs), len(flows))
    source = np.repeat(flows.source, num_queue_pairs)
    target = np.repeat(flows.target, num_queue_pairs)
    ports = source_ports(source, target, pairs, ecmp.seed)
    digests = ecmp.digests(source, target, ports)

    offsets = clos.offsets
    links = np.full((len(source), 2 * len(clos.tiers)), clos.num_links)
    links[:, 0] = source
    links[:, -1] = offsets[1] + target
    one, other = clos.leaf_of(source), clos.leaf_of(target)
    up = one != other
    _climb(clos, ecmp, digests, one, other, up, links)
    size_bytes = np.repeat(flows.size_bytes / num_queue_pairs, num_queue_pairs)
    return Routes(links=links, size_bytes=size_bytes)


def _climb(
    clos: Clos,
    ecmp: Ecmp,
    digests: HashArray,
    one: IntArray,
    other: IntArray,
    up: NDArray[np.bool_],
    links: IntArray,
) -> None:
    """Fills in the links above the leaves, of those flows that leave theirs."""
    offsets, (leaf, spine) = clos.offsets, clos.tiers[:2]
    one, other, digests = one[up], other[up], digests[up]
    alive = _Alive(clos) if clos.failed else None
    ways = None if alive is None else alive.of_leaves(one, other)
    port = _choose(ecmp, digests, one, leaf.uplinks, ways)
    links[up, 1] = offsets[2] + one * leaf.uplinks + port
    links[up, -2] = offsets[3] + other * leaf.uplinks + port
    if len(clos.tiers) == 2:
        return
    leaves_per_pod = clos.racks_per_pod * clos.leaves_per_rack
    pods = one // leaves_per_pod, other // leaves_per_pod
    far = pods[0] != pods[1]
    here, there = (pod[far] * leaf.uplinks + port[far] for pod in pods)
    ways = None if alive is None else alive.of_spines(here, there)
    # Switches of all tiers have numbers of their own, and so seeds of their own.
    switch = clos.num_leaves + here
    port = _choose(ecmp, digests[far], switch, spine.uplinks, ways)
    rows = np.flatnonzero(up)[far]
    links[rows, 2] = offsets[4] + here * spine.uplinks + port
    links[rows, 3] = offsets[5] + there * spine.uplinks + port


def _choose(
    ecmp: Ecmp,
    digests: HashArray,
    switch: IntArray,
    fanout: int,
    ways: NDArray[np.bool_] | None,
) -> IntArray:
    """Returns the port of each flow, among those that `ways` leaves it."""
    if ways is None:
        return ecmp.choose(digests, switch, fanout)
    num = ways.sum(axis=1)
    if (num == 0).any():
        lost = int(switch[np.argmin(num)])
        message = (
            f"the fabric does not connect: links failed, and switch {lost} has no way "
            "left to one it sends to"
        )
        raise FabricError(message)
    rank = ecmp.choose(digests, switch, num)
    port: IntArray = (ways.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
    return port


class _Alive:
    """Which ports up still work, and where they lead."""

    def __init__(self, clos: Clos) -> None:
        leaf, spine = clos.tiers[:2]
        self._clos = clos
        self._leaf = np.ones((clos.num_leaves, leaf.uplinks), bool)
        self._spine = np.ones((clos.num_spines, max(spine.uplinks, 1)), bool)
        for link in clos.failed:
            table = self._leaf if link.tier == 0 else self._spine
            table[link.switch, link.port] = False

    @cached_property
    def _between_pods(self) -> NDArray[np.bool_]:
        """Returns which spines reach their likes, of shape (pod, pod, port)."""
        pods = self._spine.reshape(self._clos.num_pods, -1, self._spine.shape[1])
        return np.stack([(pods & pod).any(axis=2) for pod in pods])

    def of_leaves(self, one: IntArray, other: IntArray) -> NDArray[np.bool_]:
        ways = self._leaf[one] & self._leaf[other]
        if len(self._clos.tiers) == 2:
            return ways
        num = self._clos.racks_per_pod * self._clos.leaves_per_rack
        pods = one // num, other // num
        reached = self._between_pods[pods[0], pods[1]]
        reached[pods[0] == pods[1]] = True
        return ways & reached

    def of_spines(self, one: IntArray, other: IntArray) -> NDArray[np.bool_]:
        return self._spine[one] & self._spine[other]


def _check(clos: Clos, flows: Flows, num_queue_pairs: int) -> None:
    if num_queue_pairs < 1:
        message = f"a connection has one queue pair at least, got {num_queue_pairs}"
        raise FabricError(message)
    if len(flows) * num_queue_pairs > _MOST_FLOWS:
        message = (
            f"{len(flows)} flows of {num_queue_pairs} queue pairs are more than the "
            f"{_MOST_FLOWS} that are simulated"
        )
        raise FabricError(message)
    for nics in (flows.source, flows.target):
        if len(nics) and not 0 <= nics.min() <= nics.max() < clos.num_nics:
            message = (
                f"network cards are 0 to {clos.num_nics - 1}, got {nics.min()} to "
                f"{nics.max()}"
            )
            raise FabricError(message)
    num = clos.nics_per_node
    if (flows.source // num == flows.target // num).any():
        message = (
            "a flow that stays in its node does not reach the fabric: leave it out"
        )
        raise FabricError(message)
