"""Address of this process, and identity of its host."""

from __future__ import annotations

import ipaddress
import os
import socket
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from torch.distributed.distributed_c10d import PrefixStore

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.distributed_c10d import Store

_LOOPBACK = "127.0.0.1"
_INTERFACE = ("DRIVETRAIN_COMM_INTERFACE", "GLOO_SOCKET_IFNAME")


def host_identity(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what processes have in common that can share memory over a local socket.

    It is the boot and the network namespace: containers with a network of their own are
    hosts of their own. DRIVETRAIN_COMM_HOST, any text, parts them further.
    """
    return f"{_place()}/{environment.get('DRIVETRAIN_COMM_HOST', '')}"


@cache
def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = boot.read_text().strip() if boot.exists() else socket.gethostname()
    namespace = Path("/proc/self/ns/net")
    return f"{host}/{namespace.stat().st_ino if namespace.exists() else 0}"


def find_address(store: Store, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the numeric address at which other hosts can reach this process.

    It is that of the interface named by DRIVETRAIN_COMM_INTERFACE or GLOO_SOCKET_IFNAME
    (the first of several), else the one from which the store's host is reached, else
    the loopback's.

    Raises:
        DistributedError: There is no such interface, or it has no address.
    """
    for variable in _INTERFACE:
        names = environment.get(variable, "")
        if names:
            return _address_of(names.split(",")[0].strip(), variable)
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if not host or not port:
        return _outside() or _LOOPBACK
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        )[0]
        # Connecting a datagram socket sends nothing: it only asks for the route.
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            found = str(probe.getsockname()[0])
    except OSError:
        found = _LOOPBACK
    # The store's own host reaches itself by an address that no other host can use.
    return _outside() or found if is_loopback(found) else found


def is_loopback(address: str) -> bool:
    """Returns whether an address is this host's for itself only.

    Example:
        >>> is_loopback("127.0.1.1"), is_loopback("10.0.0.1")
        (True, False)
    """
    return ipaddress.ip_address(address).is_loopback


def _outside() -> str | None:
    """Returns an address of this host that others may reach, if it has one."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family != socket.AF_INET or name not in up:
                continue
            if not is_loopback(one.address):
                return str(one.address)
    return None


def _address_of(interface: str, variable: str) -> str:
    every = psutil.net_if_addrs()
    if interface not in every:
        message = (
            f"{variable} names the interface {interface!r}, but there are "
            f"{', '.join(sorted(every))}"
        )
        raise DistributedError(message)
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in every[interface]:
            is_link_local = address.address.lower().startswith("fe80")
            if address.family == family and not is_link_local:
                return str(address.address)
    message = f"the interface {interface!r}, named by {variable}, has no address"
    raise DistributedError(message)
