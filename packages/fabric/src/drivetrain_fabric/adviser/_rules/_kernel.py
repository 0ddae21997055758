"""What the kernel's TCP must hold so that a connection fills the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import sysctl
from drivetrain_fabric.adviser._rules._sources import GLOO, KERNEL

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Facts

_MOST_BUFFER = 1 << 30
# Gloo asks for no larger buffer.
_MOST_OF_GLOO = 32 << 20
_LARGEST_PLAIN_WINDOW = 65_535
# How many numbers each has.
_COUNTS = {"net.ipv4.tcp_wmem": 3, "net.ipv4.tcp_rmem": 3, "net.core.wmem_max": 1}
# Below, a connection that begins slowly again loses less than a step notices.
_LONG_DELAY_S = 1e-3


def advise_kernel(facts: Facts) -> list[Advice | Gap]:
    """Returns sysctls for networks that are reached over sockets.

    Args:
        facts: What is known.
    """
    if facts.transport != "sockets":
        return []
    found: list[Advice | Gap] = [*_unreadable(facts)]
    if facts.bdp_bytes is None:
        found.append(_gap(facts))
    else:
        found += _buffers(facts, facts.bdp_bytes)
    values = dict(facts.sysctl)
    if values.get("net.ipv4.tcp_moderate_rcvbuf") == "0":
        because = "the kernel does not grow receive buffers by itself"
        found.append(
            sysctl("net.ipv4.tcp_moderate_rcvbuf", "1", "warn", because, KERNEL)
        )
    delay_s = facts.delay_s or 0.0
    if (
        values.get("net.ipv4.tcp_slow_start_after_idle") == "1"
        and delay_s >= _LONG_DELAY_S
    ):
        because = (
            "between steps connections are idle, and then begin slowly again, at a "
            f"delay of {delay_s * 1e3:.3g} ms"
        )
        name = "net.ipv4.tcp_slow_start_after_idle"
        found.append(sysctl(name, "0", "try", because, KERNEL))
    several = len(facts.interfaces) > 1
    if values.get("net.ipv4.conf.all.rp_filter") == "1" and several:
        because = (
            f"{len(facts.interfaces)} interfaces are up, and the strict filter drops "
            "packets that come in on another one than answers go out"
        )
        found.append(sysctl("net.ipv4.conf.all.rp_filter", "2", "try", because, KERNEL))
    return found


def _buffers(facts: Facts, under_way: int) -> list[Advice | Gap]:
    """Returns limits of buffers: what is under way, and as much for bookkeeping."""
    needed = min(_power_of_two(2 * under_way), _MOST_BUFFER)
    found: list[Advice | Gap] = []
    for name in ("net.ipv4.tcp_wmem", "net.ipv4.tcp_rmem"):
        numbers = facts.kernel_numbers(name)
        if len(numbers) == 3 and numbers[2] < needed and numbers[2] < 2 * under_way:
            because = (
                f"{under_way} bytes are under way when the network is full; a "
                f"connection may keep {numbers[2]}, and needs twice what is under way"
            )
            value = f"{numbers[0]} {numbers[1]} {needed}"
            found.append(sysctl(name, value, "warn", because, KERNEL))
    most = facts.kernel_numbers("net.core.wmem_max")
    wanted = min(_power_of_two(under_way), _MOST_OF_GLOO)
    if most and most[0] < wanted and most[0] < under_way:
        because = (
            f"Gloo asks for a send buffer and gets 2 x {most[0]} bytes at most, where "
            f"{under_way} are under way"
        )
        name = "net.core.wmem_max"
        found.append(sysctl(name, str(wanted), "warn", because, GLOO))
    values = dict(facts.sysctl)
    scaling = values.get("net.ipv4.tcp_window_scaling")
    if scaling == "0" and under_way > _LARGEST_PLAIN_WINDOW:
        because = f"without it at most 65535 bytes are under way, not {under_way}"
        found.append(sysctl("net.ipv4.tcp_window_scaling", "1", "bad", because, KERNEL))
    return found


def _unreadable(facts: Facts) -> list[Gap]:
    """Returns the limits of buffers that hold something else than numbers."""
    return [
        Gap(
            subject=name,
            lacks=f"numbers of bytes, {_COUNTS[name]} in all; it says {text[:60]!r}",
            give="read it again on the host",
        )
        for name, text in facts.sysctl
        if name in _COUNTS and len(facts.kernel_numbers(name)) != _COUNTS[name]
    ]


def _gap(facts: Facts) -> Gap:
    lacks = [] if facts.delay_s is not None else ["the delay to other hosts"]
    give = [] if facts.delay_s is not None else ["--delay-ms"]
    if facts.fastest_bytes_per_s is None:
        lacks.append("how fast the network is")
        give.append("--gbps")
    return Gap(
        subject="kernel buffers",
        lacks=" and ".join(lacks),
        give=f"{' and '.join(give)}, or --measured",
    )


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
