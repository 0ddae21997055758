"""Search for the plan of a program: what `strategy="auto"` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from drivetrain_core._errors import MissingLibraryError

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Sequence
    from types import TracebackType

    from drivetrain_core._choice import Choice
    from drivetrain_core._context import Context
    from drivetrain_core._partial import Partial
    from drivetrain_core._plan import Plan
    from drivetrain_core._program import Program
    from drivetrain_core._scripts.replay import Script
    from drivetrain_core.budget import Budget
    from drivetrain_core.objective import Objective


class SearchProgress(Protocol):
    """Told about every trial; entered before the first and left after the last."""

    def __enter__(self) -> Self:
        """Begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends."""

    def starting(self, name: str, choices: tuple[Choice, ...]) -> None:
        """A trial, or the final, begins."""

    def finished(self, record: Any) -> None:
        """A trial ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRequest:
    """A program, and what a search for its plan may do.

    Args:
        program: The program, not yet built.
        context: Its facts.
        written: The program as the user wrote it, as a plan.
        batches: Global batches that were looked at.
        device: Where this rank trains, as torch names it.
        script: How to run the user's script again, if there is one.
        must_replay: Whether trials run the script even if the program can be pickled.
        partial: A strategy with open ends; only they are searched then.
        require: Names, and pairs of a name and options, that every plan holds.
        allow: Names to consider; all when None.
        deny: Names to leave out.
        changes_algorithm: Whether what is learnt may be changed.
        budget: The limits of the search.
        objective: What is maximised.
        cache: Whether to keep trials, or where.
        progress: Whether to show the search on standard error, or what is told of it.
    """

    program: Program
    context: Context
    written: Sequence[Choice]
    batches: tuple[Any, ...]
    device: str
    script: Script | None
    must_replay: bool
    partial: Partial | None
    require: Sequence[str | tuple[str, object]]
    allow: Collection[str] | None
    deny: Collection[str]
    changes_algorithm: bool
    budget: Budget
    objective: Objective
    cache: bool | str | os.PathLike[str]
    progress: bool | SearchProgress


class SearchReport(Protocol):
    """What a search tried."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it in a form that JSON can write."""

    def table(self) -> Any:
        """Returns every trial, as a table that `rich` prints."""


@runtime_checkable
class PlanSearch(Protocol):
    """Finds the fastest plan that trains the same model."""

    def search(self, request: SearchRequest) -> tuple[Plan, SearchReport]:
        """Returns the plan, and what was tried.

        The program as written, with what is required, is always a candidate.

        Raises:
            PlanError: What is required cannot be used here.
            ProgramError: The program itself does not train.
            SearchError: The program cannot be measured.
        """


class NoPlanSearch:
    """The fallback: searches nothing, and says what does."""

    def search(self, request: SearchRequest) -> tuple[Plan, SearchReport]:
        """Refuses every request.

        Raises:
            MissingLibraryError: Always.
        """
        del request
        message = (
            "strategy='auto', or an option that is 'auto', needs a package that "
            "searches plans: pip install "
            'drivetrain-search; or give a strategy, such as ["compile"], or [] for '
            "the program as written"
        )
        raise MissingLibraryError(message)
