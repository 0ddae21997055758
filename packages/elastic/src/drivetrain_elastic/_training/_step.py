"""Training step, as the script sees it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from drivetrain_elastic._training._refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from drivetrain_elastic._data._schedule import Part
    from drivetrain_elastic._membership._rank_assignment import RankAssignment


class StepLostError(BaseException):
    """A rank is gone: the step is left at once, and is made again.

    It is no error of the script's, whose handlers are not to catch it.
    """


class StepMaker(Protocol):
    """What a step asks of the loop that makes it."""

    def _parts(self) -> Iterator[Part]: ...

    def _begin(self) -> None: ...

    def _break(self, reason: str) -> None: ...

    def _finish(self) -> None: ...


class Step:
    """One step, as a context: what happens in it counts when all ranks have run it.

    Where a rank is lost, the context is left at the end of the loop over the parts: what
    comes after that loop is run once for each step that counts, with sums.

    Attributes:
        number: From 1. It comes again if a rank is lost before the step counts.
        epoch: Of the world that makes it.
        world_size: The number of ranks that share the global batch.
        rank: This one.
        has_begun: Whether the script has entered it.
    """

    def __init__(
        self, loop: StepMaker, number: int, assignment: RankAssignment
    ) -> None:
        self.number = number
        self.epoch = assignment.epoch
        self.world_size = len(assignment.members)
        self.rank = assignment.rank
        self._loop, self._pid = loop, os.getpid()
        self.has_begun = self._has_all = False

    def parts(self) -> Iterator[Part]:
        """Yields what this rank computes; there may be nothing.

        Each part's mean loss is to be multiplied by its weight, and to go backward. Once
        the last one was asked for, the gradients are the sums over all ranks, and may be
        clipped.

        Raises:
            ProgramError: They were computed before, or gradients were changed meanwhile.
        """
        if self._has_all:
            refuse("twice", number=self.number)
        yield from self._loop._parts()
        self._has_all = True

    def __enter__(self) -> Self:
        self.has_begun = True
        self._loop._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        del kind
        if os.getpid() != self._pid:
            # A child that the script has forked ends: the step is its parent's.
            return False
        if error is None:
            try:
                self._require_all()
                self._loop._finish()
            except BaseException as raised:
                self._fail(raised)
                raise
            return False
        if isinstance(error, StepLostError):
            self._loop._break(str(error))
            return True
        self._fail(error)
        return False

    def _fail(self, error: BaseException) -> None:
        """Tells that the others must not wait for what this rank does not do."""
        self._loop._break(f"step {self.number} has raised {error!r} here")

    def _require_all(self) -> None:
        if not self._has_all:
            refuse("left", number=self.number)
