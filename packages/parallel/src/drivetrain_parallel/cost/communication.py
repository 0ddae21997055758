"""The collectives and messages of a step, by the axis that they run along."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_parallel.cost.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    axis_group,
    reduce_scatter_s,
    send_s,
)
from drivetrain_parallel.cost.computing import tokens_of

if TYPE_CHECKING:
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.model_profile import ModelProfile, Part
    from drivetrain_parallel.cost.step_options import StepOptions

_ELEMENT_BYTES = 2


def tensor_s(
    part: Part, width: int, tokens: float, hardware: Hardware, shape: MeshShape
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
    profile: ModelProfile, hardware: Hardware, shape: MeshShape, options: StepOptions
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


def tied_s(
    profile: ModelProfile, hardware: Hardware, shape: MeshShape, options: StepOptions
) -> float:
    """Returns the time in which the ends of a pipeline sum the gradients that they share.

    Once a step, where the head is the embedding (Megatron-LM's
    `_allreduce_word_embedding_grads`, DeepSpeed's `ReduceTiedGrads`).
    """
    if shape.pipeline == 1:
        return 0.0
    spanned = axis_group(shape, hardware.devices_per_node, "pipeline").nodes > 1
    num_bytes = profile.tied_parameters / shape.tensor * options.reduce_bytes
    ends = Group(2, 1 if spanned else 2)
    return all_reduce_s(hardware, ends, num_bytes) if num_bytes else 0.0


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

    Ranks along `shard` are left with a part of the sum each where they divide gradients
    or optimizer state. Where every micro-batch is summed, that takes ZeRO-2: before it,
    each rank keeps the whole sum for the next micro-batch.

    Args:
        parameters: Parameters of the rank before data parallel divides them.
        expert_parameters: Of these, experts', which ranks along `expert` do not share.
        edge_parameters: Of these, one block's: the unit in which they are gathered.
        hardware: Links and network.
        shape: The mesh.
        options: How the step is run.
    """
    per_node, share = hardware.devices_per_node, options.reduce_rate_share
    always = options.reduce_each_micro_batch
    leaves_parts = options.zero >= (2 if always else 1)
    copies = ["replicate", "context"] + ([] if leaves_parts else ["shard"])
    divided = shape.shard if leaves_parts else 1

    def summed_s(number: float, *axes: str) -> float:
        group = axis_group(shape, per_node, *axes)
        num_bytes = number * options.reduce_bytes / divided
        return all_reduce_s(hardware, group, num_bytes) / share

    between = summed_s(parameters - expert_parameters, *copies, "expert")
    between += summed_s(expert_parameters, *copies)
    shards = axis_group(shape, per_node, "shard")
    gather = reduce = 0.0
    if options.zero:
        gather = all_gather_s(hardware, shards, parameters * options.gathered_bytes)
    if leaves_parts:
        num_bytes = parameters * options.reduce_bytes
        reduce = reduce_scatter_s(hardware, shards, num_bytes) / share
    each_pass = between if always else 0.0
    if options.zero >= 2:
        each_pass += reduce
    if options.zero == 3:
        each_pass += 2 * gather
    each_step = 0.0 if always else between
    if options.zero == 1:
        each_step += reduce
    if options.zero in (1, 2):
        each_step += gather
    last = reduce if leaves_parts else between
    edge = (gather + last) * edge_parameters / parameters
    return DataTraffic(each_pass, each_step, edge)
