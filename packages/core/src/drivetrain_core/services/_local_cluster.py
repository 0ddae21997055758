"""Finds out what this machine is made of."""

from __future__ import annotations

import platform
import socket
import sys
from importlib import import_module
from typing import Any

import psutil

from drivetrain_core.services.cluster_spec import (
    ClusterSpec,
    Device,
    Nic,
    NodeGroup,
)

# Dense peaks from the makers' data sheets, in operations a second.
_HOPPER = {
    "float64": 66.9e12,
    "float32": 66.9e12,
    "tf32": 494.7e12,
    "bfloat16": 989.4e12,
    "float16": 989.4e12,
    "float8": 1978.9e12,
    "int8": 1978.9e12,
}
_AMPERE = {
    "float64": 19.5e12,
    "float32": 19.5e12,
    "tf32": 156e12,
    "bfloat16": 312e12,
    "float16": 312e12,
    "int8": 624e12,
}
_PEAK_FLOPS = {
    "NVIDIA A100-SXM4-40GB": _AMPERE,
    "NVIDIA A100-SXM4-80GB": _AMPERE,
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H200": _HOPPER,
}


def local_cluster(*, use_torch: bool | None = None) -> ClusterSpec:
    """Returns a cluster of one node, this machine.

    Args:
        use_torch: Whether torch is asked for accelerators; by default only if the
            program has imported it. Asking does not make a context on a device.

    Example:
        >>> local_cluster(use_torch=False).nodes[0].devices.type
        'cpu'
    """
    memory = psutil.virtual_memory().total
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 0
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
    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(0)
    return Device(
        kind=facts.name,
        count=torch.cuda.device_count(),
        memory_bytes=facts.total_memory,
        peak_flops=_PEAK_FLOPS.get(facts.name, {}),
    )


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
