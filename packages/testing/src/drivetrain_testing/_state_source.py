"""The contract of a state source."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from drivetrain_core import NamesError
from drivetrain_core.services.state_source import StateSource, TensorSpec
from drivetrain_testing._clauses import must_raise, no_other_error, require
from drivetrain_testing._models import (
    Block,
    make_trained,
    step_once,
    tensors_equal,
)
from drivetrain_testing._processes import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    Factory = Callable[[nn.Module, torch.optim.Optimizer | None], StateSource]

_NAMES = {
    "module.weight",
    "module.bias",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
    "norm.num_batches_tracked",
    "up.weight",
    "low",
}


def check_state_source(
    factory: Factory, *, world_size: int = 2, timeout_s: float = 90.0
) -> None:
    """Checks that a source gives the whole state, by names that any run understands.

    Args:
        factory: Makes a source for a model and its optimizer, or None. It crosses to
            child processes by pickle.
        world_size: The number of ranks to shard over; 1 leaves sharding out.
        timeout_s: How long the ranks may take, in seconds.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    for check in (_check_names, _check_memory, _check_transfer, _check_refusals):
        with no_other_error("a state source"):
            check(factory)
    if world_size > 1:
        run_ranks(_check_shards, world_size, factory, timeout_s=timeout_s)


def _check_names(factory: Factory) -> None:
    model, optimizer = make_trained(1)
    source = factory(model, None)
    require(isinstance(source, StateSource), "a source has the methods of StateSource")
    names = [part.name for part in source.parts()]
    require(len(names) == len(set(names)), "each tensor is there once, tied or not")
    require(
        set(names) == _NAMES,
        f"the names are those of the user's model, got {sorted(set(names) ^ _NAMES)}",
    )
    compiled = cast("nn.Module", torch.compile(model, backend="eager"))
    for wrapped in (nn.DataParallel(model), compiled):
        require(
            [part.name for part in factory(wrapped, None).parts()] == names,
            f"{type(wrapped).__name__} leaves no trace in the names",
        )
    both = {part.name for part in factory(nn.DataParallel(model), optimizer).parts()}
    for key in ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        name = f"optimizer.{key}.up.weight"
        require(name in both, f"the optimizer's tensors are named like {name}")
    require(both >= _NAMES, "the model's names do not change beside an optimizer")


def _check_memory(factory: Factory) -> None:
    model, optimizer = make_trained(1)
    parts = {part.name: part for part in factory(model, optimizer).parts()}
    part = parts["module.weight"]
    require(part.global_shape == (7, 5), "a part has the shape over all ranks")
    require(part.offset == (0, 0), "an unsharded part begins at zero")
    require(part.dtype == torch.float32, "a part has the type of the tensor")
    require(not part.local.requires_grad, "a part is no part of a graph")
    require(tuple(part.local.shape) == (7, 5), "an unsharded part is the whole tensor")
    part.local.fill_(0.5)
    require(
        bool((model.module.weight == 0.5).all()),
        "writing into a part writes into the live model",
    )
    moment = parts["optimizer.exp_avg.module.weight"].local
    moment.fill_(0.25)
    live = optimizer.state[model.module.weight]["exp_avg"]
    require(
        bool((live == 0.25).all()), "writing into a part writes into the live optimizer"
    )


def _check_transfer(factory: Factory) -> None:
    model, optimizer = make_trained(3)
    sender = factory(nn.DataParallel(model), optimizer)
    other, new_optimizer = make_trained(0, seed=1)
    for group in new_optimizer.param_groups:
        group["lr"] = 99.0
    receiver = factory(other, new_optimizer)
    receiver.prepare(
        TensorSpec(name=p.name, global_shape=p.global_shape, dtype=p.dtype)
        for p in sender.parts()
    )
    targets = {part.name: part for part in receiver.parts()}
    for part in sender.parts():
        require(part.name in targets, f"prepare makes a place for {part.name}")
        require(
            (targets[part.name].global_shape, targets[part.name].dtype)
            == (part.global_shape, part.dtype),
            f"prepare makes {part.name} of the same shape and type",
        )
        targets[part.name].local.copy_(part.local)
    receiver.load_scalars(sender.scalars())
    require(receiver.scalars() == sender.scalars(), "the plain values have arrived")
    losses = step_once(model, optimizer, 3), step_once(other, new_optimizer, 3)
    require(tensors_equal(*losses), "the receiver's next loss is the sender's")
    after = {part.name: part.local for part in sender.parts()}
    for part in receiver.parts():
        require(
            tensors_equal(part.local, after[part.name]),
            f"parts and plain values are the whole state: {part.name} differs after a "
            "step",
        )


def _check_refusals(factory: Factory) -> None:
    source = factory(*make_trained(0))
    for name in ("modul.weight", "optimizer.exp_avg.modul.weight", "optimizer.step"):
        spec = TensorSpec(name=name, global_shape=(7, 5), dtype=torch.float32)
        with must_raise(NamesError, f"there is no place for a tensor {name!r}"):
            source.prepare([spec])
    wrong = TensorSpec(name="module.weight", global_shape=(5, 7), dtype=torch.float32)
    with must_raise(NamesError, "a tensor of another shape is refused"):
        source.prepare([wrong])
    wrong = TensorSpec(name="module.weight", global_shape=(7, 5), dtype=torch.float64)
    with must_raise(NamesError, "a tensor of another type is refused"):
        source.prepare([wrong])
    with must_raise(NamesError, "an unknown plain value is refused"):
        source.load_scalars({"optimizer.param_groups.9.lr": 1.0})


def _check_shards(factory: Factory) -> None:
    torch.manual_seed(0)
    model = Block()
    world_size = dist.get_world_size()
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step_once(model, optimizer, 0)
    parts = factory(model, optimizer).parts()
    facts = [
        (p.name, p.global_shape, str(p.dtype), p.offset, tuple(p.local.shape))
        for p in parts
    ]
    of_ranks: list[list[tuple[object, ...]]] = [[]] * world_size
    dist.all_gather_object(of_ranks, facts)
    require(
        len({tuple(f[:3] for f in own) for own in of_ranks}) == 1,
        "every rank has the same names, shapes and types in the same order",
    )
    full: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        full[name] = parameter.full_tensor().detach()
        moment = optimizer.state[parameter]["exp_avg"]
        full[f"optimizer.exp_avg.{name}"] = moment.full_tensor()
    for part in parts:
        if part.name in full:
            _check_block(part.local, part.offset, full[part.name], part.name)
            covered = torch.zeros(part.global_shape)
            _block(covered, part.offset, part.local.shape).add_(1)
            dist.all_reduce(covered)
            require(
                bool((covered == 1).all()),
                f"the parts of all ranks are the whole of {part.name}, each element once",
            )
    new = Block()
    fully_shard(new, mesh=init_device_mesh("cpu", (world_size,)))
    receiver = factory(new, torch.optim.Adam(new.parameters(), lr=0.01))
    receiver.prepare(parts)
    for target, part in zip(receiver.parts(), parts, strict=True):
        require(
            (target.name, target.offset, target.local.shape)
            == (part.name, part.offset, part.local.shape),
            f"prepare shards {part.name} as its parameter is",
        )


def _check_block(
    local: torch.Tensor, offset: tuple[int, ...], full: torch.Tensor, name: str
) -> None:
    require(
        tensors_equal(local, _block(full, offset, local.shape)),
        f"the part of {name} is the block of the whole at its offset",
    )


def _block(
    full: torch.Tensor, offset: tuple[int, ...], shape: torch.Size
) -> torch.Tensor:
    for dim, (begin, length) in enumerate(zip(offset, shape, strict=True)):
        full = full.narrow(dim, min(begin, full.shape[dim]), length)
    return full
