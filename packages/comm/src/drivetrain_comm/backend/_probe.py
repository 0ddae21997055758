"""Network probe: measures delay and bandwidth between the hosts of a group.

One rank of each host sends vectors to the next host, all at the same time, over one
connection and then over more, until more of them carry no more. All ranks see the same numbers: the
slowest rank's.
"""

from __future__ import annotations

import math
import time
import zlib
from typing import TYPE_CHECKING

import torch

from drivetrain_comm.algorithms import direct
from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.backend._native import make_program
from drivetrain_comm.selection._choice import MOST_STREAMS, Choice
from drivetrain_comm.selection._cost import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_comm.backend._transport import Transport

_SEGMENT_BYTES = 64 << 10
_FIRST_BYTES = 256 << 10
_LOCAL_BYTES = 1 << 20
_MOST_BYTES = 8 << 20
# How long vectors should take, and how often they are sent while speed still grows.
_TARGET_S = 0.03
_NUM_TRIES = 4
_ROUND_TRIPS = 10
_MOST_TURNS = 20
# What is sent and what is taken are cut alike, whatever the number of streams.
_GRAIN = 2 * MOST_STREAMS
# Streams that add less than this are no gain.
_LEAST_GAIN = 1.15
_UNLIMITED = 1e12


def agree_on_most(
    transport: Transport, values: Sequence[float], timeout_s: float
) -> list[float]:
    """Returns the largest of each value over all ranks.

    Args:
        transport: The ranks.
        values: As many on each of them.
        timeout_s: After how many seconds the group fails.

    Raises:
        DistributedError: A rank has failed.
    """
    tensor = torch.tensor(values, dtype=torch.float64)
    choice = Choice(algorithm="direct")
    transport.all_reduce([tensor], "MAX", choice, timeout_s).finish()
    return tensor.tolist()


def measure(transport: Transport, timeout_s: float) -> Network:
    """Returns what the network of a group carries; all ranks must call it.

    Args:
        transport: The group, of two ranks at least.
        timeout_s: After how many seconds the group fails.

    Raises:
        DistributedError: A rank has failed.
    """
    probe = _Probe(transport, timeout_s)
    local = probe.local_bytes_per_s()
    if len(transport.hosts) == 1:
        return Network(
            delay_s=0.0,
            flow_bytes_per_s=_UNLIMITED,
            port_bytes_per_s=_UNLIMITED,
            local_bytes_per_s=local,
        )
    delay_s = probe.delay_s()
    flow = best = probe.bytes_per_s(1, delay_s)
    num_streams = 1
    while num_streams < MOST_STREAMS:
        num_streams *= 2
        now = probe.bytes_per_s(num_streams, delay_s)
        has_gained = now > best * _LEAST_GAIN
        best = max(best, now)
        if not has_gained:
            break
    return Network(
        delay_s=delay_s,
        flow_bytes_per_s=flow,
        port_bytes_per_s=best,
        local_bytes_per_s=local,
    )


class _Probe:
    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        hosts = transport.hosts
        self._leaders = [ranks[0] for ranks in hosts]
        self._num_hosts = len(hosts)
        self._vector = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)

    def delay_s(self) -> float:
        """Returns how long a short message takes, one way."""
        rank = self._transport.rank
        takes_part = rank in self._leaders
        steps = (
            direct.all_reduce(self._leaders, rank, range(self._num_hosts))
            if takes_part
            else []
        )
        seconds = self._fastest(steps, self._num_hosts, 8, 1, _NUM_TRIES + 2)
        return seconds / 2

    def bytes_per_s(self, num_streams: int, delay_s: float) -> float:
        """Returns what a host sends to the next one, while all do."""
        steps = self._to_next()
        size, best, began = _FIRST_BYTES, 0.0, time.monotonic()
        target_s = max(_TARGET_S, 4 * delay_s)
        least_s = max(2 * target_s, 2 * _ROUND_TRIPS * delay_s)
        for _ in range(_MOST_TURNS):
            seconds = self._fastest(steps, 2, 2 * size, num_streams, 2)
            best = max(best, size / max(seconds - delay_s, seconds / 10))
            # Whoever leaves first must take all others along.
            spent = time.monotonic() - began
            (spent,) = agree_on_most(self._transport, [spent], self._timeout_s)
            if spent > least_s and size >= best * target_s / 2:
                break
            size = int(min(max(best * target_s, size), _MOST_BYTES)) // _GRAIN * _GRAIN
        return best

    def _to_next(self) -> list[Step]:
        """Each host sends one chunk to the next one, and takes one."""
        rank, leaders = self._transport.rank, self._leaders
        if rank not in leaders:
            return []
        at = leaders.index(rank)
        after, before = leaders[(at + 1) % len(leaders)], leaders[at - 1]
        return [Step(Kind.SEND, after, 0), Step(Kind.RECEIVE, before, 1)]

    def local_bytes_per_s(self) -> float:
        """Returns what a host moves within itself; much where no host has two ranks."""
        hosts, rank = self._transport.hosts, self._transport.rank
        most = max(len(ranks) for ranks in hosts)
        if most == 1:
            return _UNLIMITED
        host = next(ranks for ranks in hosts if rank in ranks)
        steps = direct.all_reduce(host, rank, range(most))
        seconds = self._fastest(steps, most, _LOCAL_BYTES, 1, _NUM_TRIES)
        return 2 * (most - 1) * _LOCAL_BYTES / seconds

    def _fastest(
        self,
        steps: Sequence[Step],
        num_chunks: int,
        size_bytes: int,
        num_streams: int,
        num_tries: int,
    ) -> float:
        """Returns the shortest of some tries, of the rank that is slowest at it."""
        if self._vector.numel() < size_bytes:
            self._vector = torch.zeros(size_bytes, dtype=torch.uint8)
        tensors = [self._vector[:size_bytes]]
        program = make_program(steps, num_chunks, self._transport.world_size)
        plan = zlib.crc32(f"probe {num_chunks} {num_streams}".encode())
        best = math.inf
        for _ in range(num_tries):
            start = time.perf_counter()
            ticket = self._transport.run(
                program,
                plan,
                tensors,
                "MAX",
                num_streams,
                _SEGMENT_BYTES,
                self._timeout_s,
            )
            ticket.finish()
            best = min(best, time.perf_counter() - start)
        (slowest,) = agree_on_most(self._transport, [best], self._timeout_s)
        return slowest
