"""What this rank holds, by the names, shapes and offsets of the model as written.

A mesh changes what there is: a stage has some blocks, and a fused matrix stands in parts.
Under canonical names all of it is what any other mesh, or none, would have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_parallel.tensor.canonical import canonical_slices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

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
