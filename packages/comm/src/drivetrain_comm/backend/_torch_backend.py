"""Reductions on torch's own backend, with the interface of the engine's collectives."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import torch.distributed as dist

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.distributed import ProcessGroup

_POLL_S = 0.001


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

    def finish(self) -> None:
        """Waits for the end, and raises DistributedError if it failed."""
        self._has_ended.wait()
        if self._error:
            raise DistributedError(self._error)

    def ended_at_s(self) -> float:
        """When it ended, on the clock of `time.monotonic`."""
        return self._ended_at_s


class TorchTicket(Ending):
    """Reduces tensors of one dtype in place, as if they were one.

    Args:
        group: Torch's backend.
        tensors: What is reduced.
        operation: `AVG`, also where the backend has none, or another one of torch's.
    """

    def __init__(
        self,
        group: ProcessGroup,
        tensors: Sequence[torch.Tensor],
        operation: str = "AVG",
    ) -> None:
        """Begins."""
        super().__init__()
        self._tensors = list(tensors)
        for tensor in tensors if operation == "AVG" else ():
            # Before the sum, which sixteen bits may not hold, as torch's DDP does.
            tensor.detach().mul_(1 / group.size())
        self._lock = threading.Lock()
        reduce_op = getattr(dist.ReduceOp, "SUM" if operation == "AVG" else operation)
        if len(tensors) == 1:
            one = dist.AllreduceOptions()
            one.reduceOp = reduce_op
            self._work = group.allreduce(self._tensors, one)
        else:
            several = dist.AllreduceCoalescedOptions()
            several.reduceOp = reduce_op
            self._work = group.allreduce_coalesced(self._tensors, several)

    def wait(self, timeout_s: float) -> str | None:
        """Returns None if it has not ended, an empty string, or why it failed."""
        until_s = time.monotonic() + timeout_s
        while not self._work.is_completed():
            if time.monotonic() >= until_s:
                return None
            time.sleep(_POLL_S)
        # Whoever asks is told below.
        with suppress(Exception):
            self.finish()
        return super().wait(0.0)

    def finish(self) -> None:
        """Waits for the end.

        Raises:
            DistributedError: What torch says of a rank that is gone.
        """
        with self._lock:
            error = super().wait(0.0)
            if error is None:
                try:
                    self._work.wait()
                except Exception as problem:  # noqa: BLE001
                    error = f"torch's backend: {problem}"
                self.end(error or "")
        if error:
            raise DistributedError(error)
