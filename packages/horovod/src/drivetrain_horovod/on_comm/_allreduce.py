"""All-reduces, alone and in groups, in place or not, waited for or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_horovod.compression import Compression
from drivetrain_horovod.on_comm._handles import Pending, begin, synchronize
from drivetrain_horovod.on_comm._process_sets import check_process_set
from drivetrain_horovod.on_comm._state import world

if TYPE_CHECKING:
    from collections.abc import Sequence

Average = "Average"
"""The mean over all ranks."""

Sum = "Sum"
"""The sum over all ranks."""

Adasum = "Adasum"
"""Known by name only: asking for it is an error."""

Min = "Min"
"""The least of all ranks."""

Max = "Max"
"""The greatest of all ranks."""

Product = "Product"
"""The product over all ranks."""


# An average is a sum that is divided, which all backends and dtypes can do.
_OPERATIONS = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


def check_op(op: Any, average: bool | None = None) -> str:
    """Returns the operation that is meant.

    Args:
        op: One of the constants; None for the default, `Average`.
        average: The older way to say `Average` or `Sum`.

    Raises:
        DistributedError: There is no such operation, or both are given.

    Example:
        >>> check_op(None), check_op(None, average=False)
        ('Average', 'Sum')
    """
    if op is not None and average is not None:
        message = f"give op or average, not both: got {op!r} and {average!r}"
        raise DistributedError(message)
    if op is None:
        return Sum if average is False else Average
    if op == Adasum:
        message = "Adasum is not available here: use Average or Sum"
        raise DistributedError(message)
    if not isinstance(op, str) or op not in _OPERATIONS:
        message = f"op must be one of {', '.join(_OPERATIONS)}, got {op!r}"
        raise DistributedError(message)
    return op


def reduce_in_place(
    tensors: Sequence[torch.Tensor],
    op: str,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """Begins to reduce tensors in place, those of one dtype and device as one message.

    Args:
        tensors: Dense ones, equal in shape and dtype on all ranks.
        op: As `check_op` returns it.
        prescale_factor: Multiplies before.
        postscale_factor: Multiplies after.
    """
    group = world().group
    kinds: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    works, after = [], []
    for (dtype, _), targets in kinds.items():
        before, later = prescale_factor, postscale_factor
        if op == Average and dtype.itemsize == 2 and dtype.is_floating_point:
            # A sum of many could be more than sixteen bits can say.
            before /= group.size()
        elif op == Average:
            later /= group.size()
        wires = [target.detach().contiguous() for target in targets]
        _scale(wires, before)
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = _OPERATIONS[op]  # type: ignore[assignment]
        works.append(group.allreduce_coalesced(wires, options))
        after.append((targets, wires, later))

    def finish() -> Sequence[torch.Tensor]:
        for targets, wires, later in after:
            _scale(wires, later)
            for target, wire in zip(targets, wires, strict=True):
                if target.data_ptr() != wire.data_ptr():
                    target.detach().copy_(wire)
        return tensors

    return Pending(works, finish)


def _scale(tensors: list[torch.Tensor], factor: float) -> None:
    if factor == 1.0:
        return
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(factor)
        else:
            tensor.copy_(torch.floor(tensor.double() * factor))


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> int:
    """Begins to reduce tensors in place; see `allreduce` and `synchronize`."""
    check_process_set(process_set)
    operation = check_op(op, average)
    world()
    return begin(
        lambda: reduce_in_place(
            list(tensors),
            operation,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        ),
        name,
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> int:
    """Begins to reduce copies of tensors; see `allreduce` and `synchronize`."""
    copies = [tensor.detach().clone() for tensor in tensors]
    return grouped_allreduce_async_(copies, *args, **kwargs)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> list[torch.Tensor]:
    """Reduces tensors in place as one message, and returns them; see `allreduce`."""
    return synchronize(grouped_allreduce_async_(tensors, *args, **kwargs))  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[torch.Tensor]:
    """Returns tensors reduced as one message; see `allreduce`."""
    pairs = [compression.compress(tensor.detach()) for tensor in tensors]
    reduced = synchronize(
        grouped_allreduce_async(
            [wire for wire, _ in pairs],
            average,
            name,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
        )
    )
    return [
        compression.decompress(wire, context)
        for wire, (_, context) in zip(reduced, pairs, strict=True)
    ]


def allreduce_async_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Begins to reduce a tensor in place; see `allreduce` and `synchronize`."""
    check_process_set(kwargs.pop("process_set", None))
    average, name, op, before, after = _arguments(*args, **kwargs)
    operation = check_op(op, average)
    world()

    def make() -> Pending:
        pending = reduce_in_place(
            [tensor], operation, prescale_factor=before, postscale_factor=after
        )
        return Pending(pending.works, lambda: pending.finish()[0])

    return begin(make, name)


def _arguments(
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tuple[bool | None, str | None, Any, float, float]:
    return average, name, op, prescale_factor, postscale_factor


def allreduce_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Begins to reduce a copy of a tensor; see `allreduce` and `synchronize`."""
    return allreduce_async_(tensor.detach().clone(), *args, **kwargs)


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Reduces a tensor in place, and returns it; see `allreduce`."""
    return synchronize(allreduce_async_(tensor, *args, **kwargs))  # type: ignore[no-any-return]


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, options: dict[str, Any]) -> Any:
        ctx.options = options
        return grouped_allreduce([tensor], **options)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options = {**ctx.options, "name": None}
        return grouped_allreduce(list(gradients), **options)[0], None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Returns a tensor reduced over all ranks, which call this in the same order.

    Gradients flow through averages and sums: they are reduced likewise.

    Args:
        tensor: Of any shape, equal on all ranks; it stays as it is.
        average: The older way to ask for `Average` or `Sum`.
        name: No two collectives under way may have the same one.
        compression: One of `Compression`.
        op: `Average` (the default; of integers, rounded down), `Sum`, `Min`, `Max` or
            `Product`.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: An argument is wrong, ranks differ, or a rank is lost.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), name="x")
        tensor([1., 2.])
        >>> hvd.shutdown()
    """
    operation = check_op(op, average)
    options = {
        "name": name,
        "compression": compression,
        "op": operation,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    if operation in (Average, Sum) and tensor.requires_grad:
        return _AllReduce.apply(tensor, options)  # type: ignore[no-any-return, no-untyped-call]
    return grouped_allreduce([tensor], **options)[0]
