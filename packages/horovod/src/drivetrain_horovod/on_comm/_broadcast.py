"""Gives all ranks the parameters, the optimizer's state, or any object of one of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from drivetrain_core import DistributedError
from drivetrain_horovod.on_comm._exchange import allgather, broadcast_, start_broadcast
from drivetrain_horovod.on_comm._process_sets import check_process_set
from drivetrain_horovod.on_comm._state import world
from drivetrain_horovod.on_comm._wire import check_root, check_same, gather_numbers


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int = 0,
    process_set: Any = None,
) -> None:
    """Overwrites tensors with those of one rank.

    Args:
        params: A model's `state_dict()`, `named_parameters()` or `parameters()`; what is
            no tensor is left alone.
        root_rank: Whose tensors stay.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: There is no such rank, `params` is something else, or ranks
            have other names, shapes or dtypes.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.broadcast_parameters(torch.nn.Linear(2, 2).state_dict(), root_rank=0)
        >>> hvd.shutdown()
    """
    check_process_set(process_set)
    check_root(root_rank)
    tensors = [(n, t) for n, t in _named(params) if isinstance(t, torch.Tensor)]
    layout = [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors]
    check_same("the parameters to broadcast", "; ".join(layout))
    pending = [start_broadcast(tensor, root_rank) for _, tensor in tensors]
    for one in pending:
        one.wait()


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        message = (
            "params must be a state_dict(), named_parameters() or parameters(), got "
            f"{type(params).__name__}"
        )
        raise DistributedError(message)
    return [
        one if isinstance(one, tuple) else (str(at), one)
        for at, one in enumerate(params)
    ]


class _Place:
    """Stands for a tensor that travels by itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.device_type = tensor.device.type


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    process_set: Any = None,
) -> None:
    """Gives all ranks the state and the options of one rank's optimizer.

    Args:
        optimizer: Of parameters alike on all ranks. Only the root's needs a state.
        root_rank: Whose state it is.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: There is no such rank.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> optimizer = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        >>> hvd.shutdown()
    """
    check_process_set(process_set)
    check_root(root_rank)
    is_root = world().group.rank() == root_rank
    tensors: list[torch.Tensor] = []

    def take_out(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Place(value)
        return value

    def make(value: Any) -> Any:
        if not isinstance(value, _Place):
            return value
        tensors.append(
            torch.empty(value.shape, dtype=value.dtype, device=value.device_type)
        )
        return tensors[-1]

    skeleton = _map(optimizer.state_dict(), take_out) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank)
    state = skeleton if is_root else _map(skeleton, make)
    for pending in [start_broadcast(tensor, root_rank) for tensor in tensors]:
        pending.wait()
    if not is_root:
        optimizer.load_state_dict(state)


def _map(value: Any, function: Any) -> Any:
    """Returns dicts, lists and tuples with their leaves replaced, in their order."""
    if isinstance(value, dict):
        return {key: _map(one, function) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(one, function) for one in value)
    return function(value)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Returns an object of one rank on all of them.

    It travels as a pickle, so that the ranks must trust each other.

    Args:
        obj: What the root gives.
        root_rank: Which rank that is.
        name: No two collectives under way may have the same one.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: There is no such rank.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
        {'epoch': 3}
        >>> hvd.shutdown()
    """
    check_process_set(process_set)
    check_root(root_rank)
    is_root = world().group.rank() == root_rank
    data = pickle.dumps(obj) if is_root else b""
    size_bytes = gather_numbers([len(data)])[root_rank][0]
    wire = torch.empty(size_bytes, dtype=torch.uint8)
    if is_root:
        wire = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    broadcast_(wire, root_rank, name)
    return obj if is_root else pickle.loads(wire.numpy().tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: Any = None
) -> list[Any]:
    """Returns the objects of all ranks, by rank.

    They travel as pickles, so that the ranks must trust each other.

    Args:
        obj: This rank's.
        name: No two collectives under way may have the same one.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.

    Example:
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> hvd.allgather_object("a")
        ['a']
        >>> hvd.shutdown()
    """
    data = pickle.dumps(obj)
    sizes = [size for (size,) in gather_numbers([len(data)])]
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = torch.split(allgather(mine, name, process_set), sizes)
    return [pickle.loads(part.numpy().tobytes()) for part in parts]
