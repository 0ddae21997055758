"""What a search may do, and what it is to maximise."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanError
from drivetrain_core.budget import Budget
from drivetrain_core.extending import AUTO, Partial, read_strategy
from drivetrain_core.objective import Objective, throughput
from drivetrain_core.services import cache_folder
from drivetrain_search.candidates import candidates_of

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from drivetrain_core import Choice, Context


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """What a search may do.

    Args:
        budget: Its limits.
        allow: Optimizations to consider; all when None.
        deny: Optimizations to leave out.
        changes_algorithm: Whether the algorithm may be changed.
        fixed: Choices that every plan holds.
        named: Optimizations that every plan holds, their options left to the search.
        given: Candidates by name, in place of those that an optimization proposes.
        objective: What is maximised.
        cache: The folder of earlier trials; None to keep none.
    """

    budget: Budget = field(default_factory=Budget)
    allow: Collection[str] | None = None
    deny: Collection[str] = ()
    changes_algorithm: bool = False
    fixed: Sequence[Choice] = ()
    named: Collection[str] = ()
    given: Mapping[str, Sequence[Choice]] = field(default_factory=dict)
    objective: Objective = throughput
    cache: Path | None = None

    @property
    def required(self) -> frozenset[str]:
        """The names of all that every plan holds."""
        return frozenset(self.named) | {choice.name for choice in self.fixed}

    def are_met_by(self, choices: Sequence[Choice]) -> bool:
        """Returns whether a plan holds all that every plan must hold."""
        names = {choice.name for choice in choices}
        return set(self.fixed) <= set(choices) and set(self.named) <= names

    @property
    def considered(self) -> frozenset[str] | None:
        """The names to make candidates of; None for all."""
        if self.allow is None:
            return None
        return frozenset(self.allow) | self.required | frozenset(self.given)


def read_options(
    context: Context,
    *,
    partial: Partial | None,
    require: Sequence[str | tuple[str, object]],
    allow: Collection[str] | None,
    cache: bool | str | os.PathLike[str],
    **others: Any,
) -> SearchOptions:
    """Returns the options that the arguments of `accelerate` stand for.

    Args:
        context: The facts that `"auto"` is answered from.
        partial: A strategy with open ends; only they are searched then.
        require: Names, and pairs of a name and options.
        allow: Names to consider; all when None.
        cache: Whether to keep trials, or where.
        others: The other fields of `SearchOptions`.

    Raises:
        PlanError: A name, an option or a value is not allowed, or two of the
            arguments contradict each other.
    """
    named = [entry for entry in require if isinstance(entry, str)]
    pairs: list[Any] = [entry for entry in require if not isinstance(entry, str)]
    given: dict[str, tuple[Choice, ...]] = {}
    if partial is not None:
        given |= {n: candidates_of(n, v, context) for n, v in partial.open.items()}
        pairs += partial.fixed
        allow = [*given, *(allow or ())]
    # Who names an optimization asks for it, whatever it changes.
    given |= {n: candidates_of(n, AUTO, context) for n in named if n not in given}
    fixed = read_strategy(pairs).choices
    _require_consistent(fixed, named, given, others["deny"])
    folder = None
    if cache is not False:
        folder = cache_folder() / "search" if cache is True else Path(cache)
    return SearchOptions(
        allow=allow,
        fixed=fixed,
        named=tuple(named),
        given=given,
        cache=folder,
        **others,
    )


def _require_consistent(
    fixed: Sequence[Choice],
    named: Collection[str],
    given: Mapping[str, Sequence[Choice]],
    deny: Collection[str],
) -> None:
    asked = [*(choice.name for choice in fixed), *named, *given]
    for name in asked:
        if name in deny:
            raise PlanError(
                Code.CONFLICT,
                name,
                because="it is asked for, and deny leaves it out",
                fix=f"drop {name} from deny, or do not ask for it",
            )
    for choice in fixed:
        if choice.name in given and choice not in given[choice.name]:
            values = ", ".join(map(str, given[choice.name]))
            raise PlanError(
                Code.CONFLICT,
                choice.name,
                because=f"{choice} is required, and the strategy offers {values}",
                fix="require one of these, or leave require to the strategy",
            )
