"""Averages on torch's own backend, with the interface of the engine's collectives."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup


class Ending:
    """The end of a collective, which one thread reports and any may wait for."""

    def __init__(self) -> None:
        """It has not ended yet."""
        self._has_ended = threading.Event()
        self._error = ""
        self._ended_at_s = 0.0

    def end(self, error: str = "") -> None:
        """Ends it now, well or with an error."""
        self._error = error
        self._ended_at_s = time.monotonic()
        self._has_ended.set()

    def wait(self, timeout_s: float) -> str | None:
        """Returns None if it has not ended, an empty string, or why it failed."""
        return self._error if self._has_ended.wait(timeout_s) else None

    def ended_at_s(self) -> float:
        """When it ended, on the clock of `time.monotonic`."""
        return self._ended_at_s


class TorchTicket(Ending):
    """Averages tensors of one dtype in place, as if they were one.

    It ends in the thread that calls `finish`, which must be one only.

    Args:
        group: Torch's backend.
        tensors: What is averaged.
    """

    def __init__(self, group: ProcessGroup, tensors: Sequence[torch.Tensor]) -> None:
        """Begins to add them."""
        super().__init__()
        self._tensors = list(tensors)
        self._num_ranks = group.size()
        if len(tensors) == 1:
            self._work = group.allreduce(self._tensors, dist.AllreduceOptions())
        else:
            coalesced = dist.AllreduceCoalescedOptions()
            self._work = group.allreduce_coalesced(self._tensors, coalesced)

    def finish(self) -> None:
        """Waits for the sums, and divides them.

        Raises:
            RuntimeError: What torch says of a rank that is gone.
        """
        try:
            self._work.wait()
            torch._foreach_div_(self._tensors, self._num_ranks)
        except BaseException as error:
            self.end(f"torch's backend: {error}")
            raise
        self.end()
