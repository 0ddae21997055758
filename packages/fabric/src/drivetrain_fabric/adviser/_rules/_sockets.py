"""How many sockets NCCL opens to a peer, and by how many threads they are served."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import env

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice, Level
    from drivetrain_fabric.adviser._facts import Facts

_THREADS, _SOCKETS = "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"
_MOST_PRODUCT, _MOST_THREADS = 64, 16
_SOCKETS_OF_A_THREAD = 4
_100_GBPS = 100e9 / 8
# What NCCL opens by itself on the cards of two clouds.
_OF_CLOUD = {"amazon": 2 * 8, "google": 4 * 1, None: 1}
# A connection that carries 95% of the network needs no second one.
_SLACK = 0.05


def threads_and_sockets(connections: int) -> tuple[int, int]:
    """Returns threads, and sockets of each, for a number of connections.

    A thread serves up to 4 sockets, as in the manual's 4 x 4 for 100 Gb/s. NCCL takes
    at most 16 threads and 64 sockets in all.

    Args:
        connections: How many are needed.

    Example:
        >>> [threads_and_sockets(n) for n in (1, 4, 16, 1000)]
        [(1, 1), (1, 4), (4, 4), (16, 4)]
    """
    wanted = min(connections, _MOST_PRODUCT)
    threads = 1
    while threads < _MOST_THREADS and wanted > threads * _SOCKETS_OF_A_THREAD:
        threads *= 2
    return threads, math.ceil(wanted / threads)


def window_bytes_per_s(facts: Facts) -> float | None:
    """Returns what the kernel's buffers let one connection carry; None if unknown.

    Half of a buffer holds what is under way; the rest is bookkeeping.

    Args:
        facts: The delay, and the kernel's limits.

    Example:
        >>> from drivetrain_fabric.adviser import Facts
        >>> window_bytes_per_s(Facts(
        ...     delay_s=0.01, sysctl=(("net.ipv4.tcp_wmem", "4096 16384 4000000"),)))
        100000000.0
    """
    limits = [facts.kernel_numbers(f"net.ipv4.tcp_{end}mem") for end in "wr"]
    most = [numbers[2] for numbers in limits if len(numbers) == 3 and numbers[2] > 0]
    if not facts.delay_s or not most:
        return None
    return min(most) / 2 / (2 * facts.delay_s)


def advise_sockets(facts: Facts) -> list[Advice | Gap]:
    """Returns the number of sockets and threads that fill the network.

    Args:
        facts: What is known.
    """
    if facts.transport != "sockets":
        return []
    speed = facts.fastest_bytes_per_s
    if speed is None:
        lacks = "how fast the network is: no card that is up says so"
        return [Gap(subject="sockets", lacks=lacks, give="--gbps"), *_too_many(facts)]
    # What was measured holds, whatever buffers make one expect.
    is_measured = facts.flow_bytes_per_s is not None
    flow = facts.flow_bytes_per_s or window_bytes_per_s(facts)
    if flow is None and speed >= _100_GBPS and _default(facts) == 1:
        because = (
            f"the network has {_gbps(speed)}, and NCCL opens 1 socket to a peer; what "
            "one socket carries is not known, 4 x 4 is what the manual names for it"
        )
        return _pair(4, 4, "try", because)
    if flow is None:
        lacks = "what one TCP connection carries at most"
        give = "--flow-gbps, or --measured with what drivetrain comm tune --json says"
        return [Gap(subject="sockets", lacks=lacks, give=give), *_too_many(facts)]
    needed = max(1, math.ceil(speed / flow - _SLACK))
    if needed <= _default(facts):
        return _too_many(facts)
    threads, sockets = threads_and_sockets(needed)
    why = (
        "measured or given"
        if is_measured
        else "the kernel's buffers let no more under way"
    )
    because = (
        f"one connection carries {_gbps(flow)} ({why}), the network {_gbps(speed)}: "
        f"{min(needed, _MOST_PRODUCT)} are needed, NCCL opens {_default(facts)}"
    )
    return _pair(threads, sockets, "warn" if is_measured else "try", because)


def _pair(threads: int, sockets: int, level: Level, because: str) -> list[Advice | Gap]:
    return [
        env(_THREADS, threads, level, because),
        env(_SOCKETS, sockets, level, because),
    ]


def _too_many(facts: Facts) -> list[Advice | Gap]:
    threads, sockets = facts.number_of(_THREADS), facts.number_of(_SOCKETS)
    if threads is None or sockets is None or not 1 <= threads <= _MOST_THREADS:
        return []
    if threads * sockets <= _MOST_PRODUCT:
        return []
    because = (
        f"{threads} threads x {sockets} sockets are {threads * sockets}, and NCCL opens "
        f"{_MOST_PRODUCT} at most"
    )
    return [env(_SOCKETS, _MOST_PRODUCT // threads, "warn", because)]


def _default(facts: Facts) -> int:
    clouds = [one.cloud for one in facts.interfaces]
    return max((_OF_CLOUD[cloud] for cloud in clouds), default=1)


def _gbps(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8e-9:.3g} Gb/s"
