"""Course of a training: which of its saves the next start goes on from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Dated(NamedTuple):
    """A save of a job.

    Args:
        at: When it was made, in any unit.
        step: The step.
        save_id: What its files have in common.
        problem: Why it cannot be restored; nothing if it can.
    """

    at: int
    step: int
    save_id: str
    problem: str = ""


class Chosen(NamedTuple):
    """The save to go on from.

    Args:
        save: The newest whole one of the course; None if there is none.
        passed_over: The newer ones of the course, which are damaged.
        aside: Whole ones that the training had gone back behind.
    """

    save: Dated | None
    passed_over: tuple[Dated, ...]
    aside: tuple[Dated, ...]


def choose(saves: Iterable[Dated]) -> Chosen:
    """Returns the newest whole save of the course that was being trained.

    A training that goes back to an earlier step leaves the later ones behind: they are
    of another course, though they are older than the damaged ones.

    Example:
        >>> saves = [Dated(1, 40, "a"), Dated(2, 100, "b"), Dated(3, 60, "c", "damaged")]
        >>> found = choose(saves)
        >>> found.save.step, [s.step for s in found.passed_over]
        (40, [60])
        >>> [s.step for s in found.aside]
        [100]
    """
    passed_over: list[Dated] = []
    aside: list[Dated] = []
    before: float = math.inf
    for save in sorted(saves, key=lambda save: (save.at, save.step), reverse=True):
        if save.step >= before:
            aside += [] if save.problem else [save]
        elif not save.problem:
            return Chosen(save, tuple(passed_over), tuple(aside))
        else:
            passed_over.append(save)
            before = save.step
    return Chosen(None, tuple(passed_over), tuple(aside))


def why_none(chosen: Chosen) -> str:
    """Returns what to tell where no save of the course is whole, but damaged ones are.

    Example:
        >>> saves = [Dated(2, 100, "b"), Dated(3, 60, "c", "step 60 is damaged")]
        >>> why_none(choose(saves))
        'step 60 is damaged; step 100 is whole, and of a course that was left behind: ask \
for it to take it (step=100)'
    """
    text = "; ".join(save.problem for save in chosen.passed_over)
    if not chosen.aside:
        return text
    step = chosen.aside[0].step
    return (
        f"{text}; step {step} is whole, and of a course that was left behind: ask for it "
        f"to take it (step={step})"
    )
