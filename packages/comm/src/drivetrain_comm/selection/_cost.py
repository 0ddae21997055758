"""Cost model of an all-reduce: a formula of a few measured numbers of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_comm.selection._load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What was measured between the hosts of a group, the worst of all of them.

    Args:
        delay_s: Of a short message, one way.
        flow_bytes_per_s: What one connection carries.
        port_bytes_per_s: What all connections of a host carry together, one way.
        local_bytes_per_s: What ranks of one host reduce through shared memory.
    """

    delay_s: float
    flow_bytes_per_s: float
    port_bytes_per_s: float
    local_bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one all-reduce takes.

    Args:
        busy_s: How long it keeps the network from others.
        alone_s: From its start to its end when it has the network for itself.
    """

    busy_s: float
    alone_s: float


# What a message costs beside its bytes, measured on two cores of a server.
MESSAGE_S = 20e-6


def cost_of(load: Load, network: Network, num_streams: int, size_bytes: int) -> Cost:
    """Returns how long an all-reduce takes.

    Bytes and hops overlap, since what arrives is passed on by segments: the longer of
    the two counts in full.

    Args:
        load: Of the algorithm.
        network: What was measured.
        num_streams: Connections to each peer.
        size_bytes: Of the vector.

    Example:
        >>> from drivetrain_comm.selection._load import Load
        >>> load = Load(link=1.5, flow=1.5, hops=6, local=0.5, messages=12)
        >>> network = Network(delay_s=5e-3, flow_bytes_per_s=50e6,
        ...     port_bytes_per_s=100e6, local_bytes_per_s=1e9)
        >>> one, two = (cost_of(load, network, n, 10_000_000) for n in (1, 2))
        >>> round(one.busy_s, 3), round(two.busy_s, 3)
        (0.3, 0.15)
    """
    flow = load.flow * size_bytes / (network.flow_bytes_per_s * num_streams)
    port = load.link * size_bytes / network.port_bytes_per_s
    local = load.local * size_bytes / network.local_bytes_per_s
    work = load.messages * num_streams * MESSAGE_S
    busy = max(flow, port, local, work)
    waits = load.hops * network.delay_s
    # The first bytes within a host must pass before those between hosts, and the last
    # after them.
    ends = 0.5 * local if load.link else 0.0
    return Cost(busy_s=busy, alone_s=max(busy, waits) + 0.25 * min(busy, waits) + ends)
