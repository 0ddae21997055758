"""Devices and quantities in a few words, for text and pictures alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.topology._affinity import nvlinks_of
from drivetrain_fabric.topology._parts import Gpu, Nic
from drivetrain_fabric.topology._units import bytes_text, speed_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._parts import NumaNode, PciSlot


def device_name(device: Gpu | Nic) -> tuple[str, str]:
    """Returns what a device is called, and what it is.

    Args:
        device: The device.
    """
    if isinstance(device, Gpu):
        return device.label, device.name.removeprefix("NVIDIA ")
    rdma = device.rdma.device if device.rdma is not None else ""
    return device.name, "" if rdma == device.name else rdma or device.driver or ""


def device_words(topology: Topology, device: Gpu | Nic) -> list[str]:
    """Returns lines on what a device does, the most important first.

    Args:
        topology: The host.
        device: One of its devices.
    """
    if isinstance(device, Nic):
        layer = device.rdma.link_layer if device.rdma is not None else ""
        speed = f"{speed_text(device.best_mbit_per_s)} {layer}".strip()
        mtu = f"mtu {device.mtu}" if device.mtu else ""
        return [speed if device.is_up else "down", _joined(_link(device.slot), mtu)]
    memory = bytes_text(device.memory_bytes) if device.memory_bytes else ""
    return [_joined(memory, _link(device.slot)), _nvlink(topology, device.label)]


def node_words(node: NumaNode | None) -> tuple[str, str]:
    """Returns what a NUMA node is called, and what it has."""
    if node is None:
        return "NUMA node unknown", ""
    memory = bytes_text(node.memory_bytes) if node.memory_bytes else ""
    cpus = f"CPUs {node.cpus}" if node.cpus else ""
    return f"NUMA node {node.index}", _joined(cpus, memory)


def summary_words(topology: Topology) -> str:
    """Returns what a host has, in one line.

    Example:
        >>> from drivetrain_fabric.topology import Nic, NumaNode, Topology
        >>> summary_words(Topology(name="a", numa_nodes=(NumaNode(index=0),), nics=(
        ...     Nic(name="a", speed_mbit_per_s=100_000),
        ...     Nic(name="b", speed_mbit_per_s=100_000))))
        '2 x 100 Gb/s, 1 NUMA node'
    """
    up = [nic for nic in topology.nics if nic.is_up]
    speeds = [
        device_words(topology, nic)[0] if nic.best_mbit_per_s else "NIC, speed unknown"
        for nic in up
    ]
    parts = _counted([gpu.name for gpu in topology.gpus])
    if topology.nvswitches:
        parts += _counted(["NVSwitch"] * len(topology.nvswitches))
    parts += _counted(speeds)
    nodes = len(topology.numa_nodes)
    return ", ".join([*parts, f"{nodes} NUMA node{'s' if nodes > 1 else ''}"])


def _counted(names: Sequence[str]) -> list[str]:
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]


def _link(slot: PciSlot | None) -> str:
    if slot is None or slot.link is None:
        return ""
    text = f"PCIe {slot.link.generation} x{slot.link.width}"
    return f"{text} of x{slot.link.max_width}" if slot.link.is_narrow else text


def _nvlink(topology: Topology, gpu: str) -> str:
    """Returns `NVLink 18 x 25 GB/s`."""
    ends = nvlinks_of(topology, gpu)
    if not ends:
        return ""
    mine = [link for link in topology.nvlinks if gpu in (link.gpu, link.peer)]
    speeds = {link.bytes_per_s for link in mine}
    each = speeds.pop() if len(speeds) == 1 else None
    speed = f" x {each / 1e9:g} GB/s" if each is not None else ""
    return f"NVLink {sum(ends.values())}{speed}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
