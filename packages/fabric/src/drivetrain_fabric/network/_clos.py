"""Folded Clos networks of two or three tiers: their switches, ports and links.

Tier 0 are the leaves, the switches of a rack, tier 1 the spines (of a pod, where there
are three tiers), tier 2 the cores. Port `u` up of every leaf of a pod goes to spine `u`
of the pod; port `v` up of spine `u` of every pod goes to core `v` of plane `u`. So all
switches of a tier see all below, and the way down from any of them is unique.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.int64]
    FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """Switches that are alike.

    Args:
        downlinks: How many ports down one has.
        uplinks: How many ports up one has; 0 at the top.
        uplink_bits_per_s: What a port up sends at most, in one direction.
    """

    downlinks: int
    uplinks: int = 0
    uplink_bits_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedLink:
    """A cable that carries nothing, in both directions.

    Args:
        tier: The tier of its lower switch: 0 for a leaf, 1 for a spine.
        switch: The number of that switch in its tier.
        port: The port up that it is in.
    """

    tier: int
    switch: int
    port: int


@dataclass(frozen=True, kw_only=True)
class Clos:
    """A fabric: nodes under leaves, under spines, under cores.

    Links have numbers: those from network cards up, to cards down, from leaves up, to
    leaves down, from spines up, to spines down. Card `k` of node `n` is number
    `n * nics_per_node + k`.

    Args:
        num_nodes: How many nodes hang on it.
        nics_per_node: How many network cards a node has.
        nic_bits_per_s: What a card sends at most, in one direction.
        rails: Whether card `k` of a node hangs on leaf `k` of its rack; else all cards
            of a node hang on one leaf.
        tiers: The tiers from the leaves up, two or three.
        failed: Cables that carry nothing.
        latency_s: The time that a small message takes from node to node.

    Raises:
        FabricError: The ports do not suffice, or a number makes no sense.

    Example:
        >>> leaf = Tier(downlinks=64, uplinks=32, uplink_bits_per_s=400e9)
        >>> clos = Clos(num_nodes=128, nic_bits_per_s=200e9,
        ...             tiers=(leaf, Tier(downlinks=64)))
        >>> clos.num_leaves, clos.num_spines, clos.oversubscription
        (16, 32, 1.0)
    """

    num_nodes: int
    nics_per_node: int = 8
    nic_bits_per_s: float
    rails: bool = True
    tiers: tuple[Tier, ...]
    failed: tuple[FailedLink, ...] = ()
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Checks that the network connects all nodes."""
        _check_numbers(self)
        _check_ports(self)
        for link in self.failed:
            _check_failed(self, link)

    @property
    def num_nics(self) -> int:
        """Returns the number of network cards of all nodes."""
        return self.num_nodes * self.nics_per_node

    @property
    def leaves_per_rack(self) -> int:
        """Returns how many leaves the nodes of one rack hang on."""
        return self.nics_per_node if self.rails else 1

    @property
    def nodes_per_rack(self) -> int:
        """Returns how many nodes share their leaves."""
        ports = 1 if self.rails else self.nics_per_node
        return self.tiers[0].downlinks // ports

    @property
    def num_racks(self) -> int:
        """Returns how many racks there are; a rack is all nodes that share leaves."""
        return math.ceil(self.num_nodes / self.nodes_per_rack)

    @property
    def racks_per_pod(self) -> int:
        """Returns how many racks share their spines."""
        if len(self.tiers) == 2:
            return self.num_racks
        return self.tiers[1].downlinks // self.leaves_per_rack

    @property
    def num_pods(self) -> int:
        """Returns how many pods there are; 1 where there are two tiers."""
        return math.ceil(self.num_racks / self.racks_per_pod)

    @property
    def num_leaves(self) -> int:
        """Returns the number of leaves."""
        return self.num_racks * self.leaves_per_rack

    @property
    def num_spines(self) -> int:
        """Returns the number of spines of all pods."""
        return self.num_pods * self.tiers[0].uplinks

    @property
    def oversubscription(self) -> float:
        """Returns how much faster the ports down of a leaf are than its ports up."""
        leaf = self.tiers[0]
        down = leaf.downlinks * self.nic_bits_per_s
        return down / (leaf.uplinks * leaf.uplink_bits_per_s)

    @property
    def uplink_ratio(self) -> float:
        """Returns how many cards at full speed one port up of a leaf carries."""
        return self.tiers[0].uplink_bits_per_s / self.nic_bits_per_s

    @cached_property
    def offsets(self) -> tuple[int, int, int, int, int, int, int]:
        """Returns the first link of each kind, and the number of all links."""
        leaf = self.num_leaves * self.tiers[0].uplinks
        spine = self.num_spines * self.tiers[1].uplinks
        sizes = (self.num_nics, self.num_nics, leaf, leaf, spine, spine)
        first = np.cumsum((0, *sizes))
        return tuple(int(n) for n in first)  # type: ignore[return-value]

    @property
    def num_links(self) -> int:
        """Returns the number of links, each direction of a cable by itself."""
        return self.offsets[-1]

    @cached_property
    def capacity_bits_per_s(self) -> FloatArray:
        """Returns what each link carries."""
        leaf, spine = self.tiers[0], self.tiers[1]
        offsets = self.offsets
        capacity = np.empty(self.num_links)
        capacity[: offsets[2]] = self.nic_bits_per_s
        capacity[offsets[2] : offsets[4]] = leaf.uplink_bits_per_s
        capacity[offsets[4] :] = spine.uplink_bits_per_s
        return capacity

    def rack_of(self, nodes: IntArray) -> IntArray:
        """Returns the racks of nodes."""
        return nodes // self.nodes_per_rack

    def pod_of(self, nodes: IntArray) -> IntArray:
        """Returns the pods of nodes."""
        return self.rack_of(nodes) // self.racks_per_pod

    def leaf_of(self, nics: IntArray) -> IntArray:
        """Returns the leaves of network cards."""
        racks = self.rack_of(nics // self.nics_per_node)
        if not self.rails:
            return racks
        return racks * self.nics_per_node + nics % self.nics_per_node


def without_split(clos: Clos) -> Clos:
    """Returns the same fabric with ports up that are as fast as those down.

    Each port up becomes as many slower ones as it carries cards, so that all tiers keep
    their capacity: what changes is how flows collide.

    Args:
        clos: A fabric whose ports up are a whole number of times as fast as a card.

    Raises:
        FabricError: They are not.

    Example:
        >>> leaf = Tier(downlinks=64, uplinks=32, uplink_bits_per_s=400e9)
        >>> clos = Clos(num_nodes=128, nic_bits_per_s=200e9,
        ...             tiers=(leaf, Tier(downlinks=64)))
        >>> without_split(clos).tiers[0].uplinks
        64
    """
    factor = round(clos.uplink_ratio)
    if factor < 1 or not math.isclose(factor, clos.uplink_ratio):
        message = (
            "ports up must be a whole number of times as fast as a network card to be "
            f"compared with slower ones; they are {clos.uplink_ratio:g} times as fast"
        )
        raise FabricError(message)
    speed = clos.nic_bits_per_s
    leaf, spine = clos.tiers[0], clos.tiers[1]
    leaf = replace(leaf, uplinks=leaf.uplinks * factor, uplink_bits_per_s=speed)
    if spine.uplinks:
        # There are `factor` times as many spines, so each may be slower by it.
        speed = spine.uplink_bits_per_s / factor
        spine = replace(spine, uplink_bits_per_s=speed)
    failed = tuple(part for link in clos.failed for part in _parts_of(link, factor))
    return replace(clos, tiers=(leaf, spine, *clos.tiers[2:]), failed=failed)


def _parts_of(link: FailedLink, factor: int) -> list[FailedLink]:
    """Returns the slower links that carry together what one carried."""
    if link.tier == 0:
        first = link.port * factor
        return [replace(link, port=first + i) for i in range(factor)]
    # Spine `u` of a pod became as many slower ones, from `u * factor` on.
    return [replace(link, switch=link.switch * factor + i) for i in range(factor)]


def _check_numbers(clos: Clos) -> None:
    if len(clos.tiers) not in (2, 3):
        message = f"a fabric has two or three tiers, got {len(clos.tiers)}"
        raise FabricError(message)
    positive = {
        "num_nodes": clos.num_nodes,
        "nics_per_node": clos.nics_per_node,
        "nic_bits_per_s": clos.nic_bits_per_s,
    }
    for i, tier in enumerate(clos.tiers):
        positive[f"tiers[{i}].downlinks"] = tier.downlinks
        if i < len(clos.tiers) - 1:
            positive[f"tiers[{i}].uplinks"] = tier.uplinks
            positive[f"tiers[{i}].uplink_bits_per_s"] = tier.uplink_bits_per_s
    for name, value in positive.items():
        if not (math.isfinite(value) and value > 0):
            message = f"{name} must be above zero, got {value:g}"
            raise FabricError(message)
    if clos.tiers[-1].uplinks:
        message = f"the top tier has no ports up, got {clos.tiers[-1].uplinks}"
        raise FabricError(message)
    if not (math.isfinite(clos.latency_s) and clos.latency_s >= 0):
        message = f"latency_s must be at least zero, got {clos.latency_s:g}"
        raise FabricError(message)


def _check_ports(clos: Clos) -> None:
    if clos.nodes_per_rack < 1:
        message = (
            f"a leaf has {clos.tiers[0].downlinks} ports down, fewer than the "
            f"{clos.nics_per_node} network cards of a node; give it more ports, or "
            "the cards rails"
        )
        raise FabricError(message)
    if len(clos.tiers) == 2:
        ports, needed, what = clos.tiers[1].downlinks, clos.num_leaves, "leaves"
    else:
        if clos.racks_per_pod < 1:
            message = (
                f"a spine has {clos.tiers[1].downlinks} ports down, fewer than the "
                f"{clos.leaves_per_rack} leaves of a rack"
            )
            raise FabricError(message)
        ports, needed, what = clos.tiers[2].downlinks, clos.num_pods, "pods"
    if needed > ports:
        message = (
            f"{clos.num_nodes} nodes need {needed} {what}, but a switch above them has "
            f"{ports} ports down; give it more, or the fabric another tier"
        )
        raise FabricError(message)


def _check_failed(clos: Clos, link: FailedLink) -> None:
    sizes = {0: clos.num_leaves, 1: clos.num_spines}
    if link.tier not in range(len(clos.tiers) - 1):
        message = f"{link} is of no tier that has ports up"
        raise FabricError(message)
    num, ports = sizes[link.tier], clos.tiers[link.tier].uplinks
    if link.switch not in range(num) or link.port not in range(ports):
        message = (
            f"{link} is not there: the tier has {num} switches with {ports} ports up"
        )
        raise FabricError(message)
