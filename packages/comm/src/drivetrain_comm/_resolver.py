"""Checks of the host before a start: resolver, connection backlog, open files, ports.

The dearest trap is reverse lookup: for each connection of its stores, torch asks the
resolver for the peer's name, and asks for IPv4 peers as `::ffff:1.2.3.4`, which few
hosts files list. A name server that does not answer then costs seconds a connection.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SLOW_S = 0.05
_BAD_S = 0.5
_AT_ONCE = 8
# Files that a training process has open besides its connections.
_OTHER_FILES = 256
# Of a rank whose groups connect lazily: neighbours in each group, and the stores.
_LAZY_CONNECTIONS = 64
_LAZY = "TORCH_GLOO_LAZY_INIT"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: What it is: `resolver`, `somaxconn`, `open files`, `ports`.
        level: `ok`, `warn` (it may cost time) or `bad` (it will, or a start fails).
        because: What was found, with values.
        fix: What to do, or empty.
    """

    name: str
    level: Literal["ok", "warn", "bad"]
    because: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """A question to the resolver.

    Args:
        asked: The name or the address, as torch asks for it.
        seconds: How long the answer took, or how long it was waited for.
        answer: What came, also that there is no name; None if nothing came.
    """

    asked: str
    seconds: float
    answer: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a start depends on; None where the system does not say.

    Args:
        lookups: Of the master and of this host.
        somaxconn: How many connections may wait to be accepted.
        open_files: The soft and the hard limit.
        ports: The first and the last port that outgoing connections use.
    """

    lookups: tuple[Lookup, ...] = ()
    somaxconn: int | None = None
    open_files: tuple[int, int] | None = None
    ports: tuple[int, int] | None = None


def startup_findings(
    *,
    world_size: int,
    ranks_per_host: int = 8,
    master: str | None = None,
    most_s: float = 6.0,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Finding, ...]:
    """Returns what makes or would make a start slow on this host.

    Args:
        world_size: The number of ranks that are to start.
        ranks_per_host: How many of them on this host.
        master: The name or address of the store's host; by default MASTER_ADDR, else
            this host.
        most_s: How long the resolver may take; it then counts as not answering.
        environment: Where the variables stand.

    Example:
        >>> [finding.name for finding in startup_findings(world_size=16, most_s=0.1)]
        ['resolver', 'somaxconn', 'open files', 'ports']
    """
    master = master or environment.get("MASTER_ADDR") or socket.gethostname()
    is_lazy = environment.get(_LAZY, "0").lower() in {"1", "y", "yes", "true", "t"}
    found = probe(master, most_s)
    return decide(found, world_size, ranks_per_host, is_lazy=is_lazy)


def decide(
    found: Surroundings, world_size: int, ranks_per_host: int, *, is_lazy: bool
) -> tuple[Finding, ...]:
    """Returns a finding for each thing that was looked at; pure.

    Args:
        found: What `probe` saw.
        world_size: The number of ranks.
        ranks_per_host: How many of them on this host.
        is_lazy: Whether Gloo connects when it first needs a peer.
    """
    connections = _LAZY_CONNECTIONS if is_lazy else world_size
    return (
        _judge_resolver(found.lookups),
        _judge_somaxconn(found.somaxconn, world_size),
        # The store is within rank 0, which then has a connection of each rank as well.
        _judge_files(found.open_files, world_size + connections + _OTHER_FILES),
        _judge_ports(found.ports, ranks_per_host * connections, is_lazy=is_lazy),
    )


def probe(master: str, most_s: float = 6.0) -> Surroundings:
    """Looks at this host; it takes at most `most_s` seconds and a little more.

    Args:
        master: The name or address of the store's host.
        most_s: How long the resolver may take.
    """
    deadline = time.monotonic() + most_s
    forward = _ask([master], _address_of, deadline)[0]
    address = forward.answer if _is_address(forward.answer) else None
    targets = dict.fromkeys(a for a in (address, _own_address(address)) if a)
    back = _ask([f"::ffff:{target}" for target in targets], _name_of, deadline)
    ports = _numbers("/proc/sys/net/ipv4/ip_local_port_range")
    somaxconn = _numbers("/proc/sys/net/core/somaxconn")
    return Surroundings(
        lookups=(forward, *back),
        somaxconn=somaxconn[0] if somaxconn else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        ports=(ports[0], ports[1]) if len(ports) == 2 else None,
    )


def _judge_resolver(lookups: Sequence[Lookup]) -> Finding:
    slowest = max(lookups, key=lambda lookup: lookup.seconds, default=None)
    if slowest is None:
        return Finding(name="resolver", level="ok", because="nothing was asked")
    for one in lookups:
        if "::ffff:" not in one.asked and (one.answer or "").startswith("none"):
            because = f"there is no address of {one.asked}: {one.answer}"
            fix = "add it to /etc/hosts on all hosts, or give rank 0's host by its address"
            return Finding(name="resolver", level="bad", because=because, fix=fix)
    took = f"{slowest.seconds:.2f} s"
    because = f"looking up {slowest.asked} took {took}"
    if slowest.answer is None:
        because = f"looking up {slowest.asked} had no answer within {took}"
    if slowest.seconds < _SLOW_S and slowest.answer is not None:
        return Finding(name="resolver", level="ok", because=because)
    bare = slowest.asked.removeprefix("::ffff:")
    line = f"ADDRESS {bare}"
    if bare != slowest.asked:
        line = f"{slowest.asked} host-{bare.replace('.', '-')}"
    return Finding(
        name="resolver",
        level="warn" if slowest.seconds < _BAD_S else "bad",
        because=f"{because}, and torch looks up each connection's peer",
        fix=(
            f"add the line '{line}' to /etc/hosts on all hosts, or start with "
            "RES_OPTIONS='timeout:1 attempts:1', or repair the name server"
        ),
    )


def _judge_somaxconn(somaxconn: int | None, world_size: int) -> Finding:
    name = "somaxconn"
    if somaxconn is None:
        return Finding(name=name, level="ok", because="this system does not say")
    because = f"{somaxconn} connections may wait, {world_size} ranks may come at once"
    if somaxconn >= world_size:
        return Finding(name=name, level="ok", because=because)
    return Finding(
        name=name,
        level="warn",
        because=f"{because}; those turned away try again a second later",
        fix=f"sysctl -w net.core.somaxconn={_round_up(world_size)} on the store's host",
    )


def _judge_files(limits: tuple[int, int] | None, needed: int) -> Finding:
    name = "open files"
    if limits is None:
        return Finding(name=name, level="ok", because="this system does not say")
    soft, hard = (1 << 62 if n == resource.RLIM_INFINITY else n for n in limits)
    because = f"a process may open {soft} files, rank 0 needs about {needed}"
    if soft >= needed:
        return Finding(name=name, level="ok", because=because)
    wanted = _round_up(needed)
    fix = f"ulimit -n {wanted} before the start"
    if hard < wanted:
        fix = (
            f"raise the hard limit from {hard} (nofile {wanted} in limits.conf, "
            f"LimitNOFILE={wanted} in systemd, --ulimit nofile={wanted} in Docker)"
        )
    return Finding(name=name, level="bad", because=because, fix=fix)


def _judge_ports(
    ports: tuple[int, int] | None, needed: int, *, is_lazy: bool
) -> Finding:
    name = "ports"
    if ports is None:
        return Finding(name=name, level="ok", because="this system does not say")
    first, last = ports
    because = f"{last - first + 1} ports, and up to {needed} connections from this host"
    if last - first + 1 >= needed:
        return Finding(name=name, level="ok", because=because)
    fix = "sysctl -w net.ipv4.ip_local_port_range='1024 65535'"
    if not is_lazy:
        fix = f"start with {_LAZY}=1, so that not all ranks connect to all, or {fix}"
    return Finding(name=name, level="warn", because=because, fix=fix)


def _ask(
    names: Sequence[str], question: Callable[[str], str], deadline: float
) -> list[Lookup]:
    """Returns the slowest of several lookups of each name, all at the same time.

    Some name servers answer one question at once and drop others that come with it, as
    those of the ranks of a host do.
    """
    slowest: dict[str, tuple[float, str]] = {}

    def ask(name: str) -> None:
        started = time.monotonic()
        try:
            answer = question(name)
        except OSError as error:
            # That there is no name is an answer as well, if it comes at once.
            answer = f"none ({error})"
        took = time.monotonic() - started, answer
        with lock:
            slowest[name] = max(slowest.get(name, took), took)
            pending[name] -= 1

    lock = threading.Lock()
    pending = dict.fromkeys(names, _AT_ONCE)
    # A resolver that hangs keeps its thread, not the caller.
    threads = [
        threading.Thread(target=ask, args=[name], daemon=True)
        for name in pending
        for _ in range(_AT_ONCE)
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    waited = time.monotonic() - started
    with lock:
        found = {
            name: (waited, None) if pending[name] else slowest[name] for name in pending
        }
    return [
        Lookup(asked=name, seconds=seconds, answer=answer)
        for name, (seconds, answer) in found.items()
    ]


def _address_of(name: str) -> str:
    # The first is of IPv4, if there is any.
    return str(min(socket.getaddrinfo(name, None))[4][0])


def _name_of(address: str) -> str:
    return socket.getnameinfo((address, 0, 0, 0), 0)[0]


def _is_address(text: str | None) -> bool:
    try:
        socket.inet_aton(text or "")
    except OSError:
        return False
    return True


def _own_address(target: str | None) -> str | None:
    """Returns the address from which this host reaches another."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            # Connecting a datagram socket sends nothing: it only asks for the route.
            sock.connect((target or "192.0.2.1", 9))
            return str(sock.getsockname()[0])
    except OSError:
        return None


def _numbers(path: str) -> list[int]:
    try:
        return [int(word) for word in Path(path).read_text().split()]
    except (OSError, ValueError):
        return []


def _round_up(number: int) -> int:
    return 1 << (number - 1).bit_length()
