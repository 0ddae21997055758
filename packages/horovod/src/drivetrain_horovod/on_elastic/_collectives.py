"""Operations of all ranks on tensors and objects, in the world that there is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_core import ProgramError
from drivetrain_core.services import from_json, to_json
from drivetrain_elastic.extending import give_state, take_state
from drivetrain_horovod.compression import Compression
from drivetrain_horovod.on_elastic._runtime import runtime

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor


class ReduceOp(Enum):
    """What becomes of the values of all ranks."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average = ReduceOp.AVERAGE
"""The mean over all ranks."""

Max = ReduceOp.MAX
"""The largest value of all ranks."""

Min = ReduceOp.MIN
"""The smallest value of all ranks."""

Product = ReduceOp.PRODUCT
"""The product over all ranks."""

Sum = ReduceOp.SUM
"""The sum over all ranks."""

_OPS = {
    ReduceOp.AVERAGE: dist.ReduceOp.SUM,
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}


_DTYPES = frozenset(
    {
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
    }
)


def _check_dtype(tensor: Tensor) -> None:
    """Checks that ranks can exchange a tensor.

    The group would say so, too, as if a rank were lost, and training would begin anew
    with the same operation for ever.

    Raises:
        ProgramError: They cannot.
    """
    if tensor.layout != torch.strided or tensor.dtype not in _DTYPES:
        known = ", ".join(sorted(str(one).removeprefix("torch.") for one in _DTYPES))
        message = (
            f"ranks exchange dense tensors of {known}; got one of {tensor.dtype} and "
            f"{tensor.layout}: convert it"
        )
        raise ProgramError(message)


def _operation(op: object, average: bool | None) -> ReduceOp:
    if op is not None and average is not None:
        message = "say op or average, and not both"
        raise ProgramError(message)
    if op is None:
        return Sum if average is False else Average
    if not isinstance(op, ReduceOp):
        message = f"op must be Average, Sum, Min, Max or Product, got {op!r}"
        raise ProgramError(message)
    return op


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces a tensor over all ranks, in place, and returns it.

    Args:
        tensor: Of the same shape and dtype on all ranks.
        average: Horovod's old name of `op`.
        name: For messages; nothing depends on it.
        op: `Average` (the default), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: By which it is multiplied before.
        postscale_factor: By which it is multiplied afterwards.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: `op` is something else, or whole numbers are to be averaged.
    """
    del name
    operation = _operation(op, average)
    if operation == Average and not tensor.is_floating_point():
        message = f"an average of {tensor.dtype} is no whole number: use op=Sum"
        raise ProgramError(message)
    _check_dtype(tensor)
    if operation == Sum and tensor.dtype == torch.bool:
        message = "a sum of torch.bool is no truth value: use op=Max, or convert it"
        raise ProgramError(message)
    with torch.no_grad():
        if prescale_factor != 1.0:
            tensor.mul_(prescale_factor)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(_OPS[operation])
        with runtime().group() as group:
            flat = tensor if tensor.is_contiguous() else tensor.contiguous()
            group.allreduce([flat], options).wait()
            _synchronize(flat)
        if flat is not tensor:
            tensor.copy_(flat)
        if operation == Average:
            tensor.div_(runtime().place.size)
        if postscale_factor != 1.0:
            tensor.mul_(postscale_factor)
    return tensor


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Returns a tensor reduced over all ranks; gradients do not flow through it.

    Args:
        tensor: Of the same shape and dtype on all ranks.
        average: Horovod's old name of `op`.
        name: For messages; nothing depends on it.
        compression: One of `Compression`.
        op: `Average` (the default), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: By which it is multiplied before.
        postscale_factor: By which it is multiplied afterwards.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: `op` is something else, or whole numbers are to be averaged.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([2.0, 4.0]))
        tensor([2., 4.])
        >>> hvd.shutdown()
    """
    small, context = compression.compress(tensor.detach().clone())
    allreduce_(small, average, name, op, prescale_factor, postscale_factor)
    found: Tensor = compression.decompress(small, context)
    return found


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """Returns the tensors of all ranks, one after the other along the first dimension.

    Args:
        tensor: Alike on all ranks but for the first dimension.
        name: For messages; nothing depends on it.

    Raises:
        HorovodInternalError: A rank is lost.
    """
    del name
    _check_dtype(tensor)
    tensor = tensor.detach().contiguous()
    if not tensor.dim():
        tensor = tensor.reshape(1)
    place = runtime().place
    lengths = _gather_rows(torch.tensor([len(tensor)]))
    most = int(max(lengths))
    padded = tensor.new_zeros((most, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    rows = _gather_rows(padded)
    return torch.cat([rows[at][: int(lengths[at])] for at in range(place.size)])


def _gather_rows(mine: Tensor) -> list[Tensor]:
    """Returns a tensor of each rank, by rank."""
    place = runtime().place
    rows = [torch.zeros_like(mine) for _ in range(place.size)]
    with runtime().group() as group:
        group.allgather([rows], [mine]).wait()
        _synchronize(mine)
    return [rows[at] for at in place.order]


def allgather_object(obj: object, name: str | None = None) -> list[Any]:
    """Returns the objects of all ranks, by rank.

    Args:
        obj: Plain data: numbers, strings, bytes, and lists, tuples and dicts of them.
        name: For messages; nothing depends on it.

    Raises:
        HorovodInternalError: A rank is lost.
        TypeError: It is something else.
    """
    del name
    text = bytearray(json.dumps(to_json(obj)).encode())
    mine = torch.frombuffer(text, dtype=torch.uint8)
    lengths = [int(one) for one in _gather_rows(torch.tensor([len(text)]))]
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = mine
    rows = _gather_rows(padded)
    return [
        from_json(json.loads(row[:length].numpy().tobytes()))
        for row, length in zip(rows, lengths, strict=True)
    ]


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Overwrites a tensor with that of one rank, and returns it.

    Args:
        tensor: Of the same shape and dtype on all ranks.
        root_rank: Whose tensor stays.
        name: For messages; nothing depends on it.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: There is no such rank.
    """
    del name
    _check_dtype(tensor)
    options = dist.BroadcastOptions()
    options.rootRank = runtime().place.order[_root(root_rank)]
    with torch.no_grad():
        flat = tensor.detach()
        flat = flat if flat.is_contiguous() else flat.contiguous()
        with runtime().group() as group:
            group.broadcast([flat], options).wait()
            _synchronize(flat)
        if not tensor.is_contiguous():
            tensor.copy_(flat)
    return tensor


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Returns the tensor of one rank.

    Args:
        tensor: Of the same shape and dtype on all ranks.
        root_rank: Whose it is.
        name: For messages; nothing depends on it.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: There is no such rank.
    """
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_object(obj: object, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the object of one rank.

    Args:
        obj: Plain data, with tensors in it or not; that of other ranks is not read.
        root_rank: Whose it is.
        name: For messages; nothing depends on it.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: There is no such rank.
        TypeError: It is something else.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
        >>> hvd.shutdown()
    """
    del name
    is_root = runtime().place.rank == _root(root_rank)
    state: dict[str, object] = {"object": obj if is_root else None}
    share_state(state, root_rank)
    return state["object"]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int = 0
) -> None:
    """Overwrites tensors with those of one rank.

    Args:
        params: A model's `state_dict()`, `named_parameters()` or `parameters()`; what is
            no tensor is left alone.
        root_rank: Whose tensors stay.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: There is no such rank.
    """
    pairs: list[Any] = (
        sorted(params.items()) if isinstance(params, Mapping) else list(params)
    )
    for one in pairs:
        tensor = one[1] if isinstance(one, tuple) else one
        if isinstance(tensor, torch.Tensor):
            broadcast_(tensor, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0
) -> None:
    """Gives all ranks the state and the options of one rank's optimizer.

    Args:
        optimizer: Of parameters alike on all ranks. Only the root's needs a state.
        root_rank: Whose state it is.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: There is no such rank.
    """
    found = broadcast_object(optimizer.state_dict(), root_rank)
    if runtime().place.rank != root_rank:
        optimizer.load_state_dict(found)


def barrier() -> None:
    """Waits until all ranks are here.

    Raises:
        HorovodInternalError: A rank is lost.
    """
    with runtime().group() as group:
        group.allreduce([torch.zeros(1)]).wait()


def share_state(state: MutableMapping[str, object], root_rank: int) -> None:
    """Gives all ranks the state of one, in place, along a tree of ranks.

    Args:
        state: Models, optimizers, what else has a `state_dict`, and plain data, by name;
            the same names on all ranks.
        root_rank: Whose state it is.

    Raises:
        HorovodInternalError: A rank is lost.
        ProgramError: There is no such rank.
        CheckpointError: The state does not fit this rank's.
    """
    place = runtime().place
    number = (place.rank - _root(root_rank)) % place.size

    def peer(at: int) -> int:
        return place.order[(at + root_rank) % place.size]

    with runtime().group() as group:
        step = 1
        while step < place.size:
            if number & step:
                take_state(group, peer(number - step), state)
                break
            step *= 2
        step //= 2
        while step:
            if number + step < place.size:
                give_state(group, peer(number + step), state)
            step //= 2


def _root(root_rank: int) -> int:
    size = runtime().place.size
    if not 0 <= root_rank < size:
        message = f"there is no rank {root_rank} among {size} ranks"
        raise ProgramError(message)
    return root_rank


def _synchronize(tensor: Tensor) -> None:
    device = tensor.device
    if device.type != "cpu":
        # On a GPU the end of a work says only in which order things will happen.
        torch.accelerator.current_stream(device).synchronize()
