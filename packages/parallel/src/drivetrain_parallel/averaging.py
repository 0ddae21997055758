"""Averages gradients over the data axes of a mesh: with copies, or with shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import fully_shard

from drivetrain_parallel.expert.expert_layers import expert_parameters
from drivetrain_parallel.torch_internals import replicate_module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from drivetrain_parallel.device_mesh import ParallelMesh

    Units = Sequence[tuple[nn.Module, list[nn.Module]]]

_SHARDED = ("shard", "expert", "context")


def average_copies(
    mesh: ParallelMesh, units: Units, experts: Sequence[nn.Module]
) -> Callable[[bool], None] | None:
    """Keeps a copy of this rank's part of the model on each rank of the data axes.

    Args:
        mesh: The ranks along the axes.
        units: What this rank has of the model: each root with the blocks inside it.
        experts: The layers of experts among its modules.
    """
    whole = mesh.axes("replicate", *_SHARDED)
    if whole is None:
        return None
    of_experts = mesh.axes("replicate", "shard", "context")
    return _wrap(
        units, experts, replicate_module, {"mesh": whole}, {"mesh": of_experts}
    )


def average_shards(
    mesh: ParallelMesh,
    units: Units,
    experts: Sequence[nn.Module],
    *,
    reshard: bool,
    **options: Any,
) -> Callable[[bool], None] | None:
    """Shards this rank's part of the model over the data axes.

    Args:
        mesh: The ranks along the axes.
        units: What this rank has of the model: each root with the blocks inside it.
        experts: The layers of experts among its modules.
        reshard: Whether a block is gathered again for its backward.
        **options: More for `fully_shard`.
    """
    if mesh.axes(*_SHARDED) is None:
        return average_copies(mesh, units, experts)
    whole = _hybrid(mesh, _SHARDED)
    of_experts = _hybrid(mesh, ("shard", "context"))
    return _wrap(
        units,
        experts,
        fully_shard,
        {"mesh": whole, **options},
        {"mesh": of_experts, **options},
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
    units: Units,
    experts: Sequence[nn.Module],
    wrap: Any,
    options: dict[str, Any],
    for_experts: dict[str, Any],
    *,
    reshard: bool | None = None,
) -> Callable[[bool], None]:
    """Wraps blocks, then the roots, which must never be left out."""
    roots: list[Any] = []
    inner = {} if reshard is None else {"reshard_after_forward": reshard}
    # What holds no block runs its backward at once after its forward.
    outer = {} if reshard is None else {"reshard_after_forward": False}
    for root, blocks in units:
        inside = set(root.modules())
        layers = [layer for layer in experts if layer in inside]
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

    return sync
