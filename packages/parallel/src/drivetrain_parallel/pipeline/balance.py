"""Splits a row of blocks into stages whose slowest is as fast as possible."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core import Code, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineCosts:
    """What each part of a model costs, all in one unit, such as seconds.

    Args:
        prologue: What runs before the blocks, on the first stage.
        blocks: Each block.
        epilogue: What runs after them, the loss included, on the last stage.

    Raises:
        PlanError: A cost is negative, or there is no block.
    """

    prologue: float
    blocks: tuple[float, ...]
    epilogue: float

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if not self.blocks or min(self.prologue, self.epilogue, *self.blocks) < 0:
            raise PlanError(
                Code.CONFIG,
                "pipeline",
                because=f"costs must be at least zero, and there must be blocks: {self}",
            )


def balance(
    costs: PipelineCosts, num_stages: int, *, cuts: Sequence[int] | None = None
) -> tuple[tuple[int, int], ...]:
    """Returns the blocks of each stage such that the most expensive is the cheapest.

    Of several such splits it returns the one whose squared costs add up to the least,
    and of those the one with the shorter stages at the end, where the loss is.

    Args:
        costs: What each part costs.
        num_stages: How many stages, each with a block of its own at least.
        cuts: The blocks before which a stage may begin; all when None.

    Returns:
        The first block of each stage and the one after its last.

    Raises:
        PlanError: There are too few blocks, or too few places to cut.

    Example:
        >>> even = PipelineCosts(prologue=0.0, blocks=(1.0,) * 5, epilogue=0.0)
        >>> balance(even, 2)
        ((0, 3), (3, 5))
        >>> balance(PipelineCosts(prologue=0.0, blocks=(1.0,) * 8, epilogue=2.0), 2)
        ((0, 5), (5, 8))
    """
    num_blocks = len(costs.blocks)
    allowed = (
        sorted({c for c in cuts if 0 < c < num_blocks})
        if cuts is not None
        else (list(range(1, num_blocks)))
    )
    if not 1 <= num_stages <= len(allowed) + 1:
        where = (
            ""
            if len(allowed) == num_blocks - 1
            else (f", which can be cut before {allowed}")
        )
        raise PlanError(
            Code.NOT_DIVISIBLE,
            "pipeline",
            because=f"{num_stages} stages cannot be made of {num_blocks} blocks{where}",
            fix=f"use at most {len(allowed) + 1} stages",
        )
    sums = [0.0, *itertools.accumulate(costs.blocks)]
    edges = [0, *allowed, num_blocks]

    def cost(begin: int, end: int) -> float:
        extra = costs.prologue if begin == 0 else 0.0
        return (
            sums[end]
            - sums[begin]
            + extra
            + (costs.epilogue if end == num_blocks else 0.0)
        )

    # Best way to make `stages` stages out of the blocks before an edge.
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for stage in range(1, num_stages + 1):
        following: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for place in range(stage, len(edges)):
            options = []
            for earlier, (slowest, squares, begins) in best.items():
                if earlier < place:
                    own = cost(edges[earlier], edges[place])
                    options.append(
                        (
                            max(slowest, own),
                            squares + own * own,
                            (*begins, -edges[earlier]),
                        )
                    )
            if options:
                following[place] = min(options)
        best = following
    starts = [-begin for begin in best[len(edges) - 1][2]]
    return tuple(zip(starts, [*starts[1:], num_blocks], strict=True))


def stage_costs(
    costs: PipelineCosts, ranges: Sequence[tuple[int, int]]
) -> tuple[float, ...]:
    """Returns what each stage costs.

    Example:
        >>> costs = PipelineCosts(prologue=1.0, blocks=(2.0, 2.0), epilogue=0.5)
        >>> stage_costs(costs, ((0, 1), (1, 2)))
        (3.0, 2.5)
    """
    found = [sum(costs.blocks[begin:end]) for begin, end in ranges]
    found[0] += costs.prologue
    found[-1] += costs.epilogue
    return tuple(found)
