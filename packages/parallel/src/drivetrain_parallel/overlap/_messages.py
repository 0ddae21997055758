"""Messages between the ranks of a group: posted ahead on CPUs, in rounds on devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch.distributed as dist

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank does at one moment: a message to a rank, and one from a rank.

    Args:
        target: The rank in the group that is sent to.
        source: The rank in the group that is received from.
        into: What is received; None where that is nothing.
    """

    target: int
    source: int
    into: torch.Tensor | None


class Messages:
    """Carries rounds of messages out, each as soon as its data is there.

    On CPUs all receives are posted at once, and every message goes alone. On a device
    each round is one batch, as NCCL needs it so that no two ranks wait for each other;
    it runs on the backend's own stream, and waiting makes only the current stream wait.

    Between two ranks messages arrive in the order in which they were sent, so both must
    have the same order of rounds. Not thread-safe; after an error the group is of no
    use any more.

    Args:
        group: The ranks; None for all.
        rounds: What this rank does, in order.
        in_batches: Whether a round is one batch.
        what: The operation, for messages of errors.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        rounds: Sequence[Round],
        *,
        in_batches: bool,
        what: str,
    ) -> None:
        """Posts the receives, on CPUs."""
        self._group = group if group is not None else dist.GroupMember.WORLD
        self._rounds = rounds
        self._in_batches = in_batches
        self._what = what
        self._receives: dict[int, dist.Work] = {}
        self._sends: list[tuple[int, dist.Work]] = []
        if not in_batches:
            for at, step in enumerate(rounds):
                if step.into is not None:
                    self._receives[at] = self._start(step.source, receive=step.into)

    def send(self, at: int, tensor: torch.Tensor | None) -> None:
        """Starts a round.

        Args:
            at: The number of the round; on a device they are started in order.
            tensor: What is sent, left alone until `finish`; None where that is nothing.
        """
        step = self._rounds[at]
        if not self._in_batches:
            if tensor is not None:
                work = self._start(step.target, send=tensor)
                self._sends.append((step.target, work))
            return
        batch = []
        if tensor is not None:
            batch.append(self._operation(dist.isend, tensor, step.target))
        if step.into is not None:
            batch.append(self._operation(dist.irecv, step.into, step.source))
        if not batch:
            return
        try:
            works = dist.batch_isend_irecv(batch)
        except RuntimeError as error:
            self._fail(step.target, error)
        # One for each message, or, where the backend joins them, one for the batch.
        if tensor is not None:
            self._sends.append((step.target, works[0]))
        if step.into is not None:
            self._receives[at] = works[-1]

    def wait(self, at: int) -> None:
        """Waits until what a round receives is there.

        Raises:
            DistributedError: A rank is gone, or the time-out of the group has passed.
        """
        work = self._receives.pop(at, None)
        if work is None:
            return
        try:
            work.wait()
        except RuntimeError as error:
            self._fail(self._rounds[at].source, error)

    def finish(self) -> None:
        """Waits until everything that was sent may be changed again.

        Raises:
            DistributedError: As `wait`.
        """
        for target, work in self._sends:
            try:
                work.wait()
            except RuntimeError as error:
                self._fail(target, error)
        self._sends.clear()

    def _operation(self, call: object, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(call, tensor, group=self._group, group_peer=peer)  # type: ignore[arg-type]

    def _start(
        self,
        peer: int,
        *,
        send: torch.Tensor | None = None,
        receive: torch.Tensor | None = None,
    ) -> dist.Work:
        try:
            if send is not None:
                work = dist.isend(send, group=self._group, group_dst=peer)
            else:
                assert receive is not None
                work = dist.irecv(receive, group=self._group, group_src=peer)
        except RuntimeError as error:
            self._fail(peer, error)
        assert work is not None
        return work

    def _fail(self, peer: int, error: RuntimeError) -> NoReturn:
        assert self._group is not None
        rank = dist.get_global_rank(self._group, peer)
        message = (
            f"{self._what}: no exchange with rank {rank} (rank {peer} of the group), "
            f"which is gone, stuck, or runs another operation: {error}"
        )
        raise DistributedError(message) from error


def place_in(group: dist.ProcessGroup | None, what: str) -> tuple[int, int]:
    """Returns this process's rank in a group, and how many ranks there are.

    Args:
        group: The group; None for all ranks.
        what: The operation, for messages of errors.

    Raises:
        DistributedError: There is no process group, or this rank is not in it.
    """
    if not dist.is_initialized():
        message = f"{what}: no process group stands; call init_process_group first"
        raise DistributedError(message)
    rank = dist.get_rank(group)
    if rank < 0:
        message = (
            f"{what}: rank {dist.get_rank()} is not in the group that it was given; "
            "only the ranks of a group may call it"
        )
        raise DistributedError(message)
    return rank, dist.get_world_size(group)
