"""The PCI tree of a host as people think of it: without ports that lead to one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._affinity import numa_node_of
from drivetrain_fabric.topology._parts import Gpu, Nic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._parts import NumaNode, PciSlot

Device = Gpu | Nic


@dataclass(frozen=True, slots=True)
class Branch:
    """A host bridge or a PCI switch, and what hangs on it.

    Args:
        name: The name of the host bridge, or the address of the switch.
        is_root: Whether it is a host bridge.
        devices: The devices directly below: NICs, then GPUs.
        switches: The switches directly below.
    """

    name: str
    is_root: bool
    devices: tuple[Device, ...]
    switches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class NumaBranch:
    """A NUMA node and what is near it.

    Args:
        node: The NUMA node; None for what is near an unknown one.
        roots: Its host bridges that have devices.
        devices: Devices whose place in the PCI tree is unknown.
    """

    node: NumaNode | None
    roots: tuple[Branch, ...]
    devices: tuple[Device, ...]


def numa_tree(topology: Topology) -> tuple[NumaBranch, ...]:
    """Returns what is near each NUMA node, as a tree of what matters.

    Args:
        topology: The host.

    Example:
        >>> from drivetrain_fabric.topology import Nic, NumaNode, Topology
        >>> host = Topology(name="a", numa_nodes=(NumaNode(index=0),),
        ...                 nics=(Nic(name="eth0"),))
        >>> [device.name for device in numa_tree(host)[0].devices]
        ['eth0']
    """
    below: dict[str, list[Device | PciSlot]] = {}
    loose: dict[int | None, list[Device]] = {}
    devices: list[Device] = [*topology.nics, *topology.gpus]
    for device in devices:
        slot = device.slot
        if slot is None or slot.parent is None:
            loose.setdefault(numa_node_of(topology, slot), []).append(device)
        else:
            below.setdefault(slot.parent, []).append(device)
    for bridge in topology.bridges:
        slot = bridge.slot
        below.setdefault(slot.parent or "", []).append(slot)
    # A bridge whose place is unknown stands where a host bridge would.
    tops = [(root.name, root.numa_node) for root in topology.host_bridges]
    tops += [
        (s.address, s.numa_node) for s in below.pop("", []) if not isinstance(s, Device)
    ]
    only = topology.numa_nodes[0].index if len(topology.numa_nodes) == 1 else None
    roots: dict[int | None, list[Branch]] = {}
    for name, node in tops:
        root = _branch(name, below, is_root=True)
        if root.devices or root.switches:
            roots.setdefault(only if node is None else node, []).append(root)
    found = [
        NumaBranch(
            node, tuple(roots.get(node.index, ())), tuple(loose.get(node.index, ()))
        )
        for node in topology.numa_nodes
    ]
    if None in roots or None in loose:
        homeless = tuple(roots.get(None, ())), tuple(loose.get(None, ()))
        found.append(NumaBranch(None, *homeless))
    return tuple(found)


def _cards(devices: Iterable[Device]) -> set[str]:
    """Returns PCI addresses without the function: a card with two ports is one card."""
    return {device.slot.address.rpartition(".")[0] for device in devices if device.slot}


def _branch(
    name: str, below: dict[str, list[Device | PciSlot]], *, is_root: bool = False
) -> Branch:
    devices: list[Device] = []
    switches: list[Branch] = []
    for child in below.get(name, []):
        if isinstance(child, Device):
            devices.append(child)
            continue
        inner = _branch(child.address, below)
        if (
            inner.switches[1:]
            or (inner.switches and inner.devices)
            or (len(_cards(inner.devices)) > 1)
        ):
            switches.append(inner)
        else:
            devices.extend(inner.devices)
            switches.extend(inner.switches)
    devices.sort(key=lambda device: isinstance(device, Gpu))
    return Branch(name, is_root, tuple(devices), tuple(switches))
