"""Collectives that move tensors and do not add them up, and the scattered sum."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_horovod.on_comm._allreduce import allreduce
from drivetrain_horovod.on_comm._handles import Pending, begin, synchronize
from drivetrain_horovod.on_comm._process_sets import check_process_set
from drivetrain_horovod.on_comm._state import world
from drivetrain_horovod.on_comm._wire import check_root, gather_numbers, gather_shapes


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = None
) -> int:
    """Begins to gather; see `allgather` and `synchronize`."""
    check_process_set(process_set)
    group = world().group

    def make() -> Pending:
        shapes = gather_shapes("allgather", tensor, free_dims=1)
        if tensor.dim() == 0:
            message = "allgather needs a dimension to join along, got a scalar"
            raise DistributedError(message)
        rows = [shape[0] for shape in shapes]
        # Backends gather equal parts only: the short ones are filled up.
        mine = tensor.new_zeros(max(rows), *tensor.shape[1:])
        mine[: tensor.shape[0]] = tensor.detach()
        parts = [torch.empty_like(mine) for _ in rows]
        works = [group.allgather([parts], [mine])] if mine.numel() else []

        def finish() -> torch.Tensor:
            return torch.cat([p[:n] for p, n in zip(parts, rows, strict=True)])

        return Pending(works, finish)

    return begin(make, name)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = None
) -> torch.Tensor:
    """Returns the tensors of all ranks, joined along the first dimension.

    Args:
        tensor: Of one dimension at least; only the first may differ between ranks.
        name: No two collectives under way may have the same one.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: Shapes or dtypes do not fit; all ranks get it.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.allgather(torch.tensor([[1, 2]]))
        tensor([[1, 2]])
        >>> hvd.shutdown()
    """
    return synchronize(allgather_async(tensor, name, process_set))  # type: ignore[no-any-return]


def start_broadcast(tensor: torch.Tensor, root_rank: int) -> Pending:
    """Begins to overwrite a tensor, whose shape is known to be equal on all ranks."""
    wire = tensor.detach().contiguous()
    options = dist.BroadcastOptions()
    options.rootRank = root_rank
    works = [world().group.broadcast([wire], options)] if wire.numel() else []

    def finish() -> torch.Tensor:
        if wire.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(wire)
        return tensor

    return Pending(works, finish)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Any = None,
) -> int:
    """Begins to overwrite a tensor; see `broadcast` and `synchronize`."""
    check_process_set(process_set)
    check_root(root_rank)

    def make() -> Pending:
        gather_shapes("broadcast", tensor)
        return start_broadcast(tensor, root_rank)

    return begin(make, name)


def broadcast_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Begins a broadcast into a copy; see `broadcast` and `synchronize`."""
    return broadcast_async_(tensor.detach().clone(), *args, **kwargs)


def broadcast_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Overwrites a tensor with the root's, and returns it; see `broadcast`."""
    return synchronize(broadcast_async_(tensor, *args, **kwargs))  # type: ignore[no-any-return]


def broadcast(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns the tensor of one rank.

    Args:
        tensor: Of a shape and dtype equal on all ranks; it stays as it is.
        *args: `root_rank`, whose tensor is returned; `name` and `process_set` as in
            `allgather`.
        **kwargs: The same, by name.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: Shapes or dtypes differ, which all ranks get; or there is no
            such rank.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.broadcast(torch.tensor([3]), root_rank=0)
        tensor([3])
        >>> hvd.shutdown()
    """
    return synchronize(broadcast_async(tensor, *args, **kwargs))  # type: ignore[no-any-return]


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | list[int] | None = None,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Sends slices of a tensor to all ranks, and returns theirs, joined.

    Args:
        tensor: Of one dimension at least; slices are of the first.
        splits: How many rows go to each rank; by default equally many.
        name: No two collectives under way may have the same one.
        process_set: None or `global_process_set`.

    Returns:
        The rows from all ranks; if `splits` is given, also how many came from each.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: Splits or shapes do not fit.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.alltoall(torch.tensor([5, 6]), splits=[2])
        (tensor([5, 6]), tensor([2]))
        >>> hvd.shutdown()
    """
    check_process_set(process_set)
    group = world().group
    size = group.size()
    num_rows = tensor.shape[0] if tensor.dim() else 0
    sends = [num_rows // size] * size
    if splits is not None:
        sends = torch.as_tensor(splits).tolist()

    def make() -> Pending:
        # All ranks learn of a fault on one of them: a row of -1 says so.
        is_wrong = len(sends) != size or sum(sends) != num_rows or min(sends) < 0
        sent = [-1] * size if is_wrong or not tensor.dim() else sends
        table = gather_numbers(sent, device=tensor.device)
        for rank, row in enumerate(table):
            if min(row) < 0:
                message = (
                    f"alltoall needs {size} splits that add up to the number of rows; "
                    f"those of rank {rank} do not; this rank has {sends} of {num_rows}"
                )
                raise DistributedError(message)
        gather_shapes("alltoall", tensor, free_dims=1)
        takes = [row[group.rank()] for row in table]
        output = tensor.new_empty(sum(takes), *tensor.shape[1:])
        options = dist.AllToAllOptions()
        wire = tensor.detach().contiguous()
        works = [group.alltoall_base(output, wire, takes, sends, options)]
        received = torch.tensor(takes)
        return Pending(works, lambda: output if splits is None else (output, received))

    return synchronize(begin(make, name))


def reducescatter(
    tensor: torch.Tensor,
    *,
    op: Any = None,
    name: str | None = None,
    process_set: Any = None,
    **options: Any,
) -> torch.Tensor:
    """Returns this rank's slice of the tensor reduced over all ranks.

    The whole is reduced on all ranks: this saves memory, and no traffic.

    Args:
        tensor: Of one dimension at least. The first is cut into as equal slices as can
            be; the first ranks have a row more.
        op: As in `allreduce`.
        name: No two collectives under way may have the same one.
        process_set: None or `global_process_set`.
        **options: `compression`, `prescale_factor` and `postscale_factor`, as in
            `allreduce`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: An argument is wrong, ranks differ, or a rank is lost.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.reducescatter(torch.tensor([1.0, 2.0]), op=hvd.Sum)
        tensor([1., 2.])
        >>> hvd.shutdown()
    """
    group = world().group
    if tensor.dim() == 0:
        message = "reducescatter needs a dimension to cut, got a scalar"
        raise DistributedError(message)
    whole = allreduce(tensor, name=name, op=op, process_set=process_set, **options)
    return whole.tensor_split(group.size())[group.rank()].clone()


def barrier(process_set: Any = None) -> None:
    """Waits until all ranks have come here."""
    check_process_set(process_set)
    world().group.barrier().wait()


def join(device: int = -1) -> NoReturn:
    """Raises a DistributedError: ranks with fewer batches cannot leave early here."""
    world()
    message = (
        f"join(device={device}) is not available here: give all ranks equally many "
        "batches (DistributedSampler with drop_last=True), or use "
        "DistributedDataParallel.join()"
    )
    raise DistributedError(message)
