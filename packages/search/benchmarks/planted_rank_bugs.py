"""Optimizations with a silent bug of several ranks, in place of the gradient averaging."""

from __future__ import annotations

import torch
from planted_bugs import Bug, Elsewhere
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from drivetrain_core._choice import Numerics, Phase, Slot


class RankBug(Bug):
    """A bug that averages the gradients, or does not."""

    slot = Slot.DATA_PARALLEL

    def __init__(self, act):
        super().__init__(act, Phase.SHARD)

    def numerics(self, config):
        return Numerics.REORDER


def replicate(state):
    state.model = DistributedDataParallel(state.model)


def shard(module, root=True):
    world = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    for block in module.layers:
        fully_shard(block, mesh=mesh)
    if root:
        fully_shard(module, mesh=mesh)


def no_averaging(state):
    pass


def averaging_by_sum(state):
    for parameter in state.module.parameters():
        parameter.register_hook(lambda g: 2.0 * g)
    replicate(state)


def averaging_twice(state):
    for parameter in state.module.parameters():
        parameter.register_hook(lambda g: 0.5 * g)
    replicate(state)


def one_left_out(state):
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        state.module, ["head.bias"]
    )
    replicate(state)


def same_loader(state):
    state.loader.batch_sampler._rank = 0
    replicate(state)


def same_batch(state):
    replica = DistributedDataParallel(state.model)
    forward = replica.forward

    def from_the_first(x):
        # A copy: the batch is that of the next case, too.
        same = x.clone()
        torch.distributed.broadcast(same, 0)
        return forward(same)

    replica.forward = from_the_first
    state.model = replica


def root_not_sharded(state):
    shard(state.module, root=False)


def optimizer_before_sharding(state):
    shard(state.module)
    state.wrap_optimizer(Elsewhere)


def different_weights(state):
    replicate(state)
    if state.context.world.rank:
        with torch.no_grad():
            state.module.head.bias.add_(1e-4)


RANK_BUGS = tuple(
    RankBug(act)
    for act in (
        no_averaging,
        averaging_by_sum,
        averaging_twice,
        one_left_out,
        same_loader,
        same_batch,
        root_not_sharded,
        optimizer_before_sharding,
        different_weights,
    )
)
"""The bugs of several ranks; all are tried on the program `residual`."""

HEALTHY_ON_RANKS = (
    ["ddp"],
    [("fsdp", 2)],
    [("fsdp", 3), ("precision", "bf16_params")],
    ["ddp", ("micro_batch", 2), ("precision", "bf16_autocast")],
    ["ddp", "data_loading"],
)
"""Plans of several ranks without a bug."""
