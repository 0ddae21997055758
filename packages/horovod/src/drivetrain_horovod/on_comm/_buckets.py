"""Gradients of one optimizer on their way, in buckets and in one order on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import DistributedError
from drivetrain_horovod.on_comm._allreduce import reduce_in_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_horovod.on_comm._handles import Pending

_BUCKET_BYTES = 4 << 20


def cut(
    parameters: Sequence[torch.Tensor], num_buckets: int = 0
) -> list[list[torch.Tensor]]:
    """Returns parameters in the order in which gradients come, in buckets.

    Args:
        parameters: In the order of the forward pass.
        num_buckets: How many at most; 0 fills them by size.

    Example:
        >>> [len(b) for b in cut([torch.empty(1) for _ in range(5)], 2)]
        [3, 2]
    """
    limit = _BUCKET_BYTES
    most = -(-len(parameters) // num_buckets) if num_buckets else len(parameters)
    found: list[list[torch.Tensor]] = []
    for parameter in reversed(parameters):
        last = found[-1] if found else []
        is_full = len(last) >= most or (
            not num_buckets and sum(p.nbytes for p in last) >= limit
        )
        if not last or is_full or last[0].dtype != parameter.dtype:
            found.append([])
        found[-1].append(parameter)
    return found


class Buckets:
    """Reduces the gradients of parameters, while the others' are still computed.

    A bucket leaves when its gradients and all buckets before it are there, so that the
    order is equal on all ranks, whatever the order of the backward pass.

    Args:
        parameters: Those that the optimizer steps, alike on all ranks.
        names: Of them, for messages.
        num_passes: After how many backward passes a gradient is whole.
        compression: A `Compressor`.
        reduction: The keyword arguments of `reduce_in_place`.
        sparse_as_dense: Whether sparse gradients become dense ones.
        num_buckets: How many at most; 0 fills them by size.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        *,
        num_passes: int,
        compression: Any,
        reduction: dict[str, Any],
        sparse_as_dense: bool,
        num_buckets: int,
    ) -> None:
        """Begins with no gradient."""
        self.num_passes = num_passes
        self._names = dict(zip(parameters, names, strict=True))
        self._buckets = cut(parameters, num_buckets)
        self._compression = compression
        self._reduction = reduction
        self._sparse_as_dense = sparse_as_dense
        self._passes: dict[torch.Tensor, int] = dict.fromkeys(parameters, 0)
        self._started: list[tuple[Pending, list[tuple[Any, Any, Any]]]] = []

    @property
    def is_under_way(self) -> bool:
        """Whether some gradients are being reduced."""
        return bool(self._started)

    def take(self, parameter: torch.Tensor) -> None:
        """Takes note of a gradient of a parameter; called by its hook."""
        if self._passes[parameter] >= self.num_passes:
            message = (
                f"the gradient of {self._names[parameter]} was computed more than "
                f"backward_passes_per_step={self.num_passes} times before step() or "
                "synchronize(): raise backward_passes_per_step"
            )
            raise DistributedError(message)
        self._passes[parameter] += 1
        while len(self._started) < len(self._buckets):
            bucket = self._buckets[len(self._started)]
            if any(self._passes[one] < self.num_passes for one in bucket):
                return
            self._start(bucket)

    def finish(self) -> None:
        """Reduces what is left, parameters without gradients as zeros, and waits.

        Raises:
            DistributedError: Ranks differ, or a rank is lost.
        """
        try:
            for bucket in self._buckets[len(self._started) :]:
                self._start(bucket)
            for pending, back in self._started:
                pending.wait()
                for gradient, wire, context in back:
                    if wire is not gradient:
                        gradient.copy_(self._compression.decompress(wire, context))
        finally:
            self._started = []
            self._passes = dict.fromkeys(self._passes, 0)

    def _start(self, bucket: list[torch.Tensor]) -> None:
        back = []
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse:
                parameter.grad = self._dense(parameter)
            gradient = parameter.grad
            wire, context = self._compression.compress(gradient)
            back.append((gradient, wire, context))
        wires = [wire for _, wire, _ in back]
        self._started.append((reduce_in_place(wires, **self._reduction), back))

    def _dense(self, parameter: torch.Tensor) -> torch.Tensor:
        if not self._sparse_as_dense:
            message = (
                f"the gradient of {self._names[parameter]} is sparse: give "
                "DistributedOptimizer sparse_as_dense=True"
            )
            raise DistributedError(message)
        assert parameter.grad is not None
        return parameter.grad.to_dense()
