"""Applies a plan of tensor parallelism to a model, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor.parallel import parallelize_module

from drivetrain_core import Code, PlanError
from drivetrain_parallel.tensor.plan import ModuleStyle, Style
from drivetrain_parallel.tensor.styles import (
    Colwise,
    Distributor,
    Entry,
    HeadInputs,
    JoinSequence,
    Partial,
    Replicated,
    Rowwise,
    SplitParameters,
    SplitSequence,
    VocabParallel,
    set_attributes,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from drivetrain_parallel.tensor.plan import TensorPlan


def apply_tensor_plan(
    model: nn.Module,
    mesh: DeviceMesh,
    plan: TensorPlan,
    *,
    missing_ok: bool = False,
    src_data_rank: int | None = 0,
) -> None:
    """Splits a model over the ranks of the tensor axis, in place.

    Afterwards every parameter is a DTensor on `mesh`; those of packed matrices are
    divided into parts, see `canonical_slices`. Forward takes and returns plain tensors
    that are equal on all ranks of the axis.

    Args:
        model: On its device, with parameters that are no DTensors yet.
        mesh: The tensor axis alone.
        plan: What `plan_tensor_parallel` returned for this model.
        missing_ok: Whether modules of the plan may be absent, as they are from a
            stage of a pipeline.
        src_data_rank: The rank of the axis whose values all get; None where they are
            known to be equal, which saves the exchange.

    Raises:
        PlanError: The plan is for another number of ranks, or another model.
    """
    if mesh.ndim != 1 or mesh.size() != plan.degree:
        shape = "x".join(str(n) for n in mesh.shape)
        raise PlanError(
            Code.CONFIG,
            "tensor",
            because=f"the plan is for {plan.degree} ranks, the mesh has {shape}",
            fix="pass the slice of the mesh along its tensor axis",
        )
    modules = dict(model.named_modules())
    named = (*plan.modules, *plan.attributes, *plan.entries, *plan.head_inputs)
    missing = [name for name in dict.fromkeys(named) if name not in modules]
    if missing and not missing_ok:
        raise PlanError(
            Code.CONFIG,
            "tensor",
            because=f"the model has no module {missing[0]!r}, which the plan names "
            f"({len(missing)} are missing)",
            fix="plan again for this model",
        )
    distributor = Distributor(mesh, src_data_rank)
    for name, style in plan.modules.items():
        # A stage of a pipeline keeps the names of blocks that it does not have.
        if name in modules and modules[name]._parameters:
            made = _STYLES[style.style](
                distributor, style, in_sequence=_in_sequence(name, plan)
            )
            parallelize_module(modules[name], mesh, made)
    for name, values in plan.attributes.items():
        if name in modules:
            set_attributes(modules[name], values)
    for name, arguments in plan.entries.items():
        if name in modules:
            entry = Entry(arguments, in_sequence=_in_sequence(name, plan))
            parallelize_module(modules[name], mesh, entry)
    for name, inputs in plan.head_inputs.items():
        if name in modules:
            parallelize_module(modules[name], mesh, HeadInputs(inputs))
    for name, module in modules.items():
        if _in_sequence(name, plan) and name not in plan.modules:
            inside = ModuleStyle(style=Style.PARTIAL, is_entered=True)
            parallelize_module(module, mesh, Partial(distributor, inside))
        parallelize_module(module, mesh, Replicated(distributor))
    for container, argument in plan.sequence.items():
        if container in modules:
            _split_stream(modules[container], mesh, argument)


_STYLES: dict[
    Style, type[Colwise | Partial | Rowwise | SplitParameters | VocabParallel]
]
_STYLES = {
    Style.COLWISE: Colwise,
    Style.COLWISE_GATHERED: Colwise,
    Style.COLWISE_LOSS: Colwise,
    Style.ROWWISE: Rowwise,
    Style.VOCAB: VocabParallel,
    Style.SPLIT: SplitParameters,
    Style.PARTIAL: Partial,
}


def _in_sequence(name: str, plan: TensorPlan) -> bool:
    return any(name.startswith(f"{container}.") for container in plan.sequence)


def _split_stream(container: nn.Module, mesh: DeviceMesh, argument: str | int) -> None:
    """Splits the stream before the first block that is here, joins it after the last."""
    here = [b for b in container.children() if next(b.parameters(), None) is not None]
    if here:
        parallelize_module(here[0], mesh, SplitSequence(argument))
        parallelize_module(here[-1], mesh, JoinSequence())
