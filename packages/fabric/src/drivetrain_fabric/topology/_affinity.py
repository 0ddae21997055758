"""How far devices of a host are from each other, in the terms of `nvidia-smi topo`.

From near to far:

    NV#   through # NVLinks
    PIX   through one PCI bridge or switch
    PXB   through several, but not through a processor
    PHB   through the host bridge of a processor
    NODE  through several host bridges of a NUMA node
    SYS   from one NUMA node to another, or nobody knows
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._errors import TopologyError

if TYPE_CHECKING:
    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._parts import Gpu, Nic, PciSlot

_FROM_NEAR = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS")
# A slower card is for management, however near it is.
_LEAST_SHARE = 0.5


def distance(topology: Topology, a: str, b: str) -> str:
    """Returns how far two devices are from each other.

    Args:
        topology: The host.
        a: The label of a GPU (`gpu0`) or the name of a NIC.
        b: Likewise.

    Raises:
        TopologyError: There is no such device.

    Example:
        >>> from drivetrain_fabric.topology import Gpu, NumaNode, PciSlot, Topology
        >>> places = [PciSlot(address=f"0000:0{i}:00.0", numa_node=i) for i in (0, 1)]
        >>> host = Topology(
        ...     name="a", numa_nodes=(NumaNode(index=0), NumaNode(index=1)),
        ...     gpus=tuple(Gpu(index=i, name="L4", slot=s)
        ...                for i, s in enumerate(places)))
        >>> distance(host, "gpu0", "gpu1")
        'SYS'
    """
    known = {gpu.label: gpu.slot for gpu in topology.gpus}
    known |= {nic.name: nic.slot for nic in topology.nics}  # type: ignore[misc]
    for label in (a, b):
        if label not in known:
            message = f"there is no device {label!r}; there are {', '.join(known)}"
            raise TopologyError(message)
    if a == b:
        return "X"
    num_links = _num_nvlinks(topology, a, b)
    if num_links:
        return f"NV{num_links}"
    return _pci_distance(topology, known[a], known[b])


def closeness(distance: str) -> tuple[int, int]:
    """Returns what sorts distances from near to far.

    Args:
        distance: What `distance` returned.

    Example:
        >>> sorted(["SYS", "NV2", "PIX", "NV18"], key=closeness)
        ['NV18', 'NV2', 'PIX', 'SYS']
    """
    if distance.startswith("NV"):
        return _FROM_NEAR.index("NV"), -int(distance[2:])
    return _FROM_NEAR.index(distance), 0


def nearest_nic(topology: Topology, gpu: str) -> Nic | None:
    """Returns the network card that a GPU should use, or None if there is none.

    It is the nearest of those that are up and at least half as fast as the fastest.
    Where several are as near, the GPUs that are near to the same ones share them out.

    Args:
        topology: The host.
        gpu: The label of the GPU.

    Raises:
        TopologyError: There is no such GPU.
    """
    if gpu not in [one.label for one in topology.gpus]:
        message = f"there is no GPU {gpu!r} among {len(topology.gpus)}"
        raise TopologyError(message)
    choices = {one.label: _nearest(topology, one.label) for one in topology.gpus}
    mine = choices[gpu]
    if not mine:
        return None
    rivals = [label for label, nics in choices.items() if nics == mine]
    return mine[rivals.index(gpu) % len(mine)]


def gpus_by_numa_node(topology: Topology) -> dict[int | None, tuple[Gpu, ...]]:
    """Returns the GPUs near each NUMA node; those of an unknown one under None.

    Args:
        topology: The host.
    """
    found: dict[int | None, list[Gpu]] = {n.index: [] for n in topology.numa_nodes}
    for gpu in topology.gpus:
        found.setdefault(numa_node_of(topology, gpu.slot), []).append(gpu)
    return {node: tuple(gpus) for node, gpus in found.items()}


def numa_node_of(topology: Topology, slot: PciSlot | None) -> int | None:
    """Returns the NUMA node that a device is near, or None if nobody knows.

    Args:
        topology: The host; where it has one NUMA node, all is near that.
        slot: Where the device sits.
    """
    if len(topology.numa_nodes) == 1:
        return topology.numa_nodes[0].index
    if slot is None:
        return None
    if slot.numa_node is not None:
        return slot.numa_node
    above = _above(topology, slot)
    roots = {root.name: root.numa_node for root in topology.host_bridges}
    return roots.get(above[-1]) if above else None


def nvlinks_of(topology: Topology, gpu: str) -> dict[str, int]:
    """Returns how many NVLinks a GPU has to each device.

    Args:
        topology: The host.
        gpu: The label of the GPU.
    """
    found: Counter[str] = Counter()
    for link in topology.nvlinks:
        if gpu in (link.gpu, link.peer):
            found[link.peer if gpu == link.gpu else link.gpu] += link.count
    return dict(found)


def _num_nvlinks(topology: Topology, a: str, b: str) -> int:
    """Returns how many lead directly or through switches, of the end with fewer."""
    here, there = nvlinks_of(topology, a), nvlinks_of(topology, b)
    switches = here.keys() & there.keys() & {s.label for s in topology.nvswitches}
    through = (sum(ends[name] for name in switches) for ends in (here, there))
    return here.get(b, 0) + min(through)


def _nearest(topology: Topology, gpu: str) -> list[Nic]:
    usable = [nic for nic in topology.nics if nic.is_up]
    fastest = max((nic.best_mbit_per_s or 0 for nic in usable), default=0)
    fast = [n for n in usable if (n.best_mbit_per_s or 0) >= fastest * _LEAST_SHARE]
    far = {nic.name: closeness(distance(topology, gpu, nic.name)) for nic in fast}
    return [nic for nic in fast if far[nic.name] == min(far.values())]


def _pci_distance(topology: Topology, a: PciSlot | None, b: PciSlot | None) -> str:
    if a is not None and b is not None:
        above_a, above_b = _above(topology, a), _above(topology, b)
        shared = next((bridge for bridge in above_a if bridge in above_b), None)
        if shared is not None and shared in {r.name for r in topology.host_bridges}:
            return "PHB"
        if shared is not None:
            # A switch shows up as one bridge above, and one for each port below it.
            between = max(above_a.index(shared), above_b.index(shared))
            return "PIX" if between <= 1 else "PXB"
    nodes = numa_node_of(topology, a), numa_node_of(topology, b)
    return "NODE" if nodes[0] == nodes[1] is not None else "SYS"


def _above(topology: Topology, slot: PciSlot) -> list[str]:
    """Returns the bridges above a device, the nearest first."""
    parents = {bridge.slot.address: bridge.slot.parent for bridge in topology.bridges}
    found, at = [], slot.parent
    while at is not None:
        found.append(at)
        at = parents.get(at)
    return found
