"""Puts what sysfs and NVML say about this host together."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._errors import TopologyError
from drivetrain_fabric.topology._graph import Topology
from drivetrain_fabric.topology._nics import read_nics
from drivetrain_fabric.topology._nvml import NvmlFacts, read_nvml
from drivetrain_fabric.topology._sysfs import read_numa_nodes, read_pci

if TYPE_CHECKING:
    import os

    from drivetrain_fabric.topology._nvml import Nvml
    from drivetrain_fabric.topology._parts import Gpu, PciLink, PciSlot
    from drivetrain_fabric.topology._sysfs import PciTree


def read_topology(
    sysfs: str | os.PathLike[str] = "/sys",
    *,
    nvml: Nvml | None = None,
    use_nvml: bool = True,
    name: str | None = None,
    virtual: bool = False,
) -> Topology:
    """Returns what a host is made of, as far as it can be seen from here.

    Args:
        sysfs: Where sysfs is mounted; a copy of another host's will do.
        nvml: NVIDIA's library; by default the module `pynvml`.
        use_nvml: Whether to ask it; not for a copy of another host's sysfs.
        name: What to call the host; by default its host name.
        virtual: Whether to list virtual network interfaces.

    Raises:
        TopologyError: There is no such folder.

    Example:
        >>> len(read_topology(use_nvml=False).numa_nodes) > 0
        True
    """
    root = Path(sysfs)
    if not root.is_dir():
        message = f"{root} is not a folder; it must be where sysfs is mounted"
        raise TopologyError(message)
    numa_nodes = read_numa_nodes(root)
    tree = read_pci(root, numa_nodes)
    nics, hidden = read_nics(root, tree, virtual=virtual)
    facts = read_nvml(nvml) if use_nvml else NvmlFacts()
    gpus, notes = _merge(tree, facts)
    if hidden and not nics:
        notes.append(f"all network interfaces are virtual: {', '.join(hidden)}")
    slots: list[PciSlot] = [gpu.slot for gpu in gpus]
    slots += [nic.slot for nic in nics if nic.slot is not None]
    bridges = tree.bridges_above(slots)
    used = {slot.parent for slot in [*slots, *(bridge.slot for bridge in bridges)]}
    return Topology(
        name=name or socket.gethostname() or "localhost",
        numa_nodes=numa_nodes,
        host_bridges=tuple(r for r in tree.host_bridges if r.name in used),
        bridges=bridges,
        gpus=gpus,
        nvswitches=facts.nvswitches,
        nvlinks=facts.nvlinks,
        nics=nics,
        notes=tuple(notes),
    )


def _merge(tree: PciTree, facts: NvmlFacts) -> tuple[tuple[Gpu, ...], list[str]]:
    """Returns the GPUs that can be used, with where they sit, and what to know."""
    notes = []
    seen = {gpu.slot.address for gpu in facts.gpus}
    others = [gpu for gpu in tree.gpus if gpu.slot.address not in seen]
    if not facts.gpus:
        if facts.missing is not None and any("NVIDIA" in gpu.name for gpu in others):
            notes.append(facts.missing)
        return tree.gpus, notes
    if facts.missing is not None:
        notes.append(facts.missing)
    hidden = [gpu for gpu in others if gpu.name.startswith("NVIDIA")]
    if hidden:
        where = ", ".join(gpu.slot.address for gpu in hidden)
        notes.append(f"NVML does not list all GPUs that are there; it lacks {where}")
    gpus = []
    for gpu in facts.gpus:
        slot = tree.slots.get(gpu.slot.address, gpu.slot)
        link = _full_speed(gpu.slot, slot)
        gpus.append(replace(gpu, slot=replace(slot, link=link)))
    start = 1 + max(gpu.index for gpu in gpus)
    rest = [gpu for gpu in others if gpu not in hidden]
    gpus += [replace(gpu, index=start + i) for i, gpu in enumerate(rest)]
    return tuple(gpus), notes


def _full_speed(driver: PciSlot, kernel: PciSlot) -> PciLink | None:
    """Returns the driver's word on the speed, and the kernel's on the lanes in use."""
    if driver.link is None or kernel.link is None:
        return driver.link or kernel.link
    return replace(kernel.link, gt_per_s=driver.link.gt_per_s)
