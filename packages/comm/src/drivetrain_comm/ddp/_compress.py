"""Compressors of gradients: none, and a cast to sixteen bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from drivetrain_comm.backend._torch_backend import TorchTicket
from drivetrain_comm.selection._choice import STOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import GradBucket

    from drivetrain_comm.backend._extension import Ticket
    from drivetrain_comm.backend._process_group import TunedProcessGroup
    from drivetrain_comm.selection._choice import Choice


class Part(NamedTuple):
    """One of DDP's buckets on its way.

    Attributes:
        future: Holds the buffer when it has been averaged.
        buffer: The gradients, averaged in place.
        size_bytes: What of it travels.
        matrices: Parameters and the views of their gradients, if they matter.
        stream: Of a device, on which the buffer becomes ready.
    """

    future: torch.futures.Future[Any]
    buffer: torch.Tensor
    size_bytes: int
    matrices: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    stream: Any = None


class Outcome(Protocol):
    """The end of an exchange, which `drivetrain_comm.backend._native.Ticket` tells."""

    def wait(self, timeout_s: float) -> str | None:
        """Returns None if it has not ended, an empty string, or why it failed."""

    def ended_at_s(self) -> float:
        """When it ended, on the clock of `time.monotonic`."""


class Compressor(Protocol):
    """Averages the buckets of one DDP module.

    Called from the thread of DDP's hook, with the same buckets in the same order on all
    ranks.
    """

    def accept(self, bucket: GradBucket) -> Part:
        """Returns what a bucket is as a part of a message."""

    def reduce(self, parts: Sequence[Part], choice: Choice) -> Outcome:
        """Begins to average parts of one dtype; completes their futures at the end."""


class Exact:
    """Sends gradients as they are, on the engine or on torch's own backend.

    Args:
        group: The ranks.
    """

    def __init__(self, group: TunedProcessGroup) -> None:
        """Keeps the group."""
        self._group = group

    def accept(self, bucket: GradBucket) -> Part:
        """Returns the bucket as it is."""
        buffer = bucket.buffer()
        return Part(torch.futures.Future(), buffer, buffer.nbytes)

    def reduce(self, parts: Sequence[Part], choice: Choice) -> Outcome:
        """Averages in place."""
        tensors = [part.buffer for part in parts]
        if choice.algorithm == STOCK:
            ticket: Ticket | TorchTicket = TorchTicket(self._group.inner, tensors)
        else:
            ticket = self._group.reduce_pieces(tensors, "AVG", choice)
        self._group.notifier.tell(
            ticket, [(part.future, part.buffer) for part in parts]
        )
        return ticket


class Cast:
    """Sends gradients in sixteen bits; those that have sixteen already, as they are.

    Args:
        group: The ranks.
        dtype: `torch.float16` or `torch.bfloat16`.
    """

    def __init__(self, group: TunedProcessGroup, dtype: torch.dtype) -> None:
        """Keeps the group."""
        self._group = group
        self._dtype = dtype
        self._exact = Exact(group)

    def accept(self, bucket: GradBucket) -> Part:
        """Returns the bucket, with the bytes that it will have."""
        buffer = bucket.buffer()
        itemsize = min(buffer.itemsize, self._dtype.itemsize)
        return Part(torch.futures.Future(), buffer, buffer.numel() * itemsize)

    def reduce(self, parts: Sequence[Part], choice: Choice) -> Outcome:
        """Averages copies and casts them back before the futures are completed."""
        buffers = [part.buffer for part in parts]
        if buffers[0].itemsize <= self._dtype.itemsize:
            return self._exact.reduce(parts, choice)
        # Divided first: a sum of many could be more than sixteen bits can say.
        share = 1 / self._group.size()
        wires = [(buffer * share).to(self._dtype) for buffer in buffers]
        ticket = self._group.reduce_pieces(wires, "SUM", choice)

        def cast_back() -> None:
            torch._foreach_copy_(buffers, wires)

        self._group.notifier.tell(
            ticket, [(part.future, part.buffer) for part in parts], first=cast_back
        )
        return ticket
