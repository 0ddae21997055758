"""What to try next: coordinate descent from a seed, then the pairs it cannot see.

A generator without clock, processes or files: it yields plans and is sent outcomes,
so that any table of recorded speeds can replay it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core._compose import arrange
from drivetrain_core._optimization import Choice, Slot
from drivetrain_core._registry import find
from drivetrain_core.search.surrogate import Surrogate, expected_improvement

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from drivetrain_core._plan import Rejected
    from drivetrain_core.search.space import SlotSpace

__all__ = ["PAIRS", "Choices", "Outcome", "Skipped", "descend"]

Choices = tuple[Choice, ...]
"""A plan's choices, in the order of apply."""

# Two trials of one plan differ by some percent: a smaller gain is no gain.
_GAIN = 1.01
# A milder setting that is this much slower rules out the stronger ones.
_WORSE = 0.97
# An expected gain below this part is not worth a trial.
_WORTH = 0.002
# A plan that could not run counts as this much slower than the slowest that did.
_FAILED = 0.7
_ROOTS = 3
# Answers that lose more than this part alone are not tried together.
_MOST_LOSS = 0.6
_EACH_PAIR = 2

PAIRS = (
    (Slot.CPU_THREADS, Slot.LOADER),
    (Slot.ACTIVATION_CHECKPOINT, Slot.MICRO_BATCH),
    (Slot.PRECISION, Slot.COMPILE),
    (Slot.PRECISION, Slot.MEMORY_FORMAT),
    (Slot.COMPILE, Slot.MICRO_BATCH),
    (Slot.COMPILE, Slot.ACTIVATION_CHECKPOINT),
    (Slot.TENSOR_PARALLEL, Slot.DATA_PARALLEL),
    (Slot.SCHEDULE, Slot.MICRO_BATCH),
)
"""Slots whose answers need each other: one makes room for, or takes from, the other."""
_MOST_NEIGHBOURS = 4000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trial.

    Args:
        score: Higher is better; None when the plan cannot be used.
    """

    score: float | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A plan that was ruled out without a trial."""

    choices: Choices
    reason: Rejected


def descend(
    space: Sequence[SlotSpace],
    baseline: Choices,
    baseline_score: float,
    seeds: Sequence[Choices],
    skip: Callable[[Choices], Rejected | None],
    passes: int = 1,
) -> Generator[Choices | Skipped, Outcome | None, Choices]:
    """Yields plans to try, is sent their outcomes, and returns the best plan.

    First the seeds. Then each slot's candidates on top of the best plan so far, slot
    after slot. Then answers of two slots together that are known to need each other.
    What all this has taught is then used to look further: among all plans that differ
    from the best ones in at most two slots, the one that is expected to gain most,
    until none is worth a trial. No plan is yielded twice. A `Skipped` is yielded for
    the record, and needs no outcome.

    Args:
        space: The candidates of each slot, the most promising slot first.
        baseline: The user's own program.
        baseline_score: Its speed.
        seeds: Plans to start from when they are faster than the baseline.
        skip: Says why a plan needs no trial.
        passes: How often to go over the slots.
    """
    descent = _Descent(space, baseline, baseline_score, skip)
    yield from descent.ask(seed for seed in seeds)
    for _ in range(passes):
        yield from descent.go_over_slots()
    yield from descent.try_known_pairs()
    yield from descent.look_further()
    return descent.best


class _Descent:
    """The plans that were asked, and the best of them."""

    def __init__(
        self,
        space: Sequence[SlotSpace],
        baseline: Choices,
        baseline_score: float,
        skip: Callable[[Choices], Rejected | None],
    ) -> None:
        self.space = space
        self.skip = skip
        self.scores: dict[Choices, float | None] = {baseline: baseline_score}
        self.failed: set[Choices] = set()
        self.best = baseline
        self.too_strong: set[Choice] = set()

    @property
    def leading(self) -> float:
        score = self.scores[self.best]
        assert score is not None
        return score

    def ask(
        self, plans: Iterable[Choices], *, monotone: bool = False
    ) -> Generator[Choices | Skipped, Outcome | None, None]:
        """Asks plans that are new, the stronger ones only while they do not lose."""
        leader = self.leading
        for plan in plans:
            if plan in self.scores:
                continue
            reason = self.skip(plan)
            if reason is not None:
                self.scores[plan] = None
                yield Skipped(plan, reason)
                continue
            outcome = yield plan
            self.scores[plan] = score = outcome.score if outcome else None
            if score is None:
                self.failed.add(plan)
            elif score > self.leading * _GAIN:
                self.best = plan
            elif monotone and score < leader * _WORSE:
                return

    def go_over_slots(self) -> Generator[Choices | Skipped, Outcome | None, None]:
        """Asks each slot's answers on top of the best plan."""
        # What compiles is slow to try: where it did not pay at first, it comes last.
        compiles = any(find(c.name).slot is Slot.COMPILE for c in self.best)
        space = self.space
        if not compiles:
            space = sorted(space, key=lambda entry: entry.slot is Slot.COMPILE)
        for entry in space:
            rest = _without(self.best, entry.slot)
            answers = _answers(rest, entry)
            yield from self.ask(answers, monotone=entry.monotone)
            if entry.monotone:
                untried = {plan for plan in answers if plan not in self.scores}
                self.too_strong.update(
                    c for c in entry.candidates if arrange([*rest, c]) in untried
                )

    def try_known_pairs(self) -> Generator[Choices | Skipped, Outcome | None, None]:
        """Asks answers that lose alone and may gain together, the likely ones first."""
        entries = {entry.slot: entry for entry in self.space}
        for pair in PAIRS:
            if not entries.keys() >= set(pair):
                continue
            found: list[tuple[float, int, Choices]] = []
            for answers in itertools.product(
                *(_options(self.best, entries[slot]) for slot in pair)
            ):
                losses = [
                    self._loss(slot, a) for slot, a in zip(pair, answers, strict=True)
                ]
                known = [loss for loss in losses if loss is not None]
                if len(known) == len(losses) and sum(known) < _MOST_LOSS:
                    plan = _changed(self.best, pair, answers)
                    found.append((sum(known), len(found), plan))
            yield from self.ask(plan for *_, plan in sorted(found)[:_EACH_PAIR])

    def _loss(self, slot: Slot, answer: Choice | None) -> float | None:
        """Returns by what part an answer alone is slower than the best; None if new."""
        score = self.scores.get(_changed(self.best, (slot,), (answer,)))
        return None if score is None else max(0.0, 1.0 - score / self.leading)

    def look_further(self) -> Generator[Choices | Skipped, Outcome | None, None]:
        """Asks the plan with the largest expected gain, again and again."""
        while True:
            plan = self._most_promising()
            if plan is None:
                return
            yield from self.ask([plan])

    def _most_promising(self) -> Choices | None:
        known = {p: s for p, s in self.scores.items() if s is not None}
        slowest = min(known.values())
        tried = dict(known) | dict.fromkeys(self.failed, slowest * _FAILED)
        model = Surrogate(
            [_by_slot(plan) for plan in tried],
            list(tried.values()),
            [entry.slot.value for entry in self.space],
        )
        plans = list(itertools.islice(self._neighbours(known), _MOST_NEIGHBOURS))
        if not plans:
            return None
        best = math.log(self.leading)
        gains = [
            expected_improvement(prediction, best)
            for prediction in model.predict([_by_slot(plan) for plan in plans])
        ]
        index = max(range(len(plans)), key=gains.__getitem__)
        return plans[index] if gains[index] > _WORTH else None

    def _neighbours(self, known: dict[Choices, float]) -> Iterator[Choices]:
        """Yields new plans that differ from a good one in at most two slots."""
        roots = sorted(known, key=known.__getitem__, reverse=True)[:_ROOTS]
        seen = set(self.scores)
        for root in roots:
            singles = {
                entry.slot: [
                    answer
                    for answer in _options(root, entry)
                    if answer not in self.too_strong
                ]
                for entry in self.space
            }
            for slots in _ones_and_twos(singles):
                for answers in itertools.product(*(singles[slot] for slot in slots)):
                    plan = _changed(root, slots, answers)
                    if plan not in seen:
                        seen.add(plan)
                        yield plan


def _options(plan: Choices, entry: SlotSpace) -> list[Choice | None]:
    """Returns the answers of a slot other than the plan's own."""
    own = next((c for c in plan if find(c.name).slot is entry.slot), None)
    every = [*([None] if entry.optional else []), *entry.candidates]
    return [answer for answer in every if answer != own]


def _ones_and_twos(slots: Iterable[Slot]) -> list[tuple[Slot, ...]]:
    every = list(slots)
    return [(slot,) for slot in every] + list(itertools.combinations(every, 2))


def _changed(
    plan: Choices, slots: Sequence[Slot], answers: Sequence[Choice | None]
) -> Choices:
    """Returns a plan with other answers in some slots."""
    for slot in slots:
        plan = _without(plan, slot)
    return arrange([*plan, *(a for a in answers if a is not None)])


def _by_slot(plan: Choices) -> dict[str, Choice]:
    return {find(choice.name).slot.value: choice for choice in plan}


def _without(plan: Choices, slot: Slot) -> Choices:
    return tuple(choice for choice in plan if find(choice.name).slot is not slot)


def _answers(rest: Choices, entry: SlotSpace) -> list[Choices]:
    plans = [arrange([*rest, candidate]) for candidate in entry.candidates]
    return [rest, *plans] if entry.optional else plans
