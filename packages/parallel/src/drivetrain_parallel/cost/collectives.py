"""The time of collectives by alpha and beta, over groups that span nodes.

A group is the ranks that differ only along one axis of the mesh. Its ranks stand
`stride` apart, so the number of them on one node, and with it what crosses the network,
follows from the shape alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core import ClusterSpecError
from drivetrain_core.mesh_shape import AXES, MeshShape

if TYPE_CHECKING:
    from drivetrain_parallel.cost.hardware import Hardware, Path


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks along one axis, or along neighbouring ones.

    Args:
        size: How many there are.
        inside: How many of them share a node.
    """

    size: int
    inside: int

    @property
    def nodes(self) -> int:
        """Returns how many nodes it spans."""
        return self.size // self.inside


def axis_group(shape: MeshShape, devices_per_node: int, *axes: str) -> Group:
    """Returns how the ranks along some axes lie on nodes.

    Args:
        shape: The mesh.
        devices_per_node: Devices of a node.
        *axes: Names of axes.

    Example:
        >>> shape = MeshShape(pipeline=2, shard=4, tensor=4)
        >>> axis_group(shape, 8, "tensor"), axis_group(shape, 8, "shard")
        (Group(size=4, inside=4), Group(size=4, inside=2))
    """
    # Walk from the fastest axis: an axis adds to what is inside a node as long as its
    # ranks, with all faster ones between them, fit on the node.
    stride, size, inside = 1, 1, 1
    for axis in reversed(AXES):
        number = getattr(shape, axis)
        if axis in axes:
            size *= number
            room = max(1, devices_per_node // stride)
            inside *= math.gcd(number, room) if number > room else number
        stride *= number
    return Group(size, inside)


def all_gather_s(hardware: Hardware, group: Group, num_bytes: float) -> float:
    """Returns the time of gathering `num_bytes` in all from the ranks of a group.

    Every rank gets what the others hold over its links; every node gets what others
    hold over the cards of the group's ranks on it. Rings through all cards do both at
    once, so the slower of the two counts.

    Args:
        hardware: Links and network.
        group: The ranks.
        num_bytes: The gathered size.
    """
    if group.size == 1:
        return 0.0
    efficiency, link = hardware.efficiency, hardware.link
    missing = num_bytes * (group.size - 1) / group.size
    inside = missing / (link.bytes_per_s * efficiency.link) if group.inside > 1 else 0.0
    between = 0.0
    steps_s = (group.inside - 1) * link.latency_s
    if group.nodes > 1:
        network = _network(hardware)
        foreign = num_bytes * (group.nodes - 1) / group.nodes
        between = foreign / (network.bytes_per_s * efficiency.network * group.inside)
        # A ring takes a step for each node, a tree two for each doubling.
        steps = min(group.nodes - 1, 2 * math.log2(group.nodes))
        steps_s += steps * network.latency_s
    return max(inside, between) + steps_s


def reduce_scatter_s(hardware: Hardware, group: Group, num_bytes: float) -> float:
    """Returns the time of summing `num_bytes` and leaving each rank a part."""
    return all_gather_s(hardware, group, num_bytes)


def all_reduce_s(hardware: Hardware, group: Group, num_bytes: float) -> float:
    """Returns the time of summing `num_bytes` on every rank: both of the others."""
    return 2 * all_gather_s(hardware, group, num_bytes)


def all_to_all_s(hardware: Hardware, group: Group, num_bytes: float) -> float:
    """Returns the time in which each rank sends `num_bytes` in all, in equal parts."""
    if group.size == 1:
        return 0.0
    efficiency = hardware.efficiency
    share = num_bytes / group.size
    near = share * (group.inside - 1) / (hardware.link.bytes_per_s * efficiency.link)
    if group.nodes == 1:
        return near + hardware.link.latency_s
    network = _network(hardware)
    far = share * (group.size - group.inside)
    far_s = far / (network.bytes_per_s * efficiency.network)
    return max(near, far_s) + network.latency_s


def send_s(hardware: Hardware, num_bytes: float, *, between_nodes: bool) -> float:
    """Returns the time of a message from one device to another."""
    efficiency = hardware.efficiency
    if between_nodes:
        network = _network(hardware)
        rate = network.bytes_per_s * efficiency.network
        return num_bytes / rate + network.latency_s
    rate = hardware.link.bytes_per_s * efficiency.link
    return num_bytes / rate + hardware.link.latency_s


def _network(hardware: Hardware) -> Path:
    if hardware.network is None:
        message = (
            f"{hardware.name}: the mesh spans nodes of {hardware.devices_per_node} "
            "devices, and nics are not described: add them to the cluster file"
        )
        raise ClusterSpecError(message)
    return hardware.network
