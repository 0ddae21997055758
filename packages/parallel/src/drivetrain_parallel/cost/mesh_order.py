"""Order of meshes: the few that the cost model expects most of.

The model of the step is counted on the meta device, and the rates are those that were
measured here. What is left out has its reason in the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core import Choice, Code, PlanError, Rejected
from drivetrain_core.mesh_shape import mesh_of
from drivetrain_core.services.model_layout import MeshRanking
from drivetrain_parallel.cost import Hardware, Path, Probes, StepOptions, calibrate
from drivetrain_parallel.cost import rank_meshes as rank_candidates
from drivetrain_parallel.cost.module_profile import profile_module
from drivetrain_parallel.micro_batches import micro_batches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from drivetrain_core import Context
    from drivetrain_core.services.model_layout import DeviceRates
    from drivetrain_parallel.cost import Candidate, ModelProfile

MOST_MESHES = 6
"""Meshes that are tried at most."""


def rank_meshes(
    meshes: Sequence[Choice],
    model: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], Tensor],
    context: Context,
    rates: DeviceRates,
) -> MeshRanking:
    """Returns the meshes worth a trial, and why others are none.

    What the model could not predict is kept as well, after the others.

    Args:
        meshes: The candidates.
        model: The model as written.
        batch: A global batch.
        loss_of: Returns the loss of a model on a batch.
        context: The facts.
        rates: What the device does.

    Raises:
        PlanError: The model cannot be profiled.
    """
    profile = profile_module(model, batch, loss_of)
    hardware = hardware_of(context, rates)
    predicted = {c: _predicted(c, profile, hardware, context) for c in meshes}
    ranked = sorted(
        ((choice, found) for choice, found in predicted.items() if found is not None),
        key=lambda pair: pair[1].prediction.step_s,
    )
    kept = [choice for choice, _ in ranked[:MOST_MESHES]]
    kept += [choice for choice, found in predicted.items() if found is None]
    rejected = [
        Rejected(
            plan=str(choice),
            code=Code.SLOWER,
            because=f"no trial: {candidate.compare(ranked[0][1])}",
        )
        for choice, candidate in ranked[MOST_MESHES:]
    ]
    return MeshRanking(tuple(kept), rejected)


def hardware_of(context: Context, rates: DeviceRates) -> Hardware:
    """Returns this machine as the cost model sees it, with what was measured on it.

    Args:
        context: The facts.
        rates: What the device does, and the ranks with one another.
    """
    ranks = context.world.size
    link = Path(bytes_per_s=rates.bytes_per_s)
    if rates.all_reduce is not None and rates.all_reduce.beta_s_per_byte > 0:
        # A ring sends each byte so often, in twice as many steps as there are others.
        turns = 2 * (ranks - 1)
        link = Path(
            bytes_per_s=turns / ranks / rates.all_reduce.beta_s_per_byte,
            latency_s=rates.all_reduce.alpha_s / turns,
        )
    plain = Hardware(
        name=context.device.name,
        devices_per_node=context.world.local_size,
        peak_flops=dict(rates.flops_per_s),
        memory_bytes=context.device.memory_bytes,
        memory_bandwidth=rates.bytes_per_s,
        link=link,
    )
    return calibrate(
        plain,
        Probes(
            matmul_flops_per_s=rates.flops_per_s["float32"],
            dtype="float32",
            memory_bytes_per_s=rates.bytes_per_s,
            launch_s=rates.overhead_s,
            link=link,
        ),
    )


def _predicted(
    choice: Choice, profile: ModelProfile, hardware: Hardware, context: Context
) -> Candidate | None:
    batch = context.batch.size
    try:
        shape = mesh_of([choice, Choice("ddp", {})], context.world.size)
        num = micro_batches_of([], shape.pipeline, batch, shape.data_size)
        plain: dict[str, Any] = {"weight_bytes": 4, "gathered_bytes": 4}
        options = StepOptions(global_batch=batch, dtype="float32", zero=0, **plain)
        ranking = rank_candidates(
            profile,
            hardware,
            context.world.size,
            batch,
            template=options,
            shapes=[shape],
            schedules=("1f1b",),
            checkpointing=("none",),
            zero=(0,),
            micro_batches=(max(1, batch // (shape.data_size * num)),),
            stages_per_rank=(1,),
        )
    except PlanError:
        return None
    return ranking.candidates[0] if ranking.candidates else None
