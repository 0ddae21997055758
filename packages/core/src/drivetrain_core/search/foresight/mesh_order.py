"""Which meshes deserve a trial: the few that the cost model expects most of.

The model of the step is counted on the meta device, and the rates are those that were
measured here. What is left out has its reason in the plan.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core._errors import Code, DrivetrainError, PlanError
from drivetrain_core._optimization import Choice, Slot
from drivetrain_core._plan import Rejected
from drivetrain_core.parallel.micro_batches import micro_batches_of
from drivetrain_core.parallel.resolve import mesh_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core._context import Context
    from drivetrain_core.parallel.cost import Candidate, Hardware, ModelProfile
    from drivetrain_core.search.foresight.time_model import Rates
    from drivetrain_core.search.process.payload import Payload
    from drivetrain_core.search.space import SlotSpace

__all__ = ["MOST_MESHES", "Chosen", "hardware_of", "likely_meshes"]

logger = logging.getLogger(__name__)

MOST_MESHES = 6
"""Meshes that are tried at most."""


class Chosen(NamedTuple):
    """A space with the meshes that are worth a trial.

    Attributes:
        space: The candidates of each slot.
        rejected: The meshes that are not among them, and why.
    """

    space: tuple[SlotSpace, ...]
    rejected: list[Rejected]


def likely_meshes(
    space: Sequence[SlotSpace], payload: Payload, rates: Rates | None
) -> Chosen:
    """Returns a space with the meshes worth a trial, and why others are none.

    Where nothing can be predicted, all stay, in their order.

    Args:
        space: The candidates of each slot.
        payload: The program and its facts.
        rates: What the device does; None if that could not be measured.
    """
    meshes = [c for entry in space if entry.slot is Slot.MESH for c in entry.candidates]
    if not meshes or rates is None or payload.program is None:
        return Chosen(tuple(space), [])
    try:
        ranked = _ranked(meshes, payload, rates)
    except DrivetrainError as error:
        logger.info("meshes are tried in their order: %s", error)
        return Chosen(tuple(space), [])
    kept = [choice for choice, _ in ranked[:MOST_MESHES]]
    rejected = [
        Rejected(
            plan=str(choice),
            code=Code.SLOWER,
            because=f"no trial: {candidate.compare(ranked[0][1])}",
        )
        for choice, candidate in ranked[MOST_MESHES:]
    ]
    # What the model could not predict is tried as well.
    known = {choice for choice, _ in ranked}
    kept += [choice for choice in meshes if choice not in known]
    chosen = tuple(
        dataclasses.replace(entry, candidates=tuple(kept))
        if entry.slot is Slot.MESH
        else entry
        for entry in space
    )
    return Chosen(chosen, rejected)


def hardware_of(context: Context, rates: Rates) -> Hardware:
    """Returns this machine as the cost model sees it, with what was measured on it.

    Args:
        context: The facts.
        rates: What the device does, and the ranks with one another.
    """
    from drivetrain_core.parallel.cost import Hardware, Path, Probes, calibrate

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


def _ranked(
    meshes: Sequence[Choice], payload: Payload, rates: Rates
) -> list[tuple[Choice, Candidate]]:
    from drivetrain_core.parallel.cost import profile_module

    context, program = payload.context, payload.program
    assert program is not None
    model = program.build_model()
    profile = profile_module(model, payload.guard_batches[0], program.loss_of)
    hardware = hardware_of(context, rates)
    found: list[tuple[Choice, Candidate]] = []
    for choice in meshes:
        candidate = _predicted(choice, profile, hardware, context)
        if candidate is not None:
            found.append((choice, candidate))
    return sorted(found, key=lambda pair: pair[1].prediction.step_s)


def _predicted(
    choice: Choice, profile: ModelProfile, hardware: Hardware, context: Context
) -> Candidate | None:
    from drivetrain_core.parallel.cost import StepOptions, rank_meshes

    batch = context.batch.size
    try:
        shape = mesh_of([choice, Choice("ddp", {})], context.world.size)
        num = micro_batches_of([], shape.pipeline, batch, shape.data_size)
        plain: dict[str, Any] = {"weight_bytes": 4, "gathered_bytes": 4}
        options = StepOptions(global_batch=batch, dtype="float32", zero=0, **plain)
        ranking = rank_meshes(
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
