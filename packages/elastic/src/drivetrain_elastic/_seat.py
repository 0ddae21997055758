"""A worker's place in the worlds of its job, and who tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_elastic._flight_record import FlightRecord
    from drivetrain_elastic._step_meter import Times

__all__ = ["SaveOrder", "Seat", "SeatSource"]


class Seat(NamedTuple):
    """A worker's place in one world.

    Attributes:
        epoch: Of the world; a higher one replaces a lower one.
        rank: This worker's; -1 if it has none there.
        members: The names of the workers, by rank.
        nodes: Where they run, by rank.
        broken_epoch: The last world in which somebody was lost: whoever is still in it
            waits in vain.
        unit: How many ranks, one after the other, hold a copy of the model together.

    Example:
        >>> seat = Seat(3, 2, ("a", "b", "c", "d"), ("n", "n", "m", "m"), unit=2)
        >>> seat.num_copies, seat.copy, seat.part, seat.peers
        (2, 1, 0, (0, 2))
    """

    epoch: int
    rank: int
    members: tuple[str, ...]
    nodes: tuple[str, ...]
    broken_epoch: int = 0
    unit: int = 1

    @property
    def num_copies(self) -> int:
        """How many copies of the model there are."""
        return len(self.members) // self.unit

    @property
    def copy(self) -> int:
        """Which copy this worker has a part of."""
        return self.rank // self.unit

    @property
    def part(self) -> int:
        """Which part of its copy this worker has."""
        return self.rank % self.unit

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks that have the same part, by copy."""
        return tuple(range(self.part, len(self.members), self.unit))


class SaveOrder(NamedTuple):
    """A checkpoint that somebody asks for.

    Attributes:
        request: Which one, at random.
        end_s: When it must be durable, as `time.monotonic()` counts.
        reason: Why, for people.
    """

    request: str
    end_s: float
    reason: str


class SeatSource(Protocol):
    """Tells a worker of worlds. Its methods may be called from any thread."""

    def latest(self) -> Seat | None:
        """Returns the last world that this worker has heard of."""

    def wait(self, newer_than: int, timeout_s: float) -> Seat | None:
        """Returns a world of a higher epoch as soon as there is one.

        None if the time is up, or if this worker is to leave.
        """

    def subscribe(self, heard: Callable[[Seat], None]) -> Callable[[], None]:
        """Calls a function, from a thread, for each world; returns what ends that."""

    def is_leaving(self) -> bool:
        """Whether this worker is to end when the world no longer has it."""

    def end_s(self) -> float:
        """When this worker may be gone, as `time.monotonic()` counts."""

    def save_order(self) -> SaveOrder | None:
        """Returns the checkpoint that is wanted from the ranks now; None for none."""

    def report_saved(
        self, order: SaveOrder, step: int, seconds: float, failure: str
    ) -> None:
        """Tells that a checkpoint is durable, or why it is not."""

    def report_ready(self) -> None:
        """Tells that this worker can take a place."""

    def report_phase(self, phase: str) -> None:
        """Tells what this worker does from now on."""

    def report_step(self, step: int, seconds: float) -> None:
        """Tells how far this worker is."""

    def report_times(self, times: Times) -> None:
        """Tells where the time of this worker has gone."""

    def flight_record(self) -> FlightRecord | None:
        """Returns where this worker is to note what it does; None for nowhere."""

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells that collectives of a world fail, so that another one is needed."""

    def report_end(self, *, is_finished: bool) -> None:
        """Tells that this worker has made all steps, or has left before."""
