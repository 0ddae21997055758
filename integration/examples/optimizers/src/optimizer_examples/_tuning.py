"""The search for a learning rate: the same grid and the same rule for everyone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def climb(
    score: Callable[[int], Any], start: int, *, reach: int = 1
) -> tuple[int, list[int]]:
    """Returns the point of a grid whose neighbours on both sides are no better.

    It begins around `start` and goes on around the best point so far. With one
    minimum, where it begins costs time and does not change the answer.

    Args:
        score: What is to be small, at an integer point of the grid.
        start: The point to begin at.
        reach: Neighbours on each side.

    Returns:
        The best point, and all that were tried.

    Example:
        >>> climb(lambda k: (k - 5) ** 2, 2)
        (5, [1, 2, 3, 4, 5, 6])
    """
    scores: dict[int, Any] = {}
    best = start
    while missing := set(range(best - reach, best + reach + 1)) - scores.keys():
        scores |= {k: score(k) for k in sorted(missing)}
        best = min(sorted(scores), key=scores.__getitem__)
    return best, sorted(scores)
