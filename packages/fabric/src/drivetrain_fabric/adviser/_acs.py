"""Reads from the configuration space of PCI bridges whether they redirect peers.

Access Control Services are an extended capability (PCI Express base specification,
7.7.8): the list begins at byte 0x100, each header holds an identity and where the next
one is, and the control word is 6 bytes behind the header of the capability 0x000d.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._sysfs import entries, read_text

if TYPE_CHECKING:
    from pathlib import Path

_FIRST, _LAST = 0x100, 0xFFC
_ACS = 0x000D
_REQUEST_REDIRECT, _COMPLETION_REDIRECT = 0x4, 0x8


def redirects_peers(config: bytes) -> bool:
    """Returns whether a bridge sends what its devices send each other to the processor.

    Args:
        config: Its configuration space; too short a one has no extended capabilities.

    Example:
        >>> redirects_peers(bytes(64))
        False
    """
    at, seen = _FIRST, set()
    while _FIRST <= at <= _LAST and at + 8 <= len(config) and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, at + 6)
            return bool(control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT))
        at = header >> 20
    return False


def read_acs_bridges(sysfs: Path) -> tuple[str, ...] | None:
    """Returns the bridges that redirect; None where nobody may look.

    Only root may read more than the first 64 bytes of a configuration space.

    Args:
        sysfs: Where sysfs is mounted.
    """
    found, could_look = [], False
    for device in entries(sysfs / "bus/pci/devices"):
        if not (read_text(device / "class") or "").startswith("0x0604"):
            continue
        try:
            config = (device / "config").read_bytes()
        except OSError:
            continue
        could_look |= len(config) > _FIRST
        if redirects_peers(config):
            found.append(device.name)
    return tuple(found) if could_look else None
