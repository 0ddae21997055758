"""An optimizer that steps on gradients reduced over the ranks that there are."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import ProgramError
from drivetrain_horovod.compression import Compression
from drivetrain_horovod.on_elastic._collectives import Average, ReduceOp, allreduce_

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

_BUCKET_BYTES = 25 << 20


class _Distributed:
    """What is added to the class of the user's optimizer."""

    param_groups: list[dict[str, Any]]
    _reduction: dict[str, Any]
    _compression: Any
    _is_reduced: bool

    @torch.no_grad()
    def synchronize(self) -> None:
        """Reduces all gradients now.

        Call it before gradients are clipped, and step within `skip_synchronize()`.
        """
        for bucket in _buckets(self.param_groups):
            flat = torch.cat([_gradient(one).reshape(-1) for one in bucket])
            small, context = self._compression.compress(flat)
            allreduce_(small, **self._reduction)
            flat = self._compression.decompress(small, context)
            parts = torch.split(flat, [one.numel() for one in bucket])
            for one, part in zip(bucket, parts, strict=True):
                assert one.grad is not None
                one.grad.copy_(part.view_as(one.grad))

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets `step` use the gradients as they are."""
        self._is_reduced = True
        try:
            yield
        finally:
            self._is_reduced = False

    def step(self, closure: Any = None) -> Any:
        """Steps on the reduced gradients; a closure's are reduced after each call."""
        step = super().step  # type: ignore[misc]
        if self._is_reduced:
            return step(closure)
        if closure is None:
            self.synchronize()
            return step()

        def with_reduction() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return step(with_reduction)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
) -> Any:
    """Returns an optimizer of the same class that reduces gradients before it steps.

    They are reduced when it steps, and not while the backward pass goes on. Parameters
    without a gradient count as zeros. It may be used in any number of worlds.

    Args:
        optimizer: What to wrap; its state and its groups are shared.
        named_parameters: Not needed: it may be given, as to Horovod's.
        compression: One of `Compression`.
        backward_passes_per_step: How many passes a step has; their gradients are added.
        op: `Average`, `Sum`, `Min`, `Max` or `Product`.
        gradient_predivide_factor: An average is divided by it before, and by the rest
            after the sum.

    Raises:
        ProgramError: An argument is wrong.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = hvd.DistributedOptimizer(
        ...     torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> isinstance(optimizer, torch.optim.SGD)
        True
        >>> hvd.shutdown()
    """
    del named_parameters
    if isinstance(optimizer, _Distributed):
        message = "the optimizer is a DistributedOptimizer already"
        raise ProgramError(message)
    if backward_passes_per_step < 1:
        message = f"backward_passes_per_step must be 1 or more, got {backward_passes_per_step}"
        raise ProgramError(message)
    if gradient_predivide_factor != 1.0 and op != Average:
        message = f"gradient_predivide_factor goes with op=Average only, got {op!r}"
        raise ProgramError(message)
    kind = type(optimizer)
    wrapped: Any = object.__new__(type(kind.__name__, (_Distributed, kind), {}))
    # Schedulers replace `step` of the one object that they know.
    wrapped.__dict__.update(
        {key: value for key, value in vars(optimizer).items() if key != "step"}
    )
    wrapped._is_reduced = False
    wrapped._compression = compression
    wrapped._reduction = {
        "op": op,
        "prescale_factor": 1 / gradient_predivide_factor,
        "postscale_factor": gradient_predivide_factor,
    }
    return wrapped


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout != torch.strided:
        parameter.grad = parameter.grad.to_dense()
    return parameter.grad


def _buckets(groups: list[dict[str, Any]]) -> Iterator[list[Tensor]]:
    """Yields parameters of one dtype and device, together not too large."""
    bucket: list[Tensor] = []
    size = 0
    for one in (p for group in groups for p in group["params"] if p.requires_grad):
        is_alike = bucket and (one.dtype, one.device) == (
            bucket[0].dtype,
            bucket[0].device,
        )
        if bucket and (not is_alike or size >= _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(one)
        size += one.nbytes
    if bucket:
        yield bucket
