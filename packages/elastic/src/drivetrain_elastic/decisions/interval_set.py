"""Interval set: a set of integers that takes memory for its gaps, not its members."""

from __future__ import annotations

from bisect import bisect_right


class IntervalSet:
    """A set of integers to which numbers are added, mostly one after another.

    Args:
        ranges: Pairs of a first number and one after the last, in order and apart.

    Example:
        >>> numbers = IntervalSet()
        >>> for n in (1, 2, 5, 3):
        ...     numbers.add(n)
        >>> 3 in numbers, 4 in numbers, len(numbers), numbers.ranges
        (True, False, 4, [(1, 4), (5, 6)])
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self._starts = [start for start, _ in ranges or ()]
        self._ends = [end for _, end in ranges or ()]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Pairs of a first number and one after the last, in order."""
        return list(zip(self._starts, self._ends, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self.ranges == other.ranges

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"IntervalSet({self.ranges})"

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def add(self, number: int) -> None:
        """Adds a number; one that is there already changes nothing."""
        at = bisect_right(self._starts, number)
        if at and number < self._ends[at - 1]:
            return
        touches_before = bool(at) and self._ends[at - 1] == number
        touches_after = at < len(self._starts) and self._starts[at] == number + 1
        if touches_before and touches_after:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif touches_before:
            self._ends[at - 1] = number + 1
        elif touches_after:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
