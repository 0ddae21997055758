"""Carries a schedule out by point-to-point messages of torch's process groups."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_comm.algorithms._steps import Kind, Step
from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._schedule import Schedule
from drivetrain_comm.compiler._verify import transfers_of, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_comm.compiler._schedule import Transfer

_AHEAD = 8  # receives that are posted before their turn, from each peer
_MOST_UNSETTLED = 64  # receives whose data waits to be added

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "sum": torch.Tensor.add_,
    "avg": torch.Tensor.add_,
    "product": torch.Tensor.mul_,
    "min": lambda mine, other: torch.minimum(mine, other, out=mine),
    "max": lambda mine, other: torch.maximum(mine, other, out=mine),
}


class ScheduleRunner:
    """Runs one schedule in a process group, as often as asked.

    The result is the same bit by bit on all ranks, and at each run of equal input: the
    schedule says in which order what is added.

    Not thread-safe: one run of a group at a time. A run that raises, as when a peer is
    gone, leaves messages behind; the group is of no use after.

    Args:
        schedule: It is verified here.
        group: The ranks, whose number is the schedule's; None for all of the job.
        in_rounds: Whether messages go in rounds, each one batch, as NCCL needs; by
            default for tensors that are not on the CPU. Otherwise each message goes as
            soon as it may.

    Raises:
        ScheduleError: The schedule is wrong, or is for another number of ranks.
    """

    def __init__(
        self,
        schedule: Schedule,
        group: dist.ProcessGroup | None = None,
        *,
        in_rounds: bool | None = None,
    ) -> None:
        """Verifies the schedule."""
        given: object = schedule
        if not isinstance(given, Schedule):
            message = (
                f"a schedule must be a Schedule, got {type(given).__name__}; "
                "load_schedule reads a file"
            )
            raise ScheduleError(message)
        verify(schedule)
        size = dist.get_world_size(group)
        if size < 0:
            message = f"{schedule.name}: this rank is not in the group"
            raise ScheduleError(message)
        if size != schedule.num_ranks:
            message = (
                f"{schedule.name} is for {schedule.num_ranks} ranks, and the group has "
                f"{size}"
            )
            raise ScheduleError(message)
        self.schedule = schedule
        self._group = group
        self._rank = dist.get_rank(group)
        self._in_rounds = in_rounds
        # In one order on all ranks, so that none waits for what comes later elsewhere:
        # a program's own order says only what depends on what.
        self._transfers = transfers_of(schedule)
        self._rounds: list[list[Transfer]] | None = None

    def part(self, num_elements: int, rank: int) -> list[slice]:
        """Returns where in a vector the chunks lie that a rank owns.

        Args:
            num_elements: Of the vector.
            rank: The owner.
        """
        return [
            self._slice(num_elements, chunk)
            for chunk, owner in enumerate(self.schedule.owners)
            if owner == rank
        ]

    def run(self, vector: torch.Tensor, op: str = "sum") -> None:
        """Carries the schedule out on a vector, in place; all ranks call it.

        all_reduce: all elements are reduced. reduce_scatter: those of this rank's part,
        and the others are of no use after. all_gather: the parts of others are
        written. broadcast: the vector of the owner is written to all.

        Args:
            vector: Contiguous; as long on all ranks.
            op: "sum", "avg", "product", "min" or "max".

        Raises:
            ScheduleError: The tensor is not contiguous, or there is no such operation
                on its dtype.
        """
        if op not in _COMBINE:
            message = f"op must be one of {', '.join(_COMBINE)}, got {op!r}"
            raise ScheduleError(message)
        if op == "avg" and not vector.is_floating_point():
            message = f"an average of {vector.dtype} is not defined; use sum"
            raise ScheduleError(message)
        if op in ("min", "max") and vector.is_complex():
            message = f"the {op} of {vector.dtype} is not defined"
            raise ScheduleError(message)
        if not vector.is_contiguous():
            message = f"the vector must be contiguous, got strides {vector.stride()}"
            raise ScheduleError(message)
        flat = vector.detach().view(-1)
        chunks = [
            flat[self._slice(flat.numel(), c)] for c in range(self.schedule.num_chunks)
        ]
        in_rounds = self._in_rounds
        if in_rounds is None:
            in_rounds = vector.device.type != "cpu"
        with torch.no_grad():
            if in_rounds:
                self._run_rounds(chunks, op)
            else:
                _Flow(self, chunks, op).run()
            if op == "avg":
                self._divide(chunks)

    def _divide(self, chunks: Sequence[torch.Tensor]) -> None:
        # As torch's backends do: the sum is divided.
        for chunk, owner in zip(chunks, self.schedule.owners, strict=True):
            is_mine = (
                owner == self._rank and self.schedule.collective == "reduce_scatter"
            )
            if is_mine or self.schedule.collective == "all_reduce":
                chunk.div_(self.schedule.num_ranks)

    def _slice(self, num_elements: int, chunk: int) -> slice:
        num_chunks = self.schedule.num_chunks
        start = num_elements * chunk // num_chunks
        return slice(start, num_elements * (chunk + 1) // num_chunks)

    def _run_rounds(self, chunks: Sequence[torch.Tensor], op: str) -> None:
        if self._rounds is None:
            self._rounds = _rounds(self._transfers)
        for transfers in self._rounds:
            requests = []
            added: list[tuple[int, torch.Tensor]] = []
            for source, target, chunk, adds in transfers:
                if not chunks[chunk].numel():
                    continue
                if source == self._rank:
                    requests.append(self._request(dist.isend, chunks[chunk], target))
                if target == self._rank:
                    into = chunks[chunk]
                    if adds:
                        into = torch.empty_like(into)
                        added.append((chunk, into))
                    requests.append(self._request(dist.irecv, into, source))
            for work in dist.batch_isend_irecv(requests) if requests else ():
                work.wait()
            for chunk, other in added:
                _COMBINE[op](chunks[chunk], other)

    def _request(self, call: Any, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(call, tensor, group=self._group, group_peer=peer)


def _rounds(transfers: Sequence[Transfer]) -> list[list[Transfer]]:
    """Returns transfers in rounds, each after those that it depends on.

    In a round a rank sends one message at most to each peer.
    """
    round_of: dict[tuple[Any, ...], int] = {}
    found: list[list[Transfer]] = []
    for transfer in transfers:
        source, target, chunk, _ = transfer
        keys = ((source, chunk), (target, chunk), ("lane", source, target))
        at = max(round_of.get(key, -1) for key in keys) + 1
        for key in keys:
            round_of[key] = at
        if at == len(found):
            found.append([])
        found[at].append(transfer)
    return found


def _steps_of(transfers: Sequence[Transfer], rank: int) -> Iterator[Step]:
    for source, target, chunk, adds in transfers:
        if source == rank:
            yield Step(Kind.SEND, target, chunk)
        elif target == rank:
            yield Step(Kind.REDUCE if adds else Kind.RECEIVE, source, chunk)


class _Arrival:
    """A receive on its way, and what is to be done with what comes."""

    def __init__(self, work: dist.Work, into: torch.Tensor) -> None:
        self.work = work
        self.into = into
        self.adds = False


class _Flow:
    """One run, in which each message goes as soon as its chunk is ready."""

    def __init__(
        self, runner: ScheduleRunner, chunks: Sequence[torch.Tensor], op: str
    ) -> None:
        self._group = runner._group
        self._chunks = chunks
        self._combine = _COMBINE[op]
        self._program = [
            step
            for step in _steps_of(runner._transfers, runner._rank)
            if chunks[step.chunk].numel()
        ]
        # Of each peer: what is to come from it, and what is on its way.
        self._to_come: dict[int, deque[Step]] = {}
        self._coming: dict[int, deque[_Arrival]] = {}
        # By chunk, what has come or will, and what still reads it.
        self._unsettled: dict[int, _Arrival] = {}
        self._reads: dict[int, list[dist.Work]] = {}
        for step in self._program:
            if step.kind != Kind.SEND:
                self._to_come.setdefault(step.peer, deque()).append(step)

    def run(self) -> None:
        for peer in self._to_come:
            for _ in range(_AHEAD):
                self._post(peer)
        for kind, peer, chunk in self._program:
            self._settle(chunk)
            if kind == Kind.SEND:
                work = dist.isend(
                    self._chunks[chunk], group=self._group, group_dst=peer
                )
                assert work is not None
                self._reads.setdefault(chunk, []).append(work)
            else:
                arrival = self._coming[peer].popleft()
                arrival.adds = kind == Kind.REDUCE
                self._unsettled[chunk] = arrival
                self._post(peer)
                if len(self._unsettled) > _MOST_UNSETTLED:
                    self._settle(next(iter(self._unsettled)))
        for chunk in list(self._unsettled):
            self._settle(chunk)
        for works in self._reads.values():
            for work in works:
                work.wait()

    def _post(self, peer: int) -> None:
        if not self._to_come[peer]:
            return
        step = self._to_come[peer].popleft()
        into = torch.empty_like(self._chunks[step.chunk])
        work = dist.irecv(into, group=self._group, group_src=peer)
        assert work is not None
        self._coming.setdefault(peer, deque()).append(_Arrival(work, into))

    def _settle(self, chunk: int) -> None:
        """Puts what has come for a chunk where it belongs."""
        arrival = self._unsettled.pop(chunk, None)
        if arrival is None:
            return
        for work in self._reads.pop(chunk, ()):
            work.wait()
        arrival.work.wait()
        if arrival.adds:
            self._combine(self._chunks[chunk], arrival.into)
        else:
            self._chunks[chunk].copy_(arrival.into)
