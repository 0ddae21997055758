"""Measures the links between ranks by sending messages over torch's own process group.

Pairs of ranks meet in the rounds of a tournament. In each pair the lower rank leads: it
says what comes next, holds the clock, and keeps within the time of a round.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_fabric.topology._matrix import LinkMatrix
from drivetrain_fabric.topology._tournament import tournament

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_END, _PING, _PUSH, _PULL = range(4)
_NUM_PINGS = 20
_FIRST_BYTES = 64 << 10
_MOST_BYTES = 16 << 20
_GROWTH = 4
# A message must take so many round trips that their noise hardly counts.
_ROUND_TRIPS = 10
_LEAST_SHARE = 0.1


def measure_links(
    group: dist.ProcessGroup | None = None,
    *,
    budget_s: float = 5.0,
    ranks: Sequence[int] | None = None,
) -> LinkMatrix:
    """Returns the delay and speed of each pair of ranks; all ranks must call it.

    Ranks of one host share its network card, and in a round all of them may use it: for
    the speed of the card, name one rank of each host.

    Args:
        group: The ranks, with a backend for the CPU such as Gloo; by default all.
        budget_s: How long it may take, about. The first message of each pair, which
            connects them, comes on top.
        ranks: The ranks of the group to measure; by default all of them.

    Returns:
        The links, the same numbers on all ranks. The delay is half of a round trip, so
        that it is the same in both directions.

    Raises:
        DistributedError: There is no process group or it has no backend for the CPU,
            `ranks` or `budget_s` are not usable, or a rank has failed.

    Example:
        >>> from drivetrain_core.services import (
        ...     destroy_process_group, init_process_group)
        >>> _ = init_process_group()
        >>> measure_links().delay_s
        ((0.0,),)
        >>> destroy_process_group()
    """
    if not dist.is_initialized():
        message = "there is no process group: call init_process_group, under torchrun"
        raise DistributedError(message)
    devices = dist.get_backend_config(group)
    if "cpu" not in devices:
        message = (
            f"the process group has no backend for the CPU but {devices}: initialize it "
            "with 'cpu:gloo,cuda:nccl', or pass new_group(backend='gloo')"
        )
        raise DistributedError(message)
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    players = _check(
        range(world_size) if ranks is None else ranks, world_size, budget_s
    )
    rounds = tournament(len(players))
    found = torch.zeros(2, len(players), len(players), dtype=torch.float64)
    share_s = budget_s / max(len(rounds), 1)
    for a, b in (pair for pairs in rounds for pair in pairs):
        ends = players[a], players[b]
        if rank not in ends:
            continue
        wire = _Wire(group, ends[1] if rank == ends[0] else ends[0])
        try:
            if rank == ends[0]:
                delay_s, there, back = _lead(wire, share_s)
                found[:, a, b] = torch.tensor([delay_s, there], dtype=torch.float64)
                found[:, b, a] = torch.tensor([delay_s, back], dtype=torch.float64)
            else:
                _follow(wire)
        except RuntimeError as error:
            message = f"rank {rank} has lost rank {wire.peer} of {world_size}: {error}"
            raise DistributedError(message) from error
    # Each number is known to one rank, and 0 on the others.
    dist.all_reduce(found, group=group)
    delays, speeds = (tuple(tuple(row) for row in part.tolist()) for part in found)
    return LinkMatrix(delay_s=delays, bytes_per_s=speeds, ranks=tuple(players))


def _check(ranks: Sequence[int], world_size: int, budget_s: float) -> list[int]:
    if not 0 < budget_s < float("inf"):
        message = f"budget_s must be more than 0 seconds, got {budget_s}"
        raise DistributedError(message)
    wrong = [rank for rank in ranks if rank not in range(world_size)]
    if wrong or not ranks or len(set(ranks)) != len(ranks):
        message = f"ranks must be different ones from 0 to {world_size - 1}, got {list(ranks)}"
        raise DistributedError(message)
    return sorted(ranks)


class _Wire:
    """Messages to and from one other rank."""

    def __init__(self, group: dist.ProcessGroup | None, peer: int) -> None:
        self.peer = peer
        self._group = group
        self._order = torch.zeros(2, dtype=torch.int64)
        self._buffer = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)

    def command(self, what: int, size_bytes: int = 0) -> None:
        self._order[0], self._order[1] = what, size_bytes
        self._send(self._order)

    def await_command(self) -> tuple[int, int]:
        self._receive(self._order)
        what, size_bytes = self._order.tolist()
        return what, size_bytes

    def send(self, size_bytes: int = 1) -> None:
        self._send(self._bytes(size_bytes))

    def receive(self, size_bytes: int = 1) -> None:
        self._receive(self._bytes(size_bytes))

    def _bytes(self, size_bytes: int) -> torch.Tensor:
        if self._buffer.numel() < size_bytes:
            self._buffer = torch.zeros(size_bytes, dtype=torch.uint8)
        return self._buffer[:size_bytes]

    def _send(self, tensor: torch.Tensor) -> None:
        work = dist.isend(tensor, group=self._group, group_dst=self.peer)
        if work is not None:
            work.wait()

    def _receive(self, tensor: torch.Tensor) -> None:
        work = dist.irecv(tensor, group=self._group, group_src=self.peer)
        if work is not None:
            work.wait()


def _lead(wire: _Wire, share_s: float) -> tuple[float, float, float]:
    """Returns the delay, and the speeds to the other rank and back."""
    _ping(wire)  # it may have to connect, and wait for the other to come
    start = time.perf_counter()
    trips = [_ping(wire) for _ in range(3)]
    while len(trips) < _NUM_PINGS and time.perf_counter() - start < share_s / 4:
        trips.append(_ping(wire))
    trip_s = min(trips)
    deadline = start + share_s
    there = _speed(lambda size: _push(wire, size), trip_s, start + share_s * 0.6)
    back = _speed(lambda size: _pull(wire, size), trip_s, deadline)
    wire.command(_END)
    return trip_s / 2, there, back


def _follow(wire: _Wire) -> None:
    while True:
        what, size_bytes = wire.await_command()
        if what == _END:
            return
        if what == _PULL:
            wire.send(size_bytes)
        else:
            wire.send()
        if what == _PUSH:
            wire.receive(size_bytes)
            wire.send()


def _ping(wire: _Wire) -> float:
    start = time.perf_counter()
    wire.command(_PING)
    wire.receive()
    return time.perf_counter() - start


def _push(wire: _Wire, size_bytes: int) -> float:
    wire.command(_PUSH, size_bytes)
    wire.receive()
    start = time.perf_counter()
    wire.send(size_bytes)
    wire.receive()
    return time.perf_counter() - start


def _pull(wire: _Wire, size_bytes: int) -> float:
    start = time.perf_counter()
    wire.command(_PULL, size_bytes)
    wire.receive(size_bytes)
    return time.perf_counter() - start


def _speed(send: Callable[[int], float], trip_s: float, deadline: float) -> float:
    """Returns the bytes a second of messages that grow as long as there is time."""
    size, best = _FIRST_BYTES, 0.0
    while True:
        now = time.perf_counter()
        seconds = send(size)
        spent = time.perf_counter() - now
        # What a message takes beside its round trip is its bytes.
        pure = max(seconds - trip_s, seconds * _LEAST_SHARE)
        best = max(best, size / pure)
        is_long = seconds > _ROUND_TRIPS * trip_s and size > _FIRST_BYTES
        if not is_long and size < _MOST_BYTES:
            size, spent = size * _GROWTH, spent * _GROWTH
        if time.perf_counter() + spent > deadline:
            return best
