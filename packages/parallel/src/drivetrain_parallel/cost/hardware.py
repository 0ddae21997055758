"""What the devices, their links and the network between nodes can do."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_core import ClusterSpecError
from drivetrain_parallel.cost.efficiency import Efficiency, efficiency_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.services.cluster_spec import NodeGroup

_MEMORY_LATENCY_S = 2e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """A way from a device to another: `latency_s + bytes / bytes_per_s`.

    Args:
        bytes_per_s: What one device sends at most, in one direction.
        latency_s: The time of an empty message.
    """

    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """A cluster of equal nodes, as a training step sees it.

    Args:
        name: What to call it.
        devices_per_node: Devices of a node.
        peak_flops: The peak rate of a device by number format.
        memory_bytes: The memory of a device.
        memory_bandwidth: Bytes per second that a device reads and writes in all.
        link: Between two devices of a node.
        network: Between two devices of different nodes: the device's share of its
            node's cards; None where there is no other node.
        efficiency: What programs get out of it.

    Example:
        >>> node = Hardware(name="two", devices_per_node=2, memory_bytes=80 * 10**9,
        ...     peak_flops={"bfloat16": 312e12}, memory_bandwidth=2e12,
        ...     link=Path(bytes_per_s=300e9))
        >>> node.peak("bfloat16") / 1e12
        312.0
    """

    name: str
    devices_per_node: int
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bandwidth: float
    link: Path
    network: Path | None = None
    efficiency: Efficiency = field(default_factory=Efficiency)

    def peak(self, dtype: str) -> float:
        """Returns the peak rate of a number format.

        Raises:
            ClusterSpecError: It is not known.
        """
        try:
            return self.peak_flops[dtype]
        except KeyError:
            message = (
                f"{self.name}: devices.peak_flops has no {dtype!r}, only "
                f"{', '.join(self.peak_flops) or 'nothing'}: add it to the cluster file"
            )
            raise ClusterSpecError(message) from None

    def on_links(self) -> Hardware:
        """Returns the same devices, with links in place of the network."""
        if self.network is None:
            return self
        rate = self.link.bytes_per_s * self.efficiency.link / self.efficiency.network
        network = dataclasses.replace(self.network, bytes_per_s=rate)
        return dataclasses.replace(self, network=network)

    @classmethod
    def of(cls, group: NodeGroup, efficiency: Efficiency | None = None) -> Hardware:
        """Returns the hardware of a group of nodes.

        Args:
            group: Nodes of a cluster description.
            efficiency: What programs get out of it; None for what was fitted to this
                kind of device, or to its nearest relative.

        Raises:
            ClusterSpecError: The description lacks what a prediction needs.
        """
        devices, where = group.devices, f"nodes {group.name!r}"
        for key, value in (
            ("devices.memory_bandwidth", devices.memory_bandwidth_bytes_per_s),
            ("devices.peak_flops", devices.peak_flops),
            ("links", group.links if devices.count > 1 else True),
        ):
            if not value:
                message = f"{where}: {key} must be given to predict a step"
                raise ClusterSpecError(message)
        network = None
        if group.nics is not None and group.nics.bandwidth_bits_per_s:
            shared = group.nics.count * group.nics.bandwidth_bits_per_s / 8
            network = Path(
                bytes_per_s=shared / devices.count, latency_s=group.nics.latency_s
            )
        link = Path(
            bytes_per_s=devices.memory_bandwidth_bytes_per_s,
            latency_s=_MEMORY_LATENCY_S,
        )
        if group.links:
            fastest = group.links[0]
            link = Path(
                bytes_per_s=fastest.bandwidth_bytes_per_s, latency_s=fastest.latency_s
            )
        return cls(
            name=devices.kind,
            devices_per_node=devices.count,
            peak_flops=dict(devices.peak_flops),
            memory_bytes=devices.memory_bytes,
            memory_bandwidth=devices.memory_bandwidth_bytes_per_s,
            link=link,
            network=network,
            efficiency=efficiency or efficiency_of(devices.kind),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """What was measured on the devices at hand; None for what was not.

    Args:
        matmul_flops_per_s: The rate of a large product in `dtype`.
        dtype: Its number format.
        memory_bytes_per_s: Bytes read and written per second by a large copy.
        launch_s: Seconds of an operator on a tiny tensor.
        link: An all-gather inside a node: its latency a step, and what one device
            sends a second.
        network: The same between nodes.
    """

    matmul_flops_per_s: float | None = None
    dtype: str = "bfloat16"
    memory_bytes_per_s: float | None = None
    launch_s: float | None = None
    link: Path | None = None
    network: Path | None = None


def calibrate(hardware: Hardware, probes: Probes) -> Hardware:
    """Returns hardware whose rates are what was measured on it.

    A measured rate replaces the efficiency that was fitted elsewhere; where the number
    format has no peak, the measured rate becomes it. Measured links are taken as they
    are: what programs get out of them is in the measurement.

    Args:
        hardware: As its description says.
        probes: The measurements.

    Raises:
        ValueError: A measurement is not positive.

    Example:
        >>> node = Hardware(name="one", devices_per_node=1, memory_bytes=10**9,
        ...     peak_flops={"float32": 1e12}, memory_bandwidth=1e11,
        ...     link=Path(bytes_per_s=1e11))
        >>> found = calibrate(node, Probes(matmul_flops_per_s=8e11, dtype="float32"))
        >>> found.efficiency.matmul
        0.8
    """
    _check(probes)
    peaks, changes = dict(hardware.peak_flops), {}
    if probes.matmul_flops_per_s is not None:
        peak = max(peaks.get(probes.dtype, 0.0), probes.matmul_flops_per_s)
        peaks[probes.dtype] = peak
        changes["matmul"] = probes.matmul_flops_per_s / peak
    bandwidth = hardware.memory_bandwidth
    if probes.memory_bytes_per_s is not None:
        bandwidth = max(bandwidth, probes.memory_bytes_per_s)
        changes["memory"] = probes.memory_bytes_per_s / bandwidth
    if probes.launch_s is not None:
        changes["launch_s"] = probes.launch_s
    if probes.link is not None:
        changes["link"] = 1.0
    if probes.network is not None:
        changes["network"] = 1.0
    return dataclasses.replace(
        hardware,
        peak_flops=peaks,
        memory_bandwidth=bandwidth,
        link=probes.link or hardware.link,
        network=probes.network or hardware.network,
        efficiency=dataclasses.replace(hardware.efficiency, **changes),
    )


def _check(probes: Probes) -> None:
    found = {
        "matmul_flops_per_s": probes.matmul_flops_per_s,
        "memory_bytes_per_s": probes.memory_bytes_per_s,
        "launch_s": probes.launch_s,
        "link.bytes_per_s": None if probes.link is None else probes.link.bytes_per_s,
        "network.bytes_per_s": None
        if probes.network is None
        else probes.network.bytes_per_s,
    }
    for name, value in found.items():
        if value is not None and not 0 < value < float("inf"):
            message = f"{name} must be a positive number, got {value!r}"
            raise ValueError(message)
