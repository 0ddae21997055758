"""Rank assignment of a worker, and the source that a worker gets its assignments from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_elastic._observability._flight_record import FlightRecord
    from drivetrain_elastic._observability._step_meter import Times


class RankAssignment(NamedTuple):
    """The ranks of one world, as one worker gets them.

    Attributes:
        epoch: Of the world; a higher one replaces a lower one.
        rank: This worker's; -1 if it has none there.
        members: The names of the workers, by rank.
        nodes: Where they run, by rank.
        broken_epoch: The last world in which somebody was lost: whoever is still in it
            waits in vain.
        unit: How many ranks, one after the other, hold a copy of the model together.

    Example:
        >>> members, nodes = ("a", "b", "c", "d"), ("n", "n", "m", "m")
        >>> third = RankAssignment(3, 2, members, nodes, unit=2)
        >>> third.num_copies, third.copy, third.part, third.peers
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


class CheckpointRequest(NamedTuple):
    """A checkpoint that the job asks for.

    Attributes:
        id: Which request, at random.
        end_s: When it must be durable, as `time.monotonic()` counts.
        reason: Why, for people.
    """

    id: str
    end_s: float
    reason: str


class MembershipSource(Protocol):
    """Tells a worker its assignments. Its methods may be called from any thread.

    Who inherits need not heed reports, nor ask for checkpoints.
    """

    def latest(self) -> RankAssignment | None:
        """Returns the last assignment that this worker has got."""

    def wait(self, newer_than: int, timeout_s: float) -> RankAssignment | None:
        """Returns an assignment of a higher epoch as soon as there is one.

        None if the time is up, or if this worker is to leave.
        """

    def subscribe(self, heard: Callable[[RankAssignment], None]) -> Callable[[], None]:
        """Calls a function, from a thread, for each assignment; returns what ends that."""

    def is_leaving(self) -> bool:
        """Whether this worker is to end when the world no longer has it."""

    def end_s(self) -> float:
        """When this worker may be gone, as `time.monotonic()` counts."""

    def checkpoint_request(self) -> CheckpointRequest | None:
        """Returns the checkpoint that the ranks are asked for now; None for none."""
        return None

    def report_saved(
        self, request: CheckpointRequest, step: int, seconds: float, failure: str
    ) -> None:
        """Tells that a checkpoint is durable, or why it is not."""
        del request, step, seconds, failure

    def report_ready(self) -> None:
        """Tells that this worker can be assigned a rank."""
        return

    def report_phase(self, phase: str) -> None:
        """Tells what this worker does from now on."""
        del phase

    def report_step(self, step: int, seconds: float) -> None:
        """Tells how far this worker is."""
        del step, seconds

    def report_times(self, times: Times) -> None:
        """Tells where the time of this worker has gone."""
        del times

    def flight_record(self) -> FlightRecord | None:
        """Returns where this worker is to note what it does; None for nowhere."""
        return None

    def report_broken(self, epoch: int, reason: str) -> None:
        """Tells that collectives of a world fail, so that another one is needed."""
        del epoch, reason

    def report_end(self, *, is_finished: bool) -> None:
        """Tells that this worker has made all steps, or has left before."""
        del is_finished
