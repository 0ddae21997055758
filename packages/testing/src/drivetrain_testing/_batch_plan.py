"""The contract of a batch plan."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from drivetrain_core.services.batch_plan import BatchPlan
from drivetrain_testing._clauses import must_raise, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core.services.batch_plan import RankBatch


def check_batch_plan(factory: Callable[..., BatchPlan] = BatchPlan) -> None:
    """Checks that a batch plan splits any global batch exactly.

    Args:
        factory: Called with `world_size`, `global_batch` and `num_micro_batches`, by
            name.

    Raises:
        AssertionError: A clause of the contract is broken.

    Example:
        >>> check_batch_plan(BatchPlan)
    """
    for world_size, count, extra in itertools.product(
        (1, 2, 3, 7), (1, 2, 4), range(9)
    ):
        rows = world_size * count + extra
        plan = factory(
            world_size=world_size, global_batch=rows, num_micro_batches=count
        )
        parts = [plan.for_rank(rank) for rank in range(world_size)]
        where = f"{rows} rows, {world_size} ranks, {count} micro-batches"
        _check_sizes(parts, rows, count, where)
        _check_weights(parts, rows, where)
    _check_refusals(factory)


def _check_sizes(parts: list[RankBatch], rows: int, count: int, where: str) -> None:
    sizes = [size for part in parts for size in part.sizes]
    require(
        all(len(part.sizes) == count for part in parts),
        f"each rank has the same number of micro-batches ({where})",
    )
    require(min(sizes) >= 1, f"no micro-batch is empty ({where})")
    require(sum(sizes) == rows, f"the sizes add up to the global batch ({where})")
    require(max(sizes) - min(sizes) <= 1, f"sizes differ by one row at most ({where})")
    covered = [
        row for part in parts for row in range(part.start, part.start + sum(part.sizes))
    ]
    require(
        covered == list(range(rows)),
        f"the ranks' rows follow each other and each row is read once ({where})",
    )


def _check_weights(parts: list[RankBatch], rows: int, where: str) -> None:
    # Any loss will do, as long as each row's differs.
    losses = [math.sin(row) for row in range(rows)]
    total = 0.0
    for part in parts:
        begin = part.start
        for size, weight in zip(part.sizes, part.weights, strict=True):
            total += weight * sum(losses[begin : begin + size]) / size
            begin += size
    averaged = total / len(parts)
    require(
        math.isclose(averaged, sum(losses) / rows, rel_tol=1e-9, abs_tol=1e-12),
        "the weighted mean losses, averaged over ranks, are the mean over the global "
        f"batch ({where})",
    )


def _check_refusals(factory: Callable[..., BatchPlan]) -> None:
    with must_raise(
        ValueError, "a batch with fewer rows than micro-batches is refused"
    ):
        factory(world_size=2, global_batch=7, num_micro_batches=4)
    for name in ("world_size", "global_batch", "num_micro_batches"):
        good = {"world_size": 1, "global_batch": 4, "num_micro_batches": 1}
        with must_raise(ValueError, f"{name} below one is refused"):
            factory(**{**good, name: 0})
        with must_raise(TypeError, f"{name} that is no integer is refused"):
            factory(**{**good, name: 1.5})
    plan = factory(world_size=2, global_batch=4, num_micro_batches=1)
    for rank in (-1, 2):
        with must_raise(ValueError, f"rank {rank} of a world of 2 is refused"):
            plan.for_rank(rank)
