"""What this rank holds, by the names, shapes and offsets of the model as written.

A mesh changes what there is: a stage has some blocks, and a fused matrix stands in parts.
Under canonical names all of it is what any other mesh, or none, would have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

from drivetrain_core.services.tensor_spec import TensorPart
from drivetrain_parallel.tensor.canonical import canonical_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn

    from drivetrain_parallel.parallel_plan import ParallelPlan


def aliases_of(plan: ParallelPlan | None) -> dict[str, str]:
    """Returns the first name of parameters that some stage holds under another one.

    Args:
        plan: What each axis of a mesh does to the model, if there is one.
    """
    if plan is None or plan.pipeline is None:
        return {}
    return {
        name: one.name
        for one in plan.pipeline.shared
        for name in one.names.values()
        if name != one.name
    }


def canonical_names_of(
    models: Iterable[nn.Module], plan: ParallelPlan | None
) -> dict[str, str]:
    """Returns what the whole model calls each parameter that a rank has.

    Args:
        models: What the rank has of the model.
        plan: What each axis of a mesh does to the model, if there is one.
    """
    aliases = aliases_of(plan)
    return {
        name: aliases.get(one.name, one.name)
        for model in models
        for name, one in canonical_slices(model).items()
    }


def canonical_parts(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    aliases: Mapping[str, str] | None = None,
) -> list[TensorPart]:
    """Returns the parts of tensors that belong to the parameters of a model.

    Args:
        model: This rank's model, or a stage of it.
        tensors: One for each of some parameters, such as its gradient, of its shape
            and layout, by the parameter's name in the model.
        aliases: The first name of parameters that a stage holds under another one.
    """
    slices, aliases = canonical_slices(model), aliases or {}
    found = []
    for name, tensor in tensors.items():
        local, offset = tensor, (0,) * tensor.dim()
        if isinstance(tensor, DTensor):
            local = tensor.to_local()
            chunk = tensor.__create_chunk_list__()[0]  # type: ignore[no-untyped-call]
            offset = tuple(chunk.offsets)
        whole = slices[name]
        found.append(
            TensorPart(
                name=aliases.get(whole.name, whole.name),
                global_shape=tuple(whole.global_shape),
                dtype=tensor.dtype,
                offset=tuple(a + b for a, b in zip(whole.offset, offset, strict=True)),
                local=local,
            )
        )
    return found
