"""One micro-batch's forward and backward through a part, on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_parallel.cost.accumulation import accumulation_s
from drivetrain_parallel.cost.communication import context_s, exchange_s, tensor_s
from drivetrain_parallel.cost.computing import part_work, tokens_of
from drivetrain_parallel.cost.memory import rank_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.model_profile import ModelProfile, Part
    from drivetrain_parallel.cost.stages import Holding
    from drivetrain_parallel.cost.step_options import StepOptions

# A backward is two forwards; that of fused attention computes the scores anew, which
# makes five products for two.
_BACKWARD = 2.0
_FUSED_ATTENTION_BACKWARD = 2.5
# Selective checkpointing computes attention again, and what lies between products.
_SELECTIVE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Seconds of a forward and a backward.

    Args:
        computing: What computes, by what limits it.
        forward: Of the sum of these, the forward.
        backward: The backward for inputs, with what is computed again.
        weights: The backward for weights, with the sum over micro-batches.
        tensor: Tensor-parallel collectives.
        expert: Exchanges between experts.
        context: Exchanges of keys and values.
    """

    computing: Mapping[str, float]
    forward: float
    backward: float
    weights: float
    tensor: float
    expert: float
    context: float

    @property
    def total(self) -> float:
        """Returns the seconds of computing."""
        return sum(self.computing.values())

    def times(self, number: float) -> Pass:
        """Returns that of several equal parts."""
        return Pass(
            computing={k: v * number for k, v in self.computing.items()},
            forward=self.forward * number,
            backward=self.backward * number,
            weights=self.weights * number,
            tensor=self.tensor * number,
            expert=self.expert * number,
            context=self.context * number,
        )

    def plus(self, other: Pass) -> Pass:
        """Returns that of both, one after the other."""
        return Pass(
            computing={k: v + other.computing[k] for k, v in self.computing.items()},
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            weights=self.weights + other.weights,
            tensor=self.tensor + other.tensor,
            expert=self.expert + other.expert,
            context=self.context + other.context,
        )


class Passes(NamedTuple):
    """One micro-batch through each part of a model.

    Args:
        prologue: What runs before the first block.
        block: One block.
        epilogue: What runs after the last.
    """

    prologue: Pass
    block: Pass
    epilogue: Pass

    def of(self, holding: Holding) -> Pass:
        """Returns that of a rank of the pipeline."""
        found = self.block.times(holding.blocks)
        if holding.is_first:
            found = found.plus(self.prologue)
        return found.plus(self.epilogue) if holding.is_last else found


def passes_of(
    profile: ModelProfile,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
    micro_batches: int,
) -> Passes:
    """Returns what a micro-batch takes in each part; only blocks are checkpointed."""
    tokens = tokens_of(profile.sequence, shape, options)
    return Passes(
        *(
            part_pass(
                part,
                profile.width,
                # Ranks that share a sequence have all of it outside of the blocks.
                tokens * (1 if part is profile.block else shape.context),
                hardware,
                shape,
                options,
                micro_batches,
                checkpointed=part is profile.block,
            )
            for part in (profile.prologue, profile.block, profile.epilogue)
        )
    )


def part_pass(
    part: Part,
    width: int,
    tokens: float,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
    micro_batches: int,
    *,
    checkpointed: bool = True,
) -> Pass:
    """Returns what a micro-batch takes in a part.

    Args:
        part: A block, or an end of the model.
        width: Elements per token of the residual stream.
        tokens: Tokens of a micro-batch on this rank.
        hardware: The cluster.
        shape: The mesh.
        options: How the step is run.
        micro_batches: Micro-batches of a step.
        checkpointed: Whether the options' checkpointing applies to this part.
    """
    work = part_work(part, tokens, hardware, shape, options)
    again = options.checkpointing if checkpointed else "none"
    forwards = 1.0 + (again == "full")
    between = forwards + _BACKWARD + _SELECTIVE * (again == "selective")
    scores = _FUSED_ATTENTION_BACKWARD if options.fused_attention else _BACKWARD
    matmul = (forwards + _BACKWARD) * work.matmul
    traffic, launch = between * work.traffic, between * work.launch
    attention = (forwards + scores + (again == "selective")) * work.attention
    accumulation = accumulation_s(
        rank_parameters(part, shape), micro_batches, hardware, shape, options
    )
    device = matmul + traffic + attention + accumulation
    computing = {
        "matmul": matmul,
        "attention": attention,
        "traffic": traffic,
        "accumulation": accumulation,
        "launch": max(0.0, launch - device),
    }
    total = max(device, launch)
    forward = max(work.matmul + work.attention + work.traffic, work.launch)
    weights = min(work.matmul + accumulation, total - forward)
    return Pass(
        computing=computing,
        forward=forward,
        backward=total - forward - weights,
        weights=weights,
        tensor=(forwards + 1) * tensor_s(part, width, tokens, hardware, shape),
        expert=(forwards + 1) * exchange_s(part, tokens, hardware, shape),
        # Forward passes keys and values on, the backward them and their gradients.
        context=(forwards + 2) * context_s(part, tokens, hardware, shape),
    )
