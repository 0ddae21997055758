"""A worker's place in the worlds of its job, and who tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Seat", "SeatSource"]


class Seat(NamedTuple):
    """A worker's place in one world.

    Attributes:
        epoch: Of the world; a higher one replaces a lower one.
        rank: This worker's; -1 if it has none there.
        members: The names of the workers, by rank.
        nodes: Where they run, by rank.
    """

    epoch: int
    rank: int
    members: tuple[str, ...]
    nodes: tuple[str, ...]

    def follows_without(self, before: Seat) -> bool:
        """Whether a member of an earlier world has no place in this one.

        Example:
            >>> one = Seat(1, 0, ("a", "b"), ("n", "n"))
            >>> Seat(2, 0, ("a", "b", "c"), ("n",) * 3).follows_without(one)
            False
            >>> Seat(2, 0, ("a", "c"), ("n",) * 2).follows_without(one)
            True
        """
        return bool(set(before.members) - set(self.members))


class SeatSource(Protocol):
    """Tells a worker of worlds. Its methods may be called from any thread."""

    def latest(self) -> Seat | None:
        """Returns the last world that this worker has heard of."""

    def wait(self, newer_than: int, timeout_s: float) -> Seat | None:
        """Returns a world of a higher epoch as soon as there is one; None if not."""

    def subscribe(self, heard: Callable[[Seat], None]) -> Callable[[], None]:
        """Calls a function, from a thread, for each world; returns what ends that."""

    def is_gone(self, name: str) -> bool:
        """Whether a worker is known to be gone, rather than about to leave."""

    def report_step(self, step: int, seconds: float) -> None:
        """Tells how far this worker is."""

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells that collectives of a world fail, so that another one is needed."""
