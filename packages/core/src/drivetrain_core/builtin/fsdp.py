"""Sharded data parallel: FSDP2 as ZeRO-2, ZeRO-3 or hybrid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.utils import _sync_module_states

from drivetrain_core._choice import Numerics, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._optimization import BaseOptimization
from drivetrain_core.builtin.ddp import needs_world
from drivetrain_core.mesh_shape import asks_for_mesh

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import BlockFacts, Context
    from drivetrain_core._state import TrainingState

_SYNC_BYTES = 250 << 20


class Fsdp(BaseOptimization):
    """Shards parameters, gradients and optimizer state over the ranks.

    `zero=3` gathers each block for its forward and again for its backward; `zero=2`
    keeps it gathered between the two. `shard_size` divides the world into groups:
    parameters are sharded inside a group and replicated across groups (hybrid).
    """

    name = "fsdp"
    slot = Slot.DATA_PARALLEL
    phase = Phase.SHARD
    options = {
        "zero": Option(3, choices=(2, 3)),
        "shard_size": Option(None, kind=int, minimum=2, optional=True),
    }
    shorthand = "zero"
    # The sum over samples is taken by rank.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns ZeRO-2 and ZeRO-3, and the hybrid with one group a node."""
        world, local = context.world.size, context.world.local_size
        if world == 1:
            return []
        found = [self.normalize(2), self.normalize(3)]
        if 1 < local < world:
            found.append(self.normalize({"zero": 3, "shard_size": local}))
        return found

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects one rank, BatchNorm, uneven groups, and ties across blocks."""
        meshed = asks_for_mesh(plan)
        answer = needs_world(context, parts=1 if meshed else None)
        if isinstance(answer, Reject):
            return answer
        group, world = config["shard_size"], context.world.size
        if not meshed and isinstance(group, int) and world % group:
            return Reject(
                Code.NOT_DIVISIBLE,
                f"shard_size {group} does not divide the {world} ranks",
                f"use a divisor of {world}",
            )
        if context.model.has_batch_norm:
            return Reject(
                Code.NOT_APPLICABLE,
                "FSDP2 does not keep BatchNorm statistics equal between ranks",
                "use ddp, or GroupNorm or LayerNorm",
            )
        crossing = _tie_that_leaves_a_block(context)
        if crossing:
            return Reject(
                Code.TIED_PARAMS,
                f"tied parameters cross a block: {', '.join(crossing)}",
                "untie them, or use ddp",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Shards the blocks, then the root, which must never be left out."""
        if any(isinstance(m, torch.jit.ScriptModule) for m in state.module.modules()):
            raise PlanError(
                Code.NOT_APPLICABLE,
                "fsdp",
                because="a part of the model is scripted, and takes none of its hooks",
                fix="use ddp, or hand over the part as it was before torch.jit.script",
            )
        reshard = config["zero"] == 3
        options: dict[str, Any] = {}
        # bf16_params: fp32 shards are the masters, gathered as bf16, reduced in fp32.
        if state.planned_config("precision").get("dtype") == "bf16_params":
            options["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        if state.layout is not None:
            state.set_gradient_sync = state.layout.average_shards(
                reshard=reshard, **options
            )
            return
        world = state.context.world.size
        group = config["shard_size"]
        shape: tuple[int, ...] = (world,)
        names: tuple[str, ...] = ("shard",)
        if isinstance(group, int) and group < world:
            shape, names = (world // group, group), ("replicate", "shard")
        state.mesh = init_device_mesh(state.device.type, shape, mesh_dim_names=names)
        options["mesh"] = state.mesh
        # As DDP does: else the shards of ranks with other weights would be mixed.
        _sync_module_states(state.module, _get_default_group(), _SYNC_BYTES, 0, ())
        attributes = [dict(vars(p)) for p in state.module.parameters()]
        for block in state.blocks():
            fully_shard(block, reshard_after_forward=reshard, **options)
        # The root holds what no block does; its backward follows at once.
        root: Any = fully_shard(state.module, reshard_after_forward=False, **options)
        for parameter, own in zip(root.parameters(), attributes, strict=True):
            vars(parameter).update(own)  # What a factory may go by.

        def sync(enabled: bool) -> None:
            root.set_requires_gradient_sync(enabled)

        state.set_gradient_sync = sync


def _tie_that_leaves_a_block(context: Context) -> tuple[str, ...]:
    """Returns the names of a parameter that is in a block and elsewhere, or none."""
    blocks = context.model.blocks
    if blocks is None:
        return ()
    for group in context.model.tied:
        if len({_block_of(name, blocks) for name in group}) > 1:
            return tuple(group)
    return ()


def _block_of(name: str, blocks: BlockFacts) -> str:
    """Returns what a parameter's block is called in its list; empty if in none."""
    prefix = f"{blocks.container}." if blocks.container else ""
    if not name.startswith(prefix):
        return ""
    key = name.removeprefix(prefix).split(".", 1)[0]
    inside = range(blocks.before, blocks.before + blocks.count)
    return "" if key.isdigit() and int(key) not in inside else key
