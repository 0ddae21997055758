"""Reads the network interfaces and RDMA ports of a host from /sys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._parts import Nic, RdmaPort
from drivetrain_fabric.topology._sysfs import entries, read_int, read_text, resolved

if TYPE_CHECKING:
    from pathlib import Path

    from drivetrain_fabric.topology._sysfs import PciTree

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*Gb/sec")
_NO_GID = re.compile(r"[0:]*")
# Of `type` of an interface: what else there is, is loopback and tunnels.
_ETHERNET, _INFINIBAND = 1, 32
# Some kernels write an unknown speed as -1 without its sign.
_MOST_MBIT_PER_S = 100_000_000

_Port = tuple["Path", int]


def read_nics(
    sysfs: Path, tree: PciTree, *, virtual: bool = False
) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    """Returns the network interfaces, and RDMA ports that have none; then what is hidden.

    Args:
        sysfs: Where sysfs is mounted.
        tree: The PCI devices.
        virtual: Whether to list bridges, tunnels, loopback and parts of cards that were
            made for virtual machines as well.

    Returns:
        The interfaces, and the names of those that were left out as virtual.
    """
    nics, hidden = [], []
    ports = _read_ports(sysfs)
    for entry in entries(sysfs / "class/net"):
        if not entry.is_dir():  # `bonding_masters` is a file
            continue
        device = resolved(entry / "device")
        key = (device, (read_int(entry / "dev_port") or 0) + 1)
        if _is_virtual(sysfs, entry) and not virtual:
            hidden.append(entry.name)
            ports.pop(key, None)
        else:
            nics.append(_read_nic(entry, tree, ports.pop(key, None)))
    for (device, _), port in ports.items():
        nic = Nic(
            name=port.device if port.port == 1 else f"{port.device}/{port.port}",
            slot=tree.slot_of(device),
            driver=_driver(device),
            state="up" if port.state == "ACTIVE" else "down",
            rdma=port,
        )
        nics.append(nic)
    return tuple(nics), tuple(hidden)


def _is_virtual(sysfs: Path, entry: Path) -> bool:
    if resolved(entry).is_relative_to(resolved(sysfs / "devices/virtual")):
        return True
    kind = read_int(entry / "type")
    is_part = (entry / "device/physfn").exists()
    return is_part or kind not in (None, _ETHERNET, _INFINIBAND)


def _read_nic(entry: Path, tree: PciTree, port: RdmaPort | None) -> Nic:
    speed = read_int(entry / "speed")
    state = read_text(entry / "operstate") or "unknown"
    return Nic(
        name=entry.name,
        slot=tree.slot_of(resolved(entry)),
        speed_mbit_per_s=speed if speed and speed < _MOST_MBIT_PER_S else None,
        driver=_driver(entry / "device"),
        mtu=read_int(entry / "mtu") or None,
        state=state if state in ("up", "unknown") else "down",
        rdma=port,
    )


def _driver(device: Path) -> str | None:
    link = device / "driver"
    return resolved(link).name if link.exists() else None


def _read_ports(sysfs: Path) -> dict[_Port, RdmaPort]:
    found = {}
    for entry in entries(sysfs / "class/infiniband"):
        device = resolved(entry / "device")
        for folder in entries(entry / "ports"):
            if not folder.name.isdecimal():
                continue
            rate = _RATE.match(read_text(folder / "rate") or "")
            gids = (read_text(gid) for gid in entries(folder / "gids"))
            port = RdmaPort(
                device=entry.name,
                port=int(folder.name),
                rate_mbit_per_s=(int(float(rate[1]) * 1000) or None) if rate else None,
                link_layer=read_text(folder / "link_layer") or "unknown",
                # It reads `4: ACTIVE`.
                state=(read_text(folder / "state") or "unknown").split()[-1],
                num_gids=sum(bool(g) and not _NO_GID.fullmatch(g or "") for g in gids),
            )
            found[device, port.port] = port
    return found
