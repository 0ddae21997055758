"""What a step goes to, term by term, on the rank of the pipeline that is slowest."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_parallel.cost.communication import DataTraffic, data_traffic, tied_s
from drivetrain_parallel.cost.communication import message_s as send_message_s
from drivetrain_parallel.cost.memory import held_parameters, rank_parameters
from drivetrain_parallel.cost.schedules import bubble

if TYPE_CHECKING:
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.model_profile import ModelProfile
    from drivetrain_parallel.cost.passes import Pass, Passes
    from drivetrain_parallel.cost.stages import Holding
    from drivetrain_parallel.cost.step_options import StepOptions

TERMS: dict[str, str] = tomllib.loads(
    files(__package__).joinpath("terms.toml").read_text("utf-8")
)
"""The terms of a step, in words."""


def step_terms(
    profile: ModelProfile,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
    parts: Passes,
    ranks: tuple[Holding, ...],
    micro_batches: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds that add up to the step, and those of all collectives.

    Args:
        profile: The model.
        hardware: The cluster.
        shape: The mesh.
        options: How the step is run.
        parts: One micro-batch through the parts of the model.
        ranks: What each rank along the pipeline holds.
        micro_batches: Micro-batches of a step.
    """
    loads = [parts.of(holding) for holding in ranks]
    slowest = max(range(len(loads)), key=lambda rank: loads[rank].total)
    load, holding = loads[slowest], ranks[slowest]
    even = sum(each.total for each in loads) / len(loads) / load.total
    seconds = {
        name: value * even * micro_batches for name, value in load.computing.items()
    }
    seconds["imbalance"] = load.total * micro_batches * (1 - even)
    parameters = held_parameters(profile, shape, holding)
    message = send_message_s(profile, hardware, shape, options)
    data, on_links = (
        data_traffic(
            parameters,
            holding.blocks
            * profile.block.expert_parameters
            / (shape.expert * shape.tensor),
            rank_parameters(profile.block, shape),
            each,
            shape,
            options,
        )
        for each in (hardware, hardware.on_links())
    )
    collectives = {
        "tensor": load.tensor * micro_batches,
        "expert": load.expert * micro_batches,
        "context": load.context * micro_batches,
        "pipeline": 2 * options.stages_per_rank * micro_batches * message,
        "data": data.each_pass * micro_batches + data.each_step,
    }
    hidden = {
        "tensor": collectives["tensor"] * options.overlap_tensor,
        "expert": 0.0,
        "context": collectives["context"] * options.overlap_context,
        "pipeline": collectives["pipeline"] * options.overlap_pipeline,
        "data": _hidden_data(data, load.total, len(ranks), micro_batches, options),
    }
    if not any(each.is_first and each.is_last for each in ranks):
        collectives["data"] += tied_s(profile, hardware, shape, options)
    exposed = {axis: collectives[axis] - hidden[axis] for axis in collectives}
    waiting = sum(exposed[axis] for axis in ("tensor", "expert", "context"))
    seconds["bubble"] = _bubble_s(
        load,
        1 + waiting / (micro_batches * load.total),
        len(ranks),
        micro_batches,
        message,
        options,
    )
    seconds.update(exposed)
    seconds["optimizer"] = _optimizer_s(parameters, hardware, shape, options)
    # A message takes a channel of the device, where a collective takes a dozen or more.
    slowing = sum(hidden.values()) - hidden["pipeline"]
    slowing -= hidden["data"] * (1 - _busy(data, on_links, micro_batches, hardware))
    seconds["contention"] = slowing * hardware.efficiency.contention
    nodes = max(1.0, shape.size / hardware.devices_per_node)
    lost = hardware.efficiency.straggling * math.log2(nodes)
    seconds["straggling"] = sum(seconds.values()) * lost
    return seconds, collectives


def _busy(
    data: DataTraffic, on_links: DataTraffic, micro_batches: int, hardware: Hardware
) -> float:
    """Returns the share of its time for which data parallel's traffic slows a device.

    Waiting for a slow network takes nothing from it: a collective has channels there for
    the bytes that it moves a second.
    """
    whole, least = (
        each.each_pass * micro_batches + each.each_step for each in (data, on_links)
    )
    if not whole:
        return 1.0
    return min(1.0, least / whole / hardware.efficiency.channels)


def _hidden_data(
    data: DataTraffic,
    pass_s: float,
    ranks: int,
    micro_batches: int,
    options: StepOptions,
) -> float:
    """Returns how much of data parallel's traffic hides behind computing."""
    in_passes = min(data.each_pass * options.overlap_data, pass_s) * micro_batches
    # Once a step: behind the last micro-batch. Where a rank holds several stages, those
    # of one are whole while the others still have the last round before them.
    chunks = options.stages_per_rank
    room = pass_s * (1.0 + ranks * (chunks - 1) / chunks)
    at_the_end = min(data.each_step * options.overlap_data, room)
    whole = data.each_pass * micro_batches + data.each_step
    return min(in_passes + at_the_end, max(0.0, whole - data.edge))


def _bubble_s(
    load: Pass,
    slower: float,
    ranks: int,
    micro_batches: int,
    message: float,
    options: StepOptions,
) -> float:
    if ranks == 1:
        return 0.0
    idle = bubble(
        options.schedule,
        ranks,
        options.stages_per_rank,
        micro_batches=micro_batches,
        forward=load.forward * slower,
        backward=load.backward * slower,
        weights=load.weights * slower,
    )
    # Filling and draining wait for a message at each rank, however much hides else.
    return idle + 2 * (ranks - 1) * message


def _optimizer_s(
    parameters: float, hardware: Hardware, shape: MeshShape, options: StepOptions
) -> float:
    """Returns the time of reading and writing all state once."""
    mine = parameters / (shape.shard if options.zero else 1)
    moved = 2 * options.weight_bytes + options.gradient_bytes
    moved += 2 * options.optimizer_bytes
    return mine * moved / (hardware.memory_bandwidth * hardware.efficiency.memory)
