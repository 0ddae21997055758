"""Reads the NUMA nodes and the PCI tree of a host from /sys; nothing there is trusted.

Attributes are missing, empty, -1 or an I/O error in many virtual machines and
containers: each counts as unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._parts import (
    Gpu,
    HostBridge,
    NumaNode,
    PciBridge,
    PciLink,
    PciSlot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*GT/s")
_MEMORY = re.compile(r"MemTotal:\s*([0-9]+)\s*kB")
_NODE = re.compile(r"node([0-9]+)")
_VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x1da3": "Habana", "0x8086": "Intel"}
# Class codes without the programming interface, and whose they must be: a display
# controller of another maker serves the console of the server.
_ACCELERATORS = {
    "0x0300": {"0x1002", "0x10de"},
    "0x0302": {"0x1002", "0x10de", "0x8086"},
    "0x0380": {"0x1002", "0x10de", "0x8086"},
    "0x1200": {"0x1002", "0x1da3"},
}


@dataclass(frozen=True, slots=True)
class PciTree:
    """All PCI devices of a host.

    Args:
        slots: Where each device sits, by its address.
        host_bridges: The roots.
        gpus: The accelerators, with what can be known without a driver.
    """

    slots: dict[str, PciSlot]
    host_bridges: tuple[HostBridge, ...]
    gpus: tuple[Gpu, ...]

    def bridges_above(self, slots: Iterable[PciSlot]) -> tuple[PciBridge, ...]:
        """Returns the bridges on which some devices hang, in the order of addresses.

        Args:
            slots: Where the devices sit.
        """
        found: dict[str, PciSlot] = {}
        for slot in slots:
            at = self.slots.get(slot.parent or "")
            while at is not None and at.address not in found:
                found[at.address] = at
                at = self.slots.get(at.parent or "")
        return tuple(PciBridge(slot=found[address]) for address in sorted(found))

    def slot_of(self, path: Path) -> PciSlot | None:
        """Returns where the device sits that a path below /sys/devices leads to.

        Args:
            path: The path; its last PCI address counts, so that a virtio device sits
                where its PCI function does.
        """
        parts = [part for part in path.parts if _ADDRESS.fullmatch(part)]
        return self.slots.get(parts[-1]) if parts else None


def entries(folder: Path) -> list[Path]:
    """Returns what is in a folder, by name; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def resolved(path: Path) -> Path:
    """Returns where a path leads to; itself where it leads back to itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def read_text(path: Path) -> str | None:
    """Returns what an attribute says, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Returns the number in an attribute; None where it is unreadable or negative."""
    text = read_text(path)
    try:
        value = int(text or "", 0)
    except ValueError:
        return None
    return value if value >= 0 else None


def read_numa_nodes(sysfs: Path) -> tuple[NumaNode, ...]:
    """Returns the NUMA nodes; a kernel without them has one, with all processors.

    Args:
        sysfs: Where sysfs is mounted.
    """
    found = []
    for folder in entries(sysfs / "devices/system/node"):
        match = _NODE.fullmatch(folder.name)
        if match is None:
            continue
        memory = _MEMORY.search(read_text(folder / "meminfo") or "")
        found.append(
            NumaNode(
                index=int(match[1]),
                cpus=read_text(folder / "cpulist") or "",
                memory_bytes=int(memory[1]) * 1024 if memory else None,
            )
        )
    if not found:
        cpus = read_text(sysfs / "devices/system/cpu/online") or ""
        found.append(NumaNode(index=0, cpus=cpus))
    return tuple(sorted(found, key=lambda node: node.index))


def read_pci(sysfs: Path, numa_nodes: Iterable[NumaNode]) -> PciTree:
    """Returns the PCI devices.

    Args:
        sysfs: Where sysfs is mounted.
        numa_nodes: The NUMA nodes that there are; another number counts as unknown.
    """
    known = {node.index for node in numa_nodes}
    slots: dict[str, PciSlot] = {}
    roots: dict[str, set[int]] = {}
    gpus: list[Gpu] = []
    for entry in entries(sysfs / "bus/pci/devices"):
        if not _ADDRESS.fullmatch(entry.name):
            continue
        # Bridges are the folders around the real one: the kernel nests them.
        path = resolved(entry).parts[:-1]
        above = [part for part in path if _ADDRESS.fullmatch(part) or _root(part)]
        node = read_int(entry / "numa_node")
        node = node if node in known else None
        slot = PciSlot(
            address=entry.name,
            parent=above[-1] if above else None,
            numa_node=node,
            link=_link(entry),
        )
        slots[slot.address] = slot
        if above and _root(above[0]):
            roots.setdefault(above[0], set()).update(() if node is None else (node,))
        if _is_accelerator(entry):
            gpus.append(Gpu(index=len(gpus), name=_model(entry), slot=slot))
    # A root is near the node of what hangs on it, if that is one node.
    bridges = tuple(
        HostBridge(name=name, numa_node=min(near) if len(near) == 1 else None)
        for name, near in sorted(roots.items())
    )
    return PciTree(slots, bridges, tuple(gpus))


def _root(part: str) -> bool:
    return _ROOT.fullmatch(part) is not None


def _link(entry: Path) -> PciLink | None:
    speeds = [
        _SPEED.match(read_text(entry / f"{which}_link_speed") or "")
        for which in ("current", "max")
    ]
    width = read_int(entry / "current_link_width")
    if speeds[0] is None or not width or not float(speeds[0][1]):
        return None
    return PciLink(
        gt_per_s=float(speeds[0][1]),
        width=width,
        max_gt_per_s=float(speeds[1][1]) if speeds[1] else 0.0,
        # The kernel writes 255 where the device does not say.
        max_width=_sane_width(read_int(entry / "max_link_width")),
    )


def _sane_width(width: int | None) -> int:
    return width if width is not None and width <= 32 else 0


def _is_accelerator(entry: Path) -> bool:
    code = (read_text(entry / "class") or "")[:6]
    return read_text(entry / "vendor") in _ACCELERATORS.get(code, ())


def _model(entry: Path) -> str:
    vendor = read_text(entry / "vendor") or "?"
    model = (read_text(entry / "device") or "?").removeprefix("0x")
    return f"{_VENDORS.get(vendor, vendor)} {model}"
