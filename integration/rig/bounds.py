"""Lower bounds, in seconds, of allreduces and of training steps on shaped links.

W is the number of ranks, N of hosts, L of ranks on each host, S the size in bytes. Every
host sends and receives at the rate of its port, at once; within a host everything is
free. `hosts` says for each rank on which host it is, in the order of the ranks, as
`contiguous` and `round_robin` return it. Delays are one-way, in seconds.
"""

from __future__ import annotations

import math


def contiguous(num_hosts, ranks_per_host):
    """Hosts of ranks that lie together, as torchrun numbers them.

    >>> contiguous(2, 3)
    [0, 0, 0, 1, 1, 1]
    """
    return [i // ranks_per_host for i in range(num_hosts * ranks_per_host)]


def round_robin(num_hosts, ranks_per_host):
    """Hosts of ranks that are dealt out one by one, as some schedulers do.

    >>> round_robin(2, 3)
    [0, 1, 0, 1, 0, 1]
    """
    return [i % num_hosts for i in range(num_hosts * ranks_per_host)]


def flows_out(hosts):
    """How many flows of a ring in rank order leave the host where most do.

    >>> flows_out(contiguous(2, 4)), flows_out(round_robin(2, 4))
    (1, 4)
    """
    leaving = [h for i, h in enumerate(hosts) if hosts[(i + 1) % len(hosts)] != h]
    return max((leaving.count(host) for host in set(hosts)), default=0)


def flat_ring(
    size_bytes, hosts, bytes_per_s, *, flow_bytes_per_s=math.inf, delay_s=0.0
):
    """A ring in rank order: 2(W-1)/W S over each link, which its flows share.

    The latency is that of the part whose 2(W-1) hops between ranks cross most often.

    Args:
        size_bytes: What is reduced.
        hosts: The host of each rank.
        bytes_per_s: The rate of a port.
        flow_bytes_per_s: The most that one connection gets.
        delay_s: The one-way delay between hosts.

    Example:
        >>> flat_ring(16e6, contiguous(2, 4), 50e6)
        0.56
        >>> flat_ring(16e6, round_robin(2, 4), 50e6)
        2.24
        >>> flat_ring(0, contiguous(8, 1), 50e6, delay_s=0.005)
        0.07
    """
    count = len(hosts)
    num_flows = flows_out(hosts)
    if not num_flows:
        return 0.0
    rate = min(bytes_per_s / num_flows, flow_bytes_per_s)
    crosses = [hosts[i] != hosts[(i + 1) % count] for i in range(count)]
    hops = max(
        sum(crosses[(start + i) % count] for i in range(2 * (count - 1)))
        for start in range(count)
    )
    return 2 * (count - 1) / count * size_bytes / rate + hops * delay_s


def hierarchical(size_bytes, num_hosts, bytes_per_s, *, delay_s=0.0):
    """A ring of hosts after sums within them: 2(N-1)/N S, in 2(N-1) hops.

    >>> hierarchical(16e6, 2, 50e6)
    0.32
    """
    part = 2 * (num_hosts - 1) / num_hosts
    return part * size_bytes / bytes_per_s + 2 * (num_hosts - 1) * delay_s


def direct(size_bytes, hosts, bytes_per_s, *, delay_s=0.0):
    """Each rank sends each other one its part, then its sum: 2 L(W-L)/W S, in 2 hops.

    >>> round(direct(16e6, contiguous(8, 1), 50e6, delay_s=0.005), 9)
    0.57
    """
    count = len(hosts)
    crossing = max(n * (count - n) for n in map(hosts.count, set(hosts)))
    hops = 2 if len(set(hosts)) > 1 else 0
    return 2 * crossing / count * size_bytes / bytes_per_s + hops * delay_s


def halving_doubling(size_bytes, hosts, bytes_per_s, *, delay_s=0.0):
    """Recursive halving, nearest ranks first, and doubling back: 2 log2(W) hops.

    In step i each rank sends S / 2^(i+1) to the one whose number differs in bit i.

    Raises:
        ValueError: The number of ranks is no power of two.

    Example:
        >>> halving_doubling(16e6, contiguous(2, 4), 50e6, delay_s=0.005)
        0.33
        >>> halving_doubling(16e6, round_robin(2, 4), 50e6)
        1.28
    """
    count = len(hosts)
    if count & (count - 1):
        raise ValueError(f"the number of ranks must be a power of two, not {count}")
    total = 0.0
    for step in range(count.bit_length() - 1):
        leaving = [h for i, h in enumerate(hosts) if hosts[i ^ (1 << step)] != h]
        if leaving:
            most = max(leaving.count(host) for host in set(leaving))
            total += most * size_bytes / 2 ** (step + 1) / bytes_per_s + delay_s
    return 2 * total


def any_allreduce(size_bytes, num_hosts, bytes_per_s, *, delay_s=0.0):
    """What no algorithm is faster than: 2(N-1)/N S through a port, and one delay.

    >>> any_allreduce(16e6, 2, 50e6, delay_s=0.005)
    0.325
    """
    if num_hosts == 1:
        return 0.0
    return hierarchical(size_bytes, num_hosts, bytes_per_s) + delay_s


def overlapped(ready_s, communication_s):
    """The end of communications that run one after another, each once it is ready.

    Args:
        ready_s: When each bucket can be sent, in the order of sending.
        communication_s: How long each of them takes.

    Example:
        >>> overlapped([1.0, 2.0, 3.0], [0.5, 2.0, 2.0])
        6.0
    """
    now = 0.0
    for ready, takes in zip(ready_s, communication_s, strict=True):
        now = max(now, ready) + takes
    return now


def step(gradients, compute_s, num_hosts, bytes_per_s, *, delay_s=0.0):
    """What no training step with synchronous gradients is faster than.

    Args:
        gradients: Pairs (time in seconds when it is ready, size in bytes), by time.
        compute_s: How long the step computes.
        num_hosts: How many hosts there are.
        bytes_per_s: The rate of a port.
        delay_s: The one-way delay between hosts.

    Example:
        >>> step([(0.5, 25e6), (1.0, 25e6)], 1.0, 2, 50e6)
        1.5
        >>> step([(0.5, 25e6), (1.0, 25e6)], 1.0, 1, 50e6)
        1.0
    """
    ready = [time for time, _ in gradients]
    takes = [any_allreduce(size, num_hosts, bytes_per_s) for _, size in gradients]
    if num_hosts > 1:
        return max(compute_s, overlapped(ready, takes) + delay_s)
    return compute_s
