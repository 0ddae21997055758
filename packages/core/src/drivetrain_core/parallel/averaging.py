"""Averages gradients over the data axes of a mesh: with copies, or with shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import fully_shard

from drivetrain_core.parallel.expert.expert_layers import expert_parameters
from drivetrain_core.parallel.torch_internals import replicate_module

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from drivetrain_core._state import TrainingState
    from drivetrain_core.parallel.device_mesh import ParallelMesh

__all__ = ["average_copies", "average_shards"]

_SHARDED = ("shard", "expert", "context")


def average_copies(state: TrainingState) -> None:
    """Keeps a copy of this rank's part of the model on each rank of the data axes.

    Args:
        state: The program under construction, laid over a mesh.
    """
    mesh = state.parallel_mesh
    assert mesh is not None
    whole = mesh.axes("replicate", *_SHARDED)
    if whole is None:
        return
    experts = mesh.axes("replicate", "shard", "context")
    _wrap(state, replicate_module, {"mesh": whole}, {"mesh": experts})


def average_shards(state: TrainingState, *, reshard: bool, **options: Any) -> None:
    """Shards this rank's part of the model over the data axes.

    Args:
        state: The program under construction, laid over a mesh.
        reshard: Whether a block is gathered again for its backward.
        **options: More for `fully_shard`.
    """
    mesh = state.parallel_mesh
    assert mesh is not None
    if mesh.axes(*_SHARDED) is None:
        average_copies(state)
        return
    whole = _hybrid(mesh, _SHARDED)
    experts = _hybrid(mesh, ("shard", "context"))
    _wrap(
        state,
        fully_shard,
        {"mesh": whole, **options},
        {"mesh": experts, **options},
        reshard=reshard,
    )


def _hybrid(mesh: ParallelMesh, sharded: tuple[str, ...]) -> DeviceMesh | None:
    """Returns a mesh of copies by shards, or of shards alone."""
    shards = mesh.axes(*sharded)
    if shards is None:
        return mesh.axis("replicate")
    if mesh.axis("replicate") is None:
        return shards
    assert shards.mesh_dim_names is not None
    return mesh.device_mesh["replicate", shards.mesh_dim_names[0]]


def _wrap(
    state: TrainingState,
    wrap: Any,
    options: dict[str, Any],
    for_experts: dict[str, Any],
    *,
    reshard: bool | None = None,
) -> None:
    """Wraps blocks, then the roots, which must never be left out."""
    roots: list[Any] = []
    inner = {} if reshard is None else {"reshard_after_forward": reshard}
    # What holds no block runs its backward at once after its forward.
    outer = {} if reshard is None else {"reshard_after_forward": False}
    for root, blocks in state.units():
        layers = _expert_layers(state, root)
        apart = {p for one in layers for p in expert_parameters(one).values()}
        if for_experts["mesh"] is None:
            # No other rank has these experts, and their average is taken already.
            options = {**options, "ignored_params": apart}
        else:
            for layer in layers:
                wrap(layer, **inner, **for_experts)
        for block in blocks:
            wrap(block, **inner, **options)
        roots.append(wrap(root, **outer, **options))

    def sync(enabled: bool) -> None:
        for root in roots:
            root.set_requires_gradient_sync(enabled)

    state.set_gradient_sync = sync


def _expert_layers(state: TrainingState, root: nn.Module) -> list[nn.Module]:
    plan = state.parallel_plan
    if plan is None or plan.expert is None:
        return []
    names = plan.expert.layers
    # A stage holds the model under a name of its own.
    found = dict(root.named_modules())
    for model in state.models():
        found.update(model.named_modules())
    here = {id(module) for module in root.modules()}
    return [found[n] for n in names if n in found and id(found[n]) in here]
