"""Training step, as the script sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from drivetrain_elastic._data._schedule import Part
    from drivetrain_elastic._membership._rank_assignment import RankAssignment


class StepMaker(Protocol):
    """What a step asks of the loop that makes it."""

    def _parts(self) -> Iterator[Part]: ...

    def _begin(self) -> None: ...

    def _break(self, reason: str) -> None: ...

    def _finish(self) -> None: ...


class Step:
    """One step, as a context: what happens in it counts when all ranks have run it.

    Attributes:
        number: From 1. It comes again if a rank is lost before the step counts.
        epoch: Of the world that makes it.
        world_size: The number of ranks that share the global batch.
        rank: This one.
    """

    def __init__(
        self, loop: StepMaker, number: int, assignment: RankAssignment
    ) -> None:
        self.number = number
        self.epoch = assignment.epoch
        self.world_size = len(assignment.members)
        self.rank = assignment.rank
        self._loop = loop
        self._has_all = False

    def parts(self) -> Iterator[Part]:
        """Yields what this rank computes; there may be nothing.

        Each part's mean loss is to be multiplied by its weight, and to go backward. Once
        the last one was asked for, the gradients are the sums over all ranks, and may be
        clipped.

        Raises:
            ProgramError: They were computed before, or gradients were changed meanwhile.
        """
        if self._has_all:
            message = f"the parts of step {self.number} were all computed before"
            raise ProgramError(message)
        yield from self._loop._parts()
        self._has_all = True

    def __enter__(self) -> Self:
        self._loop._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if kind is not None:
            # The others must not wait for what this rank does not do; a script that goes
            # on all the same finds itself in the next world.
            self._loop._break(f"step {self.number} has raised {error!r} here")
            return
        if not self._has_all:
            message = (
                f"step {self.number} was left before all of its parts were computed: its "
                "gradients would be wrong on all ranks"
            )
            self._loop._break(message)
            raise ProgramError(message)
        self._loop._finish()
