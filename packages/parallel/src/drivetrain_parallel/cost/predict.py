"""The time and memory of one training step on a mesh, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core import Code, PlanError
from drivetrain_parallel.axis_rules import heads_of_rank, require_provable
from drivetrain_parallel.cost.memory import predict_memory
from drivetrain_parallel.cost.passes import passes_of
from drivetrain_parallel.cost.schedules import check_schedule
from drivetrain_parallel.cost.stages import holdings
from drivetrain_parallel.cost.step_terms import TERMS, step_terms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.model_profile import ModelProfile
    from drivetrain_parallel.cost.step_options import StepOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a step is expected to take.

    Args:
        step_s: Seconds of a step.
        tokens_per_s_per_device: Throughput.
        mfu: Model FLOPs over the peak: recomputation is not counted.
        hfu: The same with it.
        bubble: Share of the step for which a rank waits for the pipeline.
        seconds: The terms that add up to the step: `matmul`, `attention`, `traffic`,
            `accumulation`, `launch`, `bubble`, `imbalance`, one for each axis that is
            exposed, `optimizer`, `contention` and `straggling`.
        collectives: Seconds of collectives by axis, hidden ones included.
        memory: Bytes of the rank that needs the most, by what holds them.
        blocks: Blocks of each rank along the pipeline.
        because: What the step goes to, in words.
    """

    step_s: float
    tokens_per_s_per_device: float
    mfu: float
    hfu: float
    bubble: float
    seconds: Mapping[str, float]
    collectives: Mapping[str, float]
    memory: Mapping[str, float]
    blocks: tuple[int, ...]
    because: str

    @property
    def memory_bytes(self) -> float:
        """Returns the bytes of the rank that needs the most."""
        return sum(self.memory.values())


def micro_batches_of(shape: MeshShape, options: StepOptions) -> int:
    """Returns the micro-batches of a step.

    Raises:
        PlanError: The global batch does not divide.
    """
    samples = shape.data_size * options.micro_batch
    number, rest = divmod(options.global_batch, samples)
    if rest or not number:
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "micro_batch",
            because=f"a global batch of {options.global_batch} does not divide into "
            f"{shape.data_size} parts of micro-batches of {options.micro_batch}",
            fix=f"use a multiple of {samples}, or another mesh or micro-batch",
            evidence={"multiple": str(samples)},
        )
    return number


def check_mesh(profile: ModelProfile, shape: MeshShape, options: StepOptions) -> None:
    """Raises unless a model can be divided as a mesh asks.

    Raises:
        PlanError: Heads, experts, sequence or vocabulary do not divide, or axes are not
            proven together.
    """
    require_provable(shape)
    for number in profile.heads:
        if number % shape.tensor:
            raise PlanError(
                Code.NOT_DIVISIBLE,
                "tensor",
                because=f"{number} heads do not divide by {shape.tensor}",
                fix=f"use a divisor of {math.gcd(*profile.heads)}",
            )
    if shape.expert > 1 and (
        not profile.num_experts or profile.num_experts % shape.expert
    ):
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "expert",
            because=f"{profile.num_experts} experts do not divide by {shape.expert}",
            fix=f"use a divisor of {profile.num_experts}"
            if profile.num_experts
            else "use expert=1: the model has no experts",
        )
    parts = shape.context * (shape.tensor if options.sequence_parallel else 1)
    if profile.sequence % parts:
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "context",
            because=f"a sequence of {profile.sequence} does not divide by {parts}",
            fix="use another context, or sequence_parallel=False",
        )
    # Keys and values may have fewer, which attention repeats.
    heads_of_rank(max(profile.heads, default=0) // shape.tensor, shape.context)


def predict(
    profile: ModelProfile, hardware: Hardware, shape: MeshShape, options: StepOptions
) -> Prediction:
    """Returns the time and memory of a step.

    Args:
        profile: The model.
        hardware: The cluster.
        shape: The mesh.
        options: How the step is run.

    Raises:
        PlanError: The model or the batch does not divide, or the schedule cannot run.
        ClusterSpecError: The hardware lacks what the mesh needs.

    Example:
        >>> from drivetrain_parallel.cost import (
        ...     Hardware, Path, StepOptions, profile_transformer)
        >>> from drivetrain_core import MeshShape
        >>> model = profile_transformer(layers=4, hidden=256, heads=4, vocab=512,
        ...     seq=128)
        >>> node = Hardware(name="A100", devices_per_node=8, memory_bytes=80 * 10**9,
        ...     peak_flops={"bfloat16": 312e12}, memory_bandwidth=2e12,
        ...     link=Path(bytes_per_s=300e9))
        >>> found = predict(model, node, MeshShape(pipeline=2, shard=4),
        ...     StepOptions(global_batch=64, micro_batch=2))
        >>> found.blocks, round(found.bubble, 2)
        ((2, 2), 0.11)
    """
    check_mesh(profile, shape, options)
    micro_batches = micro_batches_of(shape, options)
    stages, chunks = shape.pipeline, options.stages_per_rank
    if stages > 1:
        check_schedule(options.schedule, stages, chunks, micro_batches)
    parts = passes_of(profile, hardware, shape, options, micro_batches)
    ranks = holdings(
        options.schedule if stages > 1 else "1f1b",
        profile.num_blocks,
        stages,
        chunks if stages > 1 else 1,
        before=parts.prologue.total / parts.block.total,
        after=parts.epilogue.total / parts.block.total,
        even=options.even_stages,
    )
    seconds, collectives = step_terms(
        profile, hardware, shape, options, parts, ranks, micro_batches
    )
    step_s = sum(seconds.values())
    tokens_per_s = options.global_batch * profile.sequence / step_s / shape.size
    mfu = profile.flops_per_token * tokens_per_s / hardware.peak(options.dtype)
    return Prediction(
        step_s=step_s,
        tokens_per_s_per_device=tokens_per_s,
        mfu=mfu,
        hfu=mfu * _recomputed(profile, options),
        bubble=seconds["bubble"] / step_s,
        seconds=seconds,
        collectives=collectives,
        memory=predict_memory(profile, shape, options, ranks, micro_batches),
        blocks=tuple(holding.blocks for holding in ranks),
        because=_because(seconds, step_s),
    )


def _recomputed(profile: ModelProfile, options: StepOptions) -> float:
    """Returns all operations over those that count."""
    block, counted = profile.block, profile.flops_per_token
    again = 0.0
    if options.checkpointing == "full":
        again = block.flops
    elif options.checkpointing == "selective":
        again = block.attention_flops
    return 1 + profile.num_blocks * again / counted


def _because(seconds: Mapping[str, float], step_s: float) -> str:
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(
        f"{value / step_s:.0%} {TERMS[name]}" for name, value in largest if value
    )
