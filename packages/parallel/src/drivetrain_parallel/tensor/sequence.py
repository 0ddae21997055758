"""Splits what is between the matrices of a block along the sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drivetrain_core import Code, PlanError
from drivetrain_parallel.tensor.plan import Style, TensorPlan

if TYPE_CHECKING:
    from drivetrain_parallel.tensor.flow import Flow
    from drivetrain_parallel.tensor.repeated import BlockLists

_STREAM_NDIM = 3


def with_sequence(plan: TensorPlan, flow: Flow, lists: BlockLists) -> TensorPlan:
    """Returns a plan whose ranks have a part of the sequence each between matrices.

    Values enter the split part of a block at the argument of the module around its
    matrices, where that is possible: code there reads the length off its input.

    Args:
        plan: Without it.
        flow: Of the model.
        lists: Its repeated blocks.

    Raises:
        PlanError: A matrix of a block has its outputs joined, or a block has no
            argument that is a stream of [batch, sequence, features].
    """
    for name, style in plan.modules.items():
        if lists.block(name) and style.style is Style.COLWISE_GATHERED:
            because = f"the outputs of {name} are joined on every rank"
            raise _refused(because)
    streams: dict[str, str | int] = {}
    for container, names in lists.containers.items():
        if container in lists.mixed:
            because = (
                f"the blocks share {container or 'the model itself'} with other modules, "
                "which see the whole sequence"
            )
            raise _refused(because, "hold the blocks in a list of their own, or ")
        block = f"{container}.{names[0]}" if container else names[0]
        keys = [
            key
            for (module, key), shape in flow.arguments.items()
            if module == block and len(shape) == _STREAM_NDIM
        ]
        if not keys:
            because = (
                f"{block} has no argument of three dimensions, the second of them "
                "the sequence"
            )
            raise _refused(because)
        streams[container] = keys[0]
    modules, entries = dict(plan.modules), dict(plan.entries)
    for owner, key, fed in sorted(flow.inputs, key=lambda one: -one[0].count(".")):
        if not lists.block(owner) or owner == lists.block(owner):
            continue
        styles = [modules.get(name) for name in fed]
        if all(s and s.style is Style.COLWISE and not s.is_entered for s in styles):
            entries[owner] = (*entries.get(owner, ()), key)
            modules.update({n: replace(modules[n], is_entered=True) for n in fed})
    return replace(plan, modules=modules, entries=entries, sequence=streams)


def _refused(because: str, otherwise: str = "") -> PlanError:
    return PlanError(
        Code.NOT_APPLICABLE,
        "sequence_parallel",
        because=because,
        fix=f"{otherwise}leave sequence_parallel out",
    )
