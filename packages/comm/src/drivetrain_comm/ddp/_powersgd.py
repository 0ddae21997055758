"""PowerSGD compressor: matrices go as two thin ones, the rest as it is."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from drivetrain_comm.backend._torch_backend import Ending
from drivetrain_comm.backend._work import Notifier
from drivetrain_comm.ddp._compress import Exact, Part
from drivetrain_comm.ddp._low_rank import LowRank, saves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import GradBucket

    from drivetrain_comm.backend._process_group import TunedProcessGroup
    from drivetrain_comm.ddp._compress import Outcome
    from drivetrain_comm.selection._choice import Choice

_DTYPES = (torch.float32, torch.float64)


class PowerSGD:
    """Averages the gradients of one DDP module with `Settings.powersgd_rank`.

    Each message takes two exchanges, of which the second depends on the first. A thread
    carries them out over a transport of its own, so that their order is that of the
    messages and no other collective comes between.

    Args:
        group: The ranks.

    Attributes:
        states: Of each parameter whose gradient is compressed.
    """

    def __init__(self, group: TunedProcessGroup) -> None:
        """Meets the other ranks for one more transport."""
        self._exact = Exact(group)
        self._rank = group.settings.powersgd_rank
        self._num_exact_steps = group.settings.powersgd_start_after
        self._num_steps = 0
        self._timeout_s = group.timeout_s
        self._transport = group.open_transport()
        self._worker = Notifier()
        self.states: dict[torch.Tensor, LowRank] = {}
        closing = weakref.finalize(self, self._worker.close)
        closing.atexit = False

    def accept(self, bucket: GradBucket) -> Part:
        """Returns the bucket, with the bytes that it will have."""
        if bucket.index() == 0:
            self._num_steps += 1
        buffer = bucket.buffer()
        if self._num_steps <= self._num_exact_steps or buffer.dtype not in _DTYPES:
            return self._exact.accept(bucket)
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        matrices = tuple(pair for pair in pairs if saves(pair[1].shape, self._rank))
        for parameter, gradient in matrices:
            if parameter not in self.states:
                self.states[parameter] = LowRank(
                    gradient, rank=self._rank, seed=len(self.states)
                )
        sent = sum(
            (g.shape[0] + g[0].numel()) * self._rank - g.numel() for _, g in matrices
        )
        size_bytes = buffer.nbytes + sent * buffer.itemsize
        return Part(torch.futures.Future(), buffer, size_bytes, matrices)

    def reduce(self, parts: Sequence[Part], choice: Choice) -> Outcome:
        """Hands parts to the thread; those without matrices go as they are."""
        if not any(part.matrices for part in parts):
            return self._exact.reduce(parts, choice)
        exchange = _Exchange(parts)

        def job() -> None:
            try:
                self._carry_out(parts, choice)
            except Exception as error:  # noqa: BLE001
                # Whatever it is, DDP gets it from the futures, and peers do not wait for
                # what this rank cannot send any more.
                self._transport.fail(f"PowerSGD failed: {error}")
                exchange.complete(error)
            else:
                exchange.complete()

        self._worker.put(job)
        return exchange

    def _carry_out(self, parts: Sequence[Part], choice: Choice) -> None:
        matrices = [
            (self.states[parameter], gradient)
            for part in parts
            for parameter, gradient in part.matrices
        ]
        rest = [piece for part in parts for piece in _without_matrices(part)]
        first = [state.project(gradient) for state, gradient in matrices]
        self._average([*first, *rest], choice)
        self._average([state.project_back() for state, _ in matrices], choice)
        for state, gradient in matrices:
            state.restore(gradient)

    def _average(self, tensors: list[torch.Tensor], choice: Choice) -> None:
        self._transport.all_reduce(tensors, "AVG", choice, self._timeout_s).finish()


def _without_matrices(part: Part) -> list[torch.Tensor]:
    """Returns the stretches of a buffer between its matrices."""
    begin = int(part.buffer.storage_offset())
    stretches: list[torch.Tensor] = []
    at = 0
    spans = sorted(
        (int(g.storage_offset()) - begin, g.numel()) for _, g in part.matrices
    )
    for start, length in [*spans, (part.buffer.numel(), 0)]:
        if start > at:
            stretches.append(part.buffer[at:start])
        at = start + length
    return stretches


class _Exchange(Ending):
    """How a message ends."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self._parts = parts

    def complete(self, error: Exception | None = None) -> None:
        """Completes the futures."""
        self.end(str(error) if error else "")
        for part in self._parts:
            if error is None:
                part.future.set_result(part.buffer)
            else:
                part.future.set_exception(error)
