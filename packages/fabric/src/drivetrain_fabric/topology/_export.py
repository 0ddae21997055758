"""A topology, and what was measured, as the cluster file that other packages read."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from drivetrain_core.services import ClusterSpec, Device, Link, NodeGroup
from drivetrain_core.services import Nic as NicSpec
from drivetrain_fabric.topology._cluster import check_hosts, find_hosts
from drivetrain_fabric.topology._errors import TopologyError

if TYPE_CHECKING:
    from drivetrain_fabric.topology._graph import Topology
    from drivetrain_fabric.topology._matrix import LinkMatrix


def to_cluster_spec(
    topology: Topology,
    *,
    count: int = 1,
    links: LinkMatrix | None = None,
    name: str | None = None,
) -> ClusterSpec:
    """Returns a cluster of hosts that are alike.

    Args:
        topology: One of them.
        count: How many there are.
        links: What was measured between them, for delays and unknown speeds.
        name: What the cluster is called; by default as the host.

    Raises:
        TopologyError: The host's GPUs differ, or say nothing of their memory.
        ClusterSpecError: `count` is less than 1.

    Example:
        >>> from drivetrain_fabric.topology import Nic, NumaNode, Topology
        >>> host = Topology(
        ...     name="a", numa_nodes=(NumaNode(index=0, memory_bytes=1 << 34),),
        ...     nics=(Nic(name="eth0", speed_mbit_per_s=10_000),))
        >>> print(to_cluster_spec(host, count=4).to_yaml())
        drivetrain_cluster: 1
        name: a
        nodes:
        - name: a
          count: 4
          memory: 16GiB
          devices:
            kind: cpu
            memory: 16GiB
            type: cpu
          nics:
            bandwidth: 10Gb/s
        <BLANKLINE>
    """
    group = to_node_group(topology, count=count, links=links)
    return ClusterSpec(name=name or topology.name, nodes=(group,))


def to_node_group(
    topology: Topology, *, count: int = 1, links: LinkMatrix | None = None
) -> NodeGroup:
    """Returns hosts that are alike, as a group of nodes.

    Its network cards are the fastest ones that are up. Where none says how fast it is,
    the speed is what `links` measured between hosts.

    Args:
        topology: One of the hosts.
        count: How many there are.
        links: What was measured between them.

    Raises:
        TopologyError: The host's GPUs differ, or say nothing of their memory.
        ClusterSpecError: `count` is less than 1.
    """
    return NodeGroup(
        name=topology.name,
        count=count,
        memory_bytes=_memory_bytes(topology),
        devices=_device(topology),
        links=_links(topology),
        nics=_nics(topology, links),
    )


def _memory_bytes(topology: Topology) -> int:
    return sum(node.memory_bytes or 0 for node in topology.numa_nodes)


def _device(topology: Topology) -> Device:
    if not topology.gpus:
        return Device(kind="cpu", memory_bytes=_memory_bytes(topology), type="cpu")
    kinds = sorted({gpu.name for gpu in topology.gpus})
    if len(kinds) > 1:
        message = f"a group of nodes has one kind of GPU, got {', '.join(kinds)}"
        raise TopologyError(message)
    sizes = [gpu.memory_bytes for gpu in topology.gpus if gpu.memory_bytes is not None]
    if len(sizes) < len(topology.gpus):
        message = (
            f"the memory of {kinds[0]} is not known: ask NVML for it, with "
            "pip install 'drivetrain-fabric[nvml]'"
        )
        raise TopologyError(message)
    return Device(kind=kinds[0], count=len(topology.gpus), memory_bytes=min(sizes))


def _links(topology: Topology) -> tuple[Link, ...]:
    """Returns what the GPU with the least sends, through NVLinks and PCI Express."""
    found = []
    nvlinks = [_nvlink_bytes_per_s(topology, gpu.label) for gpu in topology.gpus]
    known = [speed for speed in nvlinks if speed is not None]
    if known and len(known) == len(nvlinks):
        found.append(Link(kind="NVLink", bandwidth_bytes_per_s=min(known)))
    slots = [gpu.slot.link for gpu in topology.gpus]
    lanes = [link.bytes_per_s for link in slots if link is not None]
    if lanes and len(lanes) == len(slots):
        found.append(Link(kind="PCIe", bandwidth_bytes_per_s=min(lanes)))
    return tuple(sorted(found, key=lambda link: -link.bandwidth_bytes_per_s))


def _nvlink_bytes_per_s(topology: Topology, gpu: str) -> float | None:
    mine = [link for link in topology.nvlinks if gpu in (link.gpu, link.peer)]
    speeds = [link.count * link.bytes_per_s for link in mine if link.bytes_per_s]
    return sum(speeds) if speeds and len(speeds) == len(mine) else None


def _nics(topology: Topology, links: LinkMatrix | None) -> NicSpec | None:
    up = [nic for nic in topology.nics if nic.is_up]
    fastest = max((nic.best_mbit_per_s or 0 for nic in up), default=0)
    measured = _between_hosts(links) if links is not None else None
    delay_s, bytes_per_s = measured or (0.0, 0.0)
    bits_per_s = fastest * 1e6 or bytes_per_s * 8
    if not up or not bits_per_s:
        return None
    best = [nic for nic in up if (nic.best_mbit_per_s or 0) == fastest]
    return NicSpec(
        # What ranks measured is the speed of one card, the one that they use.
        count=len(best) if fastest else 1,
        bandwidth_bits_per_s=float(bits_per_s),
        latency_s=delay_s,
        rdma=all(nic.rdma is not None for nic in best),
    )


def _between_hosts(links: LinkMatrix) -> tuple[float, float] | None:
    """Returns the usual delay and speed between hosts, or None if there is one host."""
    hosts = check_hosts(find_hosts(links), links)
    host_of = {row: i for i, host in enumerate(hosts) for row in host}
    far = [(a, b) for a, b in links.pairs() if host_of[a] != host_of[b]]
    if not far:
        return None
    delay_s = statistics.median(links.delay_s[a][b] for a, b in far)
    return delay_s, statistics.median(links.bytes_per_s[a][b] for a, b in far)
