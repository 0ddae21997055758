"""What to try next: coordinate descent from a seed, then the pairs it cannot see.

A generator without clock, processes or files: it yields plans and is sent outcomes,
so that any table of recorded speeds can replay it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drivetrain_core import Choice, Slot
from drivetrain_core.extending import arrange, find
from drivetrain_search.posterior import by_slot
from drivetrain_search.surrogate import Surrogate, expected_improvement

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from drivetrain_core import Rejected
    from drivetrain_search.space import SlotSpace

Choices = tuple[Choice, ...]
"""A plan's choices, in the order of apply."""

# Two trials of one plan differ by some percent: a smaller gain is no gain.
_GAIN = 1.01
# A milder setting that is this much slower rules out the stronger ones.
_WORSE = 0.97
# An expected gain below this part is not worth a trial. The model knows little of what it
# has not seen, so this is low: a budget ends most searches.
_WORTH = 1e-7
# A plan that could not run counts as this much slower than the slowest that did.
_FAILED = 0.7
# What takes half of the machine from the other, such as loader workers from compute where
# there are two cores, may lose that much alone; more is not tried together.
_MOST_LOSS = 0.5
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
_MOST_PLANS = 4000


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
    cost: Cost,
) -> Generator[Choices | Skipped, Outcome | None, Choices]:
    """Yields plans to try, is sent their outcomes, and returns the best plan.

    First the seeds. Then each slot's candidates on top of the best plan so far, slot
    after slot. Then answers of two slots together that are known to need each other.
    What all this has taught is then used to look further: among all plans, or in a very
    large space those near the best, the one that is expected to gain most, until none is
    worth a trial. No plan is yielded twice. A `Skipped` is yielded for the record, and
    needs no outcome.

    Args:
        space: The candidates of each slot, the most promising slot first.
        baseline: The user's own program.
        baseline_score: Its speed.
        seeds: Plans to start from when they are faster than the baseline.
        skip: Says why a plan needs no trial.
        cost: What trials are expected to take, and the time for them.
    """
    descent = _Descent(space, baseline, baseline_score, skip, cost)
    yield from descent.ask(seed for seed in seeds)
    yield from descent.go_over_slots()
    yield from descent.try_known_pairs()
    yield from descent.look_further()
    return descent.best


class Cost(Protocol):
    """The time that trials take."""

    def seconds(self, plan: Choices) -> float:
        """Returns what a plan's trial is expected to take."""
        ...

    def affords(self, plan: Choices) -> bool:
        """Returns whether there is time for a plan's trial."""
        ...


class _Descent:
    """The plans that were asked, and the best of them."""

    def __init__(
        self,
        space: Sequence[SlotSpace],
        baseline: Choices,
        baseline_score: float,
        skip: Callable[[Choices], Rejected | None],
        cost: Cost,
    ) -> None:
        self.space = space
        self.skip = skip
        self.cost = cost
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
    ) -> Generator[Choices | Skipped, Outcome | None, bool]:
        """Asks plans that are new, the stronger ones only while they do not lose.

        Returns:
            Whether one of them lost, so that stronger ones were not asked.
        """
        leader = self.leading
        for plan in plans:
            if plan in self.scores:
                continue
            reason = self.skip(plan)
            if reason is not None:
                self.scores[plan] = None
                yield Skipped(plan, reason)
                continue
            if not self.cost.affords(plan):
                continue
            outcome = yield plan
            self.scores[plan] = score = outcome.score if outcome else None
            if score is None:
                self.failed.add(plan)
            elif score > self.leading * _GAIN:
                self.best = plan
            elif monotone and score < leader * _WORSE:
                return True
        return False

    def go_over_slots(self) -> Generator[Choices | Skipped, Outcome | None, None]:
        """Asks each slot's answers on top of the best plan."""
        # What compiles is slow to try: where it did not pay at first, it comes last.
        compiles = any(find(c.name).slot is Slot.COMPILE for c in self.best)
        space = self.space
        if not compiles:
            space = sorted(space, key=lambda entry: entry.slot is Slot.COMPILE)
        for entry in space:
            rest = _without_all(self.best, [entry.slot])
            answers = _answers(rest, entry)
            if (yield from self.ask(answers, monotone=entry.monotone)):
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
                if len(known) == len(losses) and max(known) < _MOST_LOSS:
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
            if plan not in self.scores:
                # The time for it has passed meanwhile.
                return

    def _most_promising(self) -> Choices | None:
        known = {p: s for p, s in self.scores.items() if s is not None}
        slowest = min(known.values())
        tried = dict(known) | dict.fromkeys(self.failed, slowest * _FAILED)
        model = Surrogate(
            [by_slot(plan) for plan in tried],
            list(tried.values()),
            [entry.slot.value for entry in self.space],
        )
        plans = self._affordable(self._untried(known))
        if not plans:
            return None
        # Of the trials, the luckiest is not the best: the model knows their noise.
        best = max(p.mean for p in model.predict([by_slot(plan) for plan in known]))
        gains = [
            expected_improvement(prediction, best)
            for prediction in model.predict([by_slot(plan) for plan in plans])
        ]
        worth = [index for index, gain in enumerate(gains) if gain > _WORTH]
        rates = {
            index: gains[index] / self.cost.seconds(plans[index]) for index in worth
        }
        return plans[max(worth, key=rates.__getitem__)] if worth else None

    def _affordable(self, plans: Iterable[Choices]) -> list[Choices]:
        """Returns the plans that there is time for; those with equal costs are alike."""
        every = list(plans)
        costs = {round(self.cost.seconds(plan), 1): plan for plan in every}
        fits = {cost for cost, plan in costs.items() if self.cost.affords(plan)}
        return [p for p in every if round(self.cost.seconds(p), 1) in fits]

    def _untried(self, known: dict[Choices, float]) -> Iterator[Choices]:
        """Yields new plans: all, or where there are too many those near the best."""
        answers = {
            entry.slot: [
                answer
                for answer in (*([None] if entry.optional else []), *entry.candidates)
                if answer not in self.too_strong
            ]
            for entry in self.space
        }
        if math.prod(map(len, answers.values())) <= _MOST_PLANS:
            whole = _without_all(self.best, answers)
            every: Iterator[Choices] = (
                _with(whole, combination)
                for combination in itertools.product(*answers.values())
            )
        else:
            every = self._neighbours(known, answers)
        seen = set(self.scores)
        for plan in every:
            if plan not in seen:
                seen.add(plan)
                yield plan

    def _neighbours(
        self,
        known: dict[Choices, float],
        answers: Mapping[Slot, Sequence[Choice | None]],
    ) -> Iterator[Choices]:
        """Yields plans that differ from the best ones in at most two slots."""
        found = (
            _changed(root, slots, combination)
            for root in sorted(known, key=known.__getitem__, reverse=True)
            for slots in _ones_and_twos(answers)
            for combination in itertools.product(*(answers[slot] for slot in slots))
        )
        return itertools.islice(found, _MOST_PLANS)


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
    return _with(_without_all(plan, slots), answers)


def _with(plan: Choices, answers: Iterable[Choice | None]) -> Choices:
    return arrange([*plan, *(answer for answer in answers if answer is not None)])


def _without_all(plan: Choices, slots: Container[Slot]) -> Choices:
    return tuple(choice for choice in plan if find(choice.name).slot not in slots)


def _answers(rest: Choices, entry: SlotSpace) -> list[Choices]:
    plans = [arrange([*rest, candidate]) for candidate in entry.candidates]
    return [rest, *plans] if entry.optional else plans
