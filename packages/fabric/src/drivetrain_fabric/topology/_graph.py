"""What a host is made of, as far as moving bytes goes; pure data that checks itself.

Devices hang in the PCI tree by the address of the bridge above them. At the top of the
tree stand host bridges, which belong to a NUMA node. NVLinks go beside that tree.
"""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain_fabric.topology._checks import check_topology
from drivetrain_fabric.topology._parts import HostParts


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology(HostParts):
    """A host.

    Args:
        name: What it is called.
        numa_nodes: Its NUMA nodes, one at least.
        host_bridges: The roots of its PCI tree.
        bridges: The other bridges of the tree, as far as devices hang on them.
        gpus: Its GPUs.
        nvswitches: What its NVLinks lead to beside GPUs.
        nvlinks: Its NVLinks, each pair of ends once.
        nics: Its network interfaces.
        notes: What could not be found out, and why.

    Raises:
        TopologyError: It contradicts itself; the message names the device.

    Example:
        >>> from drivetrain_fabric.topology import Gpu, NumaNode, PciSlot
        >>> slot = PciSlot(address="0000:18:00.0", parent="pci0000:15", numa_node=1)
        >>> Topology(
        ...     name="a", numa_nodes=(NumaNode(index=0),),
        ...     gpus=(Gpu(index=0, name="H100", slot=slot),))
        Traceback (most recent call last):
        ...
        drivetrain_fabric.topology._errors.TopologyError: gpu0 is near the NUMA node 1, \
but the host has only 0
    """

    def __post_init__(self) -> None:
        """Checks that all parts fit together."""
        check_topology(self)
