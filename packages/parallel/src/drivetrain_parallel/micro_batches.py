"""How many micro-batches a rank's batch is cut into."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Choice


def micro_batches_of(
    choices: Sequence[Choice], stages: int, batch: int, data_size: int
) -> int:
    """Returns how many micro-batches a rank's batch is cut into.

    What `micro_batch` says; without it, for a pipeline the number next to twice the
    stages that cuts the batch evenly and fills every stage.

    Args:
        choices: Those of a plan.
        stages: Ranks of a pipeline.
        batch: Samples of a global batch.
        data_size: Parts that a global batch is split into over the ranks.

    Example:
        >>> micro_batches_of([], 2, 32, 2)
        4
        >>> micro_batches_of([], 1, 32, 2)
        1
    """
    for choice in choices:
        if choice.name == "micro_batch":
            num = choice.config["num"]
            assert isinstance(num, int)
            return num
    if stages == 1:
        return 1
    local = max(1, batch // data_size)
    even = [n for n in range(stages, local + 1) if local % n == 0]
    return min(even, key=lambda n: abs(n - 2 * stages), default=local)
