"""A longer look at the plan that is to be chosen, before the final.

A trial holds a plan with low precision to the bounds of low precision, below which a
wrong gradient may hide, and watches a few steps only. Here such a plan is run once
more without its low precision and held to the bounds of exact arithmetic, and the
whole plan is followed over a trajectory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import Choice, Code, Numerics, Ok, Reject, Slot
from drivetrain_core.extending import arrange, describe, find, numerics_of
from drivetrain_core.numerics.guard import compare
from drivetrain_core.numerics.observation import FIRST_STEPS
from drivetrain_search.process.trial import Failure, Look

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from drivetrain_core.numerics.observation import Observation
    from drivetrain_search.process.trial import TrialRunner

_Choices = tuple[Choice, ...]


def verify(
    runner: TrialRunner,
    choices: _Choices,
    reference: Observation,
    *,
    deadline: float,
    structures: MutableMapping[_Choices, Ok | Reject] | None = None,
    nudged: Callable[[], Observation] | None = None,
) -> Ok | Reject:
    """Says whether a plan may be chosen.

    Args:
        runner: Starts the processes.
        choices: The plan; it has passed its trial.
        reference: The baseline's observation, over its whole trajectory.
        deadline: When to give up, in `time.monotonic` seconds.
        structures: What was found out of structures before; it is added to.
        nudged: Returns the reference with what rounding alone does to it. It is called
            for a plan that is too far from the reference without that: a program may
            be chaotic itself.

    Returns:
        `Ok`, or a `Reject` that says which of both looks it did not stand.

    Raises:
        Failure: The deadline passed; its code is `BUDGET`.
    """
    known = {} if structures is None else structures
    check = _Check(runner, reference, deadline, nudged)
    structure = structure_of(choices, runner.world_size)
    if structure and structure != choices:
        if structure not in known:
            known[structure] = check.look(structure, FIRST_STEPS)
        answer = known[structure]
        if isinstance(answer, Reject):
            without = f"without its low precision, {describe(structure)}: "
            return Reject(answer.code, without + answer.because, answer.fix)
    steps = len(reference.losses)
    if steps <= FIRST_STEPS:
        return Ok("its trial saw as many steps as the program as written had time for")
    return check.look(choices, steps)


def passes_of_check(reference: Observation, *, structure_is_due: bool) -> int:
    """Returns how many passes the looks at a plan make.

    Args:
        reference: The baseline's observation, over its whole trajectory.
        structure_is_due: Whether the plan without low precision is to be looked at.
    """
    beside = 1 if reference.liveness.stir is None else 3
    steps = len(reference.losses)
    whole = steps + beside if steps > FIRST_STEPS else 0
    return whole + (FIRST_STEPS + beside if structure_is_due else 0)


def structure_of(choices: _Choices, world_size: int = 1) -> _Choices:
    """Returns a plan without what makes the numbers less precise or others.

    What needs something that goes, goes as well; with several ranks the gradients are
    averaged still.

    Example:
        >>> low = Choice("precision", {"dtype": "bf16_autocast"})
        >>> [str(c) for c in structure_of((low, Choice("compile", {"scope": "whole"})))]
        ['compile(scope=whole)']
    """
    kept = [c for c in choices if numerics_of([c]) < Numerics.LOW_PRECISION]
    while True:
        names = {choice.name for choice in kept}
        able = [c for c in kept if set(find(c.name).requires) <= names]
        if len(able) == len(kept):
            break
        kept = able
    averaged = any(find(c.name).slot is Slot.DATA_PARALLEL for c in kept)
    if world_size > 1 and not averaged:
        kept.append(Choice("ddp", find("ddp").normalize(None)))
    return arrange(kept)


class _Check(NamedTuple):
    runner: TrialRunner
    reference: Observation
    deadline: float
    nudged: Callable[[], Observation] | None

    def look(self, choices: _Choices, steps: int) -> Ok | Reject:
        """Runs a plan for so many steps, and compares it with the reference."""
        try:
            look = Look(steps=steps)
            opened = self.runner.open(choices, look=look, deadline=self.deadline)
            with opened as session:
                seen = session.observation
            assert seen is not None
        except Failure as failure:
            if failure.code is Code.BUDGET:
                raise
            return Reject(failure.code, failure.because, "drop the optimization")
        answer = compare(self.reference, seen, numerics_of(choices))
        if isinstance(answer, Ok) or self.nudged is None:
            return answer
        try:
            return compare(self.nudged(), seen, numerics_of(choices))
        except Failure as failure:
            if failure.code is Code.BUDGET:
                raise
            # That the program does not run a second time says nothing of the plan.
            return answer
