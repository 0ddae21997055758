"""Whether the parts of a topology fit together; each mistake is named by its device."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_fabric.topology._parts import HostParts, PciSlot

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def check_topology(host: HostParts) -> None:
    """Raises unless all parts of a host fit together.

    Args:
        host: The host.

    Raises:
        TopologyError: They do not.
    """
    if not host.numa_nodes:
        message = "a host has one NUMA node at least, got none"
        raise TopologyError(message)
    _check_numbers(host)
    _check_unique("the NUMA node", (str(node.index) for node in host.numa_nodes))
    _check_unique("the NIC", (nic.name for nic in host.nics))
    _check_unique("the device", _labels(host))
    slots = host.slots
    _check_unique("the PCI address", _addresses(host))
    _check_unique("the host bridge", (root.name for root in host.host_bridges))
    for label, slot in slots.items():
        _check_slot(host, label, slot)
    for root in host.host_bridges:
        _check_numa(host, root.name, root.numa_node)
    _check_no_cycle(host)
    _check_nvlinks(host)


def _labels(host: HostParts) -> Iterable[str]:
    yield from (gpu.label for gpu in host.gpus)
    yield from (switch.label for switch in host.nvswitches)
    yield from (nic.name for nic in host.nics)


def _addresses(host: HostParts) -> Iterable[str]:
    """Returns the PCI address of each device; interfaces may be ports of one device."""
    yield from (bridge.slot.address for bridge in host.bridges)
    yield from (gpu.slot.address for gpu in host.gpus)
    yield from (one.address for one in host.nvswitches if one.address is not None)
    yield from {nic.slot.address for nic in host.nics if nic.slot is not None}


def _check_numbers(host: HostParts) -> None:
    for node in host.numa_nodes:
        _check_least(f"numa_nodes: index of {node.index}", node.index, 0)
        _check_least(f"memory_bytes of NUMA node {node.index}", node.memory_bytes, 0)
    for gpu in host.gpus:
        _check_least(f"index of {gpu.label}", gpu.index, 0)
        _check_least(f"memory_bytes of {gpu.label}", gpu.memory_bytes, 1)
    for switch in host.nvswitches:
        _check_least(f"index of {switch.label}", switch.index, 0)
    for nic in host.nics:
        _check_least(f"speed_mbit_per_s of {nic.name}", nic.speed_mbit_per_s, 1)
        _check_least(f"mtu of {nic.name}", nic.mtu, 1)
        if nic.rdma is not None:
            rate = nic.rdma.rate_mbit_per_s
            _check_least(f"rate_mbit_per_s of {nic.rdma.device}", rate, 1)
            _check_least(f"port of {nic.rdma.device}", nic.rdma.port, 1)
            _check_least(f"num_gids of {nic.rdma.device}", nic.rdma.num_gids, 0)


def _check_least(what: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value < float("inf"):
        message = f"{what} must be at least {least}, got {value}"
        raise TopologyError(message)


def _check_unique(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            message = f"{what} {name} is there {count} times; it must be there once"
            raise TopologyError(message)


def _check_numa(host: HostParts, label: str, node: int | None) -> None:
    known = [one.index for one in host.numa_nodes]
    if node is not None and node not in known:
        there = ", ".join(map(str, known))
        message = f"{label} is near the NUMA node {node}, but the host has only {there}"
        raise TopologyError(message)


def _check_slot(host: HostParts, label: str, slot: PciSlot) -> None:
    if not _ADDRESS.fullmatch(slot.address):
        message = (
            f"{label} has the PCI address {slot.address!r}; one looks like 0000:18:00.0"
        )
        raise TopologyError(message)
    _check_numa(host, label, slot.numa_node)
    if slot.link is not None:
        _check_least(f"width of the link of {label}", slot.link.width, 1)
        _check_least(f"gt_per_s of the link of {label}", slot.link.gt_per_s, 0.1)
    known = {bridge.slot.address for bridge in host.bridges}
    known |= {root.name for root in host.host_bridges}
    if slot.parent is not None and slot.parent not in known:
        message = f"{label} hangs on {slot.parent}, but there is no such bridge"
        raise TopologyError(message)


def _check_no_cycle(host: HostParts) -> None:
    above = {bridge.slot.address: bridge.slot.parent for bridge in host.bridges}
    for start, parent in above.items():
        path, at = [start], parent
        while at in above:
            path.append(at)
            if at in path[:-1]:
                circle = " -> ".join(path[path.index(at) :])
                message = f"the PCI tree must not go in a circle: {circle}"
                raise TopologyError(message)
            at = above[at]


def _check_nvlinks(host: HostParts) -> None:
    gpus = {gpu.label for gpu in host.gpus}
    ends = gpus | {switch.label for switch in host.nvswitches}
    for link in host.nvlinks:
        what = f"the NVLink from {link.gpu} to {link.peer}"
        for end, known in ((link.gpu, gpus), (link.peer, ends)):
            if end not in known:
                message = f"{what} leads to a device that there is not: {end}"
                raise TopologyError(message)
        if link.gpu == link.peer:
            message = f"{what} leads back to where it begins"
            raise TopologyError(message)
        _check_least(f"count of {what}", link.count, 1)
        _check_least(f"bytes_per_s of {what}", link.bytes_per_s, 1)
    pairs = ("-".join(sorted((link.gpu, link.peer))) for link in host.nvlinks)
    _check_unique("the NVLink", pairs)
