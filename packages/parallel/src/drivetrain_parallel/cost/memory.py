"""The memory of one rank: exact for what stays between steps, estimated for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_parallel.cost.computing import tokens_of
from drivetrain_parallel.cost.schedules import held_micro_batches

if TYPE_CHECKING:
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.model_profile import ModelProfile, Part
    from drivetrain_parallel.cost.stages import Holding
    from drivetrain_parallel.cost.step_options import StepOptions

_ELEMENT_BYTES = 2
# Workspaces of libraries. The driver's own memory is no part of what torch reserves.
_FIXED_BYTES = 256 << 20


def rank_parameters(part: Part, shape: MeshShape) -> float:
    """Returns the parameters of a part that one rank has before data parallel.

    Tensor parallel divides what it splits, and expert parallel the experts.
    """
    experts = part.expert_parameters
    split = part.split_parameters - experts
    whole = part.parameters - part.split_parameters
    return whole + (split + experts / shape.expert) / shape.tensor


def held_parameters(profile: ModelProfile, shape: MeshShape, holding: Holding) -> float:
    """Returns the parameters of a rank before data parallel, tied ones once.

    Example:
        >>> from drivetrain_core import MeshShape
        >>> from drivetrain_parallel.cost import profile_transformer
        >>> from drivetrain_parallel.cost.stages import Holding
        >>> model = profile_transformer(layers=4, hidden=256, heads=4, vocab=512, seq=8)
        >>> whole = held_parameters(model, MeshShape(), Holding(4, True, True))
        >>> whole == model.num_parameters
        True
    """
    found = holding.blocks * rank_parameters(profile.block, shape)
    if holding.is_first:
        found += rank_parameters(profile.prologue, shape)
    if holding.is_last:
        found += rank_parameters(profile.epilogue, shape)
    if holding.is_first and holding.is_last:
        found -= profile.tied_parameters / shape.tensor
    return found


def predict_memory(
    profile: ModelProfile,
    shape: MeshShape,
    options: StepOptions,
    ranks: tuple[Holding, ...],
    micro_batches: int,
) -> dict[str, float]:
    """Returns the bytes of the rank that needs the most, by what holds them.

    Args:
        profile: The model.
        shape: The mesh.
        options: How the step is run.
        ranks: What each rank along the pipeline holds.
        micro_batches: Micro-batches of a step.
    """
    found = [
        _rank_memory(profile, shape, options, ranks, rank, micro_batches)
        for rank in sorted({0, min(1, len(ranks) - 1), len(ranks) - 1})
    ]
    return max(found, key=lambda parts: sum(parts.values()))


def _rank_memory(
    profile: ModelProfile,
    shape: MeshShape,
    options: StepOptions,
    ranks: tuple[Holding, ...],
    rank: int,
    micro_batches: int,
) -> dict[str, float]:
    holding = ranks[rank]
    block = rank_parameters(profile.block, shape)
    whole = held_parameters(profile, shape, holding)
    ends = whole - holding.blocks * block
    shard = shape.shard if options.zero else 1
    weights = whole * options.weight_bytes
    gradients = whole * options.gradient_bytes
    if options.zero == 3:
        weights /= shard
        # The block in use, the one that is fetched meanwhile, and the root's own.
        gathered = min(whole, 2 * block + ends) if shard > 1 else 0.0
        weights += gathered * options.gathered_bytes
    elif options.zero == 2:
        weights = weights / shard + whole * options.gathered_bytes
    if options.zero >= 2:
        gradients = gradients / shard
        if shard > 1:
            gradients += min(whole, block) * options.reduce_bytes
    tokens = tokens_of(profile.sequence, shape, options)
    held = held_micro_batches(
        options.schedule, len(ranks), options.stages_per_rank, micro_batches, rank
    )
    outside = shape.tensor if options.sequence_parallel else 1
    kept = _saved(profile.block, shape, outside, options)
    working = 0.0
    if options.checkpointing == "full":
        working, kept = kept, profile.width / outside
    elements = held * holding.blocks * kept + working
    logits = 0.0
    if holding.is_last:
        # Ranks that share a sequence join it after the last block.
        elements += profile.epilogue.outer_saved * shape.context / outside
        logits = profile.epilogue.inner_saved * shape.context / shape.tensor
    return {
        "parameters": weights,
        "gradients": gradients,
        "optimizer": whole * options.optimizer_bytes / shard,
        "activations": elements * tokens * _ELEMENT_BYTES,
        "logits": logits * tokens * options.logit_bytes,
        "buffers": float(_FIXED_BYTES),
    }


def _saved(part: Part, shape: MeshShape, outside: int, options: StepOptions) -> float:
    """Returns the elements per token that a block keeps until its backward."""
    inner = part.inner_saved
    if options.checkpointing == "selective":
        inner /= 2
    elif not options.fused_attention:
        # The scores after softmax and after dropout, and the mask of a byte.
        inner += 2.5 * part.score_elements
    return part.outer_saved / outside + inner / shape.tensor
