"""The links of a node's RDMA devices, as the kernel tells of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_health.checks._task import Found, NotHereError

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_DEVICES = Path("/sys/class/infiniband")


class Port(NamedTuple):
    """A port of an RDMA device.

    Attributes:
        device: Its name.
        number: Of the port, from 1.
        state: As the kernel says, such as `ACTIVE`; empty if it does not.
        rate_gbit_per_s: Of the link; 0 if it is not known.
    """

    device: str
    number: int
    state: str
    rate_gbit_per_s: float


def measure(task: Task) -> Found:
    """Returns a rate for each active port, such as `nic_mlx5_0_1_gbit_per_s`.

    A port that is active on most nodes and not on one is found by comparing them: many
    machines have ports that nobody uses.

    Raises:
        NotHereError: There is no RDMA device, or no port is active.
    """
    task.note(f"reading {_DEVICES}")
    ports = read_ports(_DEVICES)
    if not ports:
        message = f"there is no RDMA device in {_DEVICES}"
        raise NotHereError(message)
    active = [port for port in ports if port.state == "ACTIVE"]
    if not active:
        states = ", ".join(f"{p.device}/{p.number} {p.state or '?'}" for p in ports)
        message = f"no port of an RDMA device is active: {states}"
        raise NotHereError(message)
    name = "nic_{0.device}_{0.number}_gbit_per_s".format
    return Found({name(p): p.rate_gbit_per_s for p in active if p.rate_gbit_per_s > 0})


def read_ports(folder: Path) -> list[Port]:
    """Returns the ports that the kernel shows in a folder; none if it is not there.

    Args:
        folder: Such as `/sys/class/infiniband`.
    """
    found = []
    for place in sorted(folder.glob("*/ports/*")):
        if not place.name.isdecimal():
            continue
        # As in "4: ACTIVE" and "400 Gb/sec (4X NDR)".
        state = _text(place / "state").partition(":")[2].strip()
        told = re.match(r"\s*([\d.]+)\s*Gb/sec", _text(place / "rate"))
        rate = float(told[1]) if told else 0.0
        found.append(Port(place.parents[1].name, int(place.name), state, rate))
    return found


def _text(place: Path) -> str:
    try:
        return place.read_text(errors="replace")
    except OSError:
        return ""
