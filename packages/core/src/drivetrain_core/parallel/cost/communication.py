"""The collectives and messages of a step, by the axis that they run along."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core.parallel.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    axis_group,
    reduce_scatter_s,
    send_s,
)
from drivetrain_core.parallel.cost.computing import tokens_of

if TYPE_CHECKING:
    from drivetrain_core.parallel.cost.hardware import Hardware
    from drivetrain_core.parallel.cost.model_profile import ModelProfile, Part
    from drivetrain_core.parallel.cost.step_options import StepOptions
    from drivetrain_core.parallel.mesh_shape import MeshShape

__all__ = [
    "DataTraffic",
    "context_s",
    "data_traffic",
    "exchange_s",
    "message_s",
    "tensor_s",
]

_ELEMENT_BYTES = 2


def tensor_s(
    part: Part,
    width: int,
    tokens: float,
    hardware: Hardware,
    shape: MeshShape,
) -> float:
    """Returns the time of one pass's tensor-parallel collectives in a part.

    Each region ends in an all-reduce of the residual stream, or with sequence parallel
    in a reduce-scatter and an all-gather, which take as long.

    Args:
        part: The part.
        width: Elements per token of the residual stream.
        tokens: Tokens of a micro-batch on this rank.
        hardware: Links and network.
        shape: The mesh.
    """
    if shape.tensor == 1 or not part.regions:
        return 0.0
    group = axis_group(shape, hardware.devices_per_node, "tensor")
    num_bytes = tokens * width * _ELEMENT_BYTES
    return part.regions * all_reduce_s(hardware, group, num_bytes)


def exchange_s(
    part: Part, tokens: float, hardware: Hardware, shape: MeshShape
) -> float:
    """Returns the time of one pass's exchanges of tokens between experts."""
    if shape.expert == 1 or not part.exchanges:
        return 0.0
    group = axis_group(shape, hardware.devices_per_node, "expert")
    num_bytes = tokens * part.routed_elements * _ELEMENT_BYTES
    return part.exchanges * all_to_all_s(hardware, group, num_bytes)


def context_s(part: Part, tokens: float, hardware: Hardware, shape: MeshShape) -> float:
    """Returns the time in which ranks that share a sequence pass on keys and values."""
    if shape.context == 1 or not part.key_elements:
        return 0.0
    group = axis_group(shape, hardware.devices_per_node, "context")
    elements = tokens * shape.context * part.key_elements / shape.tensor
    return all_gather_s(hardware, group, elements * _ELEMENT_BYTES)


def message_s(
    profile: ModelProfile,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
) -> float:
    """Returns the time of one message from a stage to the next, the slowest of all."""
    if shape.pipeline == 1:
        return 0.0
    elements = tokens_of(profile.sequence, shape, options) * profile.width
    if options.sequence_parallel:
        elements /= shape.tensor
    # All stages keep the pace of the slowest, and that is one whose message crosses.
    group = axis_group(shape, hardware.devices_per_node, "pipeline")
    return send_s(hardware, elements * _ELEMENT_BYTES, between_nodes=group.nodes > 1)


class DataTraffic(NamedTuple):
    """What data parallel says in a step, in seconds.

    Args:
        each_pass: In every micro-batch.
        each_step: Once.
        edge: Of these, what no computing can hide: the first gather, the last sum.
    """

    each_pass: float
    each_step: float
    edge: float


def data_traffic(
    parameters: float,
    expert_parameters: float,
    edge_parameters: float,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
) -> DataTraffic:
    """Returns the time of gathering weights and summing gradients.

    Args:
        parameters: Parameters of the rank before data parallel divides them.
        expert_parameters: Of these, experts', which ranks along `expert` do not share.
        edge_parameters: Of these, one block's: the unit in which they are gathered.
        hardware: Links and network.
        shape: The mesh.
        options: How the step is run.
    """
    per_node = hardware.devices_per_node
    copies = ["replicate", "context"] + (["shard"] if options.zero == 0 else [])
    divided = shape.shard if options.zero else 1

    def summed_s(number: float, *axes: str) -> float:
        group = axis_group(shape, per_node, *axes)
        return all_reduce_s(hardware, group, number * options.reduce_bytes / divided)

    between = summed_s(parameters - expert_parameters, *copies, "expert")
    between += summed_s(expert_parameters, *copies)
    share = edge_parameters / parameters
    if options.zero == 0:
        return DataTraffic(0.0, between, between * share)
    shards = axis_group(shape, per_node, "shard")
    gather = all_gather_s(hardware, shards, parameters * options.gathered_bytes)
    reduce = reduce_scatter_s(hardware, shards, parameters * options.reduce_bytes)
    edge = (gather + reduce) * share
    if options.zero == 3:
        return DataTraffic(2 * gather + reduce, between, edge)
    if options.zero == 2:
        return DataTraffic(reduce, gather + between, edge)
    return DataTraffic(0.0, gather + reduce + between, edge)
