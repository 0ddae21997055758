"""Finds out what this machine is made of."""

from __future__ import annotations

import platform
import re
import socket
import sys
import tomllib
from importlib import import_module
from importlib.resources import files
from typing import Any

import psutil

from drivetrain_core import machine_limits
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.services.cluster_spec import ClusterSpec, Device, Nic, NodeGroup


def local_cluster(*, use_torch: bool | None = None) -> ClusterSpec:
    """Returns a cluster of one node, this machine.

    Args:
        use_torch: Whether torch is asked for accelerators; by default only if the
            program has imported it. Asking does not make a context on a device.

    Example:
        >>> local_cluster(use_torch=False).nodes[0].devices.type
        'cpu'
    """
    memory = machine_limits.memory().total
    physical = psutil.cpu_count(logical=False) or machine_limits.num_cores()
    cores = min(physical, machine_limits.num_cores())
    wanted = "torch" in sys.modules if use_torch is None else use_torch
    device = _accelerator(import_module("torch")) if wanted else None
    if device is None:
        kind = platform.processor() or platform.machine() or "unknown"
        device = Device(kind=kind, memory_bytes=memory, type="cpu")
    host = socket.gethostname() or "localhost"
    node = NodeGroup(
        name=host, cores=cores, memory_bytes=memory, devices=device, nics=_nics()
    )
    return ClusterSpec(name=host, nodes=(node,))


def _accelerator(torch: Any) -> Device | None:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return None
    facts = accelerator_of(found).facts()
    return Device(
        kind=facts.name,
        type=facts.type,
        count=torch.accelerator.device_count(),
        memory_bytes=facts.memory_bytes,
        peak_flops=_peak_flops(facts.name),
    )


def _peak_flops(name: str) -> dict[str, float]:
    """Returns dense peaks in operations a second by dtype; none of a GPU not known."""
    text = (files(__package__) / "peak_flops.toml").read_text(encoding="utf-8")
    known = tomllib.loads(text).items()
    return next((peaks for kind, peaks in known if re.fullmatch(kind, name)), {})


def _nics() -> Nic | None:
    """Returns the network cards that say how fast they are, as many of the fastest."""
    speeds = [
        card.speed * 1e6
        for name, card in psutil.net_if_stats().items()
        if card.isup and card.speed > 0 and not name.startswith("lo")
    ]
    if not speeds:
        return None
    fastest = max(speeds)
    return Nic(count=speeds.count(fastest), bandwidth_bits_per_s=fastest)
