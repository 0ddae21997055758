"""How blocks spread over the stages of a pipeline, so that the slowest is fastest."""

from __future__ import annotations

from typing import NamedTuple

from drivetrain_core import Code, PlanError
from drivetrain_parallel.cost.schedules import owner


class Holding(NamedTuple):
    """What one rank of a pipeline holds of the model.

    Args:
        blocks: How many blocks.
        is_first: Whether it holds the prologue.
        is_last: Whether it holds the epilogue.
    """

    blocks: int
    is_first: bool
    is_last: bool


def holdings(
    schedule: str,
    num_blocks: int,
    ranks: int,
    chunks: int,
    *,
    before: float = 0.0,
    after: float = 0.0,
    even: bool = False,
) -> tuple[Holding, ...]:
    """Returns what each rank of a pipeline holds.

    Args:
        schedule: One of `schedules.SCHEDULES`.
        num_blocks: Blocks of the model.
        ranks: Ranks along the pipeline.
        chunks: Stages that each of them holds.
        before: What the prologue costs, in blocks.
        after: What the epilogue costs, in blocks.
        even: Whether all stages get as many blocks.

    Raises:
        PlanError: There are fewer blocks than stages, or they do not divide evenly.

    Example:
        >>> holdings("zbv_zero_bubble", 8, 2, 2)
        (Holding(blocks=4, is_first=True, is_last=True), \
Holding(blocks=4, is_first=False, is_last=False))
    """
    stages = ranks * chunks
    counts = blocks_of_stages(num_blocks, stages, before=before, after=after, even=even)
    blocks = [0] * ranks
    for stage, count in enumerate(counts):
        blocks[owner(schedule, stage, ranks)] += count
    last = owner(schedule, stages - 1, ranks)
    return tuple(
        Holding(number, rank == 0, rank == last) for rank, number in enumerate(blocks)
    )


def blocks_of_stages(
    num_blocks: int,
    num_stages: int,
    *,
    before: float = 0.0,
    after: float = 0.0,
    even: bool = False,
) -> tuple[int, ...]:
    """Returns how many blocks each stage of a pipeline holds.

    Args:
        num_blocks: Blocks of the model.
        num_stages: Stages of the whole pipeline.
        before: What the prologue costs, in blocks.
        after: What the epilogue costs, in blocks.
        even: Whether all stages get as many.

    Raises:
        PlanError: There are fewer blocks than stages, or they do not divide evenly.

    Example:
        >>> blocks_of_stages(10, 4, after=2.0)
        (3, 3, 3, 1)
        >>> blocks_of_stages(8, 4, even=True)
        (2, 2, 2, 2)
    """
    if num_blocks < num_stages:
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "pipeline",
            because=f"{num_blocks} blocks do not fill {num_stages} stages",
            fix=f"use at most {num_blocks} stages",
        )
    if even:
        if num_blocks % num_stages:
            raise PlanError(
                Code.NOT_DIVISIBLE,
                "pipeline",
                because=f"{num_blocks} blocks do not divide over {num_stages} stages",
                fix=f"use a divisor of {num_blocks}, or stages of equal work",
            )
        return (num_blocks // num_stages,) * num_stages
    counts = [1] * num_stages
    loads = [1.0] * num_stages
    loads[0] += before
    loads[-1] += after
    # Blocks are equal: giving each to the lightest stage leaves the slowest fastest.
    for _ in range(num_blocks - num_stages):
        lightest = loads.index(min(loads))
        counts[lightest] += 1
        loads[lightest] += 1.0
    return tuple(counts)
