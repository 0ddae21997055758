"""The traffic of summing gradients over the micro-batches of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.step_options import StepOptions


def accumulation_s(
    parameters: float,
    micro_batches: int,
    hardware: Hardware,
    shape: MeshShape,
    options: StepOptions,
) -> float:
    """Returns the time that a micro-batch's gradients take to join the sum, in the mean.

    The sum is read and written, by all micro-batches but the first. It takes as long
    however few samples a micro-batch has, so small ones pay for it. The write of the
    gradient itself is counted with the product that makes it.

    Args:
        parameters: Parameters of the rank before data parallel divides them.
        micro_batches: Micro-batches of a step.
        hardware: The device.
        shape: The mesh; from ZeRO-2 on, each rank along `shard` keeps its part.
        options: How the step is run.

    Example:
        >>> from drivetrain_core import MeshShape
        >>> from drivetrain_parallel.cost import (
        ...     Efficiency, Hardware, Path, StepOptions)
        >>> node = Hardware(name="one", devices_per_node=8, memory_bytes=80 * 10**9,
        ...     peak_flops={}, memory_bandwidth=2e12, link=Path(bytes_per_s=3e11),
        ...     efficiency=Efficiency(memory=1.0))
        >>> options = StepOptions(global_batch=8, zero=1, gradient_bytes=4)
        >>> accumulation_s(1e9, 2, node, MeshShape(), options)
        0.002
        >>> accumulation_s(1e9, 1, node, MeshShape(), options)
        0.0
    """
    kept = parameters / (shape.shard if options.zero >= 2 else 1)
    moved = 2 * options.gradient_bytes * kept * (micro_batches - 1) / micro_batches
    return moved / (hardware.memory_bandwidth * hardware.efficiency.memory)
