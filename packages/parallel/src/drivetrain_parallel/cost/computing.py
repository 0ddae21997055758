"""The time that a part of a model computes on one rank, collectives left out.

A product takes its arithmetic at the rate that large products reach, and the traffic of
its operands on top: so a narrow one, as tensor parallel makes it, is slower by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.model_profile import Matmul, Part
    from drivetrain_parallel.cost.step_options import StepOptions

_ELEMENT_BYTES = 2
# How often unfused attention passes over its scores in a forward: the product writes
# them, scaling, mask and softmax read and write, dropout again, the next product reads.
_SCORE_PASSES = 6
_FUSED_KERNELS = 0.5


class Work(NamedTuple):
    """Seconds of one forward on one rank, by what limits them.

    Args:
        matmul: Products with weights.
        attention: Attention's own products, and its scores where it writes them.
        traffic: All that only moves data.
        launch: The processor's time for the kernels, which the device's hides.
    """

    matmul: float
    attention: float
    traffic: float
    launch: float


def tokens_of(sequence: int, shape: MeshShape, options: StepOptions) -> float:
    """Returns the tokens of a micro-batch on one rank."""
    return options.micro_batch * sequence / shape.context


def part_work(
    part: Part,
    tokens: float,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
) -> Work:
    """Returns the seconds of one forward through a part.

    Args:
        part: A block, or an end of the model.
        tokens: Tokens of a micro-batch on this rank.
        hardware: The device.
        shape: The mesh.
        options: How the step is run.
    """
    efficiency = hardware.efficiency
    rate = hardware.peak(options.dtype)
    moved_s = 1 / (hardware.memory_bandwidth * efficiency.memory)
    matmul = sum(
        _matmul_s(each, tokens, shape, rate * efficiency.matmul, moved_s)
        for each in part.matmuls
    )
    if options.fused_attention:
        attention = part.attention_work * tokens / (rate * efficiency.attention)
    else:
        scores = part.score_elements * _SCORE_PASSES * _ELEMENT_BYTES * moved_s
        flops_s = part.attention_flops / (rate * efficiency.matmul)
        attention = tokens * (scores + flops_s)
    outer, inner, passes = part.outer_elements, part.inner_elements, 1.0
    if not options.fused_kernels:
        outer += part.unfused_outer
        inner += part.unfused_inner
        passes = efficiency.eager
    if options.sequence_parallel:
        outer /= shape.tensor
    elements = outer + inner / shape.tensor
    launches = part.kernels * (_FUSED_KERNELS if options.fused_kernels else 1.0)
    return Work(
        matmul=matmul,
        attention=attention / shape.tensor,
        traffic=elements * tokens * _ELEMENT_BYTES * passes * moved_s,
        launch=launches * efficiency.launch_s,
    )


def _matmul_s(
    matmul: Matmul, tokens: float, shape: MeshShape, rate: float, moved_s: float
) -> float:
    count = float(matmul.count)
    inputs, outputs = float(matmul.inputs), float(matmul.outputs)
    if matmul.split == "inputs":
        inputs = inputs / shape.tensor
    elif matmul.split == "outputs":
        outputs = outputs / shape.tensor
    rows = tokens * matmul.tokens
    if matmul.tokens != 1:
        # Each rank along `expert` has fewer experts, and the tokens of all ranks.
        count, rows = count / shape.expert, rows * shape.expert
    arithmetic = 2 * rows * inputs * outputs / rate
    operands = rows * inputs + inputs * outputs + rows * outputs
    return count * (arithmetic + operands * _ELEMENT_BYTES * moved_s)
