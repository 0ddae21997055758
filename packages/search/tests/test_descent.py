"""The descent, replayed on tables of speeds, without clock or processes."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import Choice, Rejected, Slot
from drivetrain_core._compose import arrange
from drivetrain_search.descent import PAIRS, Outcome, Skipped, descend
from drivetrain_search.space import SlotSpace

SPACE = (
    SlotSpace(
        slot=Slot.PRECISION,
        candidates=tuple(
            Choice("precision", {"dtype": d}) for d in ("bf16_autocast", "bf16_params")
        ),
        monotone=False,
    ),
    SlotSpace(
        slot=Slot.COMPILE,
        candidates=tuple(Choice("compile", {"scope": s}) for s in ("block", "whole")),
        monotone=False,
    ),
    SlotSpace(
        slot=Slot.OPTIMIZER_IMPL,
        candidates=tuple(
            Choice("optimizer_impl", {"kind": k}) for k in ("fused", "foreach")
        ),
        monotone=False,
    ),
    SlotSpace(
        slot=Slot.MICRO_BATCH,
        candidates=tuple(Choice("micro_batch", {"num": n}) for n in (2, 4)),
        monotone=True,
    ),
)
ALL = [
    arrange([c for c in combination if c is not None])
    for combination in itertools.product(*[(None, *e.candidates) for e in SPACE])
]


def replay(speed, seed=None, skip=lambda _: None, limit=10_000):
    """Runs the descent on a table; returns the winner and what was tried."""
    seeds = [seed] if seed is not None else []
    walk = descend(SPACE, (), speed(()), seeds, skip, Purse(math.inf))
    tried, skipped, answer = [()], [], None
    try:
        while len(tried) < limit:
            asked = walk.send(answer) if answer is not None else next(walk)
            answer = None
            if isinstance(asked, Skipped):
                skipped.append(asked)
                continue
            tried.append(asked)
            answer = Outcome(speed(asked))
    except StopIteration as done:
        return done.value, tried, skipped
    return max(tried, key=lambda plan: speed(plan) or 0.0), tried, skipped


def product_of(factors):
    def speed(choices):
        return math.prod(
            factors.get((c.name, *c.config.values()), 1.0) for c in choices
        )

    return speed


@pytest.mark.slow
@given(st.lists(st.floats(0.2, 3.0), min_size=8, max_size=8))
@settings(max_examples=200)
def test_descent_finds_the_best_of_independent_factors(values):
    keys = [(c.name, *c.config.values()) for e in SPACE for c in e.candidates]
    factors = dict(zip(keys, values, strict=True))
    # The rule that a slower mild setting rules out the stronger one must hold.
    factors["micro_batch", 4] = min(
        factors["micro_batch", 2], factors["micro_batch", 4]
    )
    speed = product_of(factors)
    best, tried, _ = replay(speed, limit=24)
    assert speed(best) >= 0.96 * max(speed(choices) for choices in ALL)
    assert len(tried) == len(set(tried))


def test_descent_with_an_experts_seed_needs_few_trials():
    factors = {
        ("precision", "bf16_autocast"): 1.6,
        ("compile", "block"): 1.3,
        ("optimizer_impl", "fused"): 1.1,
        ("micro_batch", 2): 0.8,
    }
    speed = product_of(factors)
    seed = arrange([e.candidates[0] for e in SPACE[:3]])
    best, tried, _ = replay(speed, seed)
    assert best == seed
    assert len(tried) <= 14


def test_descent_finds_an_interaction_through_the_seed():
    # Each alone is slower; together they are the fastest.
    pair = arrange([SPACE[0].candidates[0], SPACE[1].candidates[0]])

    def speed(choices):
        return 2.0 if set(pair) <= set(choices) else 1.0 - 0.1 * len(choices)

    best, _, _ = replay(speed, seed=pair)
    assert set(pair) <= set(best)


def test_descent_never_tries_a_plan_twice_nor_a_stronger_bad_one():
    speed = product_of({("micro_batch", 2): 0.5, ("micro_batch", 4): 9.0})
    _, tried, _ = replay(speed)
    numbers = [c.config["num"] for t in tried for c in t if c.name == "micro_batch"]
    assert set(numbers) == {2}
    assert len(tried) == len(set(tried))


def test_descent_records_what_is_skipped_and_goes_on():
    reason = Rejected(plan="compile", code="MEMORY", because="too large")

    def skip(choices):
        return reason if any(c.name == "compile" for c in choices) else None

    best, tried, skipped = replay(
        product_of({("optimizer_impl", "fused"): 1.5}), skip=skip
    )
    assert [c.name for c in best] == ["optimizer_impl"]
    assert not any(c.name == "compile" for t in tried for c in t)
    assert {s.reason for s in skipped} == {reason}


def test_descent_survives_plans_that_fail():
    def speed(choices):
        return None if choices else 1.0

    best, tried, _ = replay(speed)
    assert best == ()
    assert len(tried) == len(set(tried)) <= len(ALL)


@pytest.mark.slow
def test_descent_ignores_gains_within_the_noise():
    draw = random.Random(0)
    best, _, _ = replay(lambda choices: 1.0 + draw.random() * 0.009 if choices else 1.0)
    assert best == ()


@pytest.mark.parametrize("seed", range(20))
def test_descent_is_near_the_best_of_a_rough_table(seed):
    draw = random.Random(seed)
    factors = {
        (c.name, *c.config.values()): draw.uniform(0.6, 1.7)
        for e in SPACE
        for c in e.candidates
    }
    factors["micro_batch", 4] = 0.9 * factors["micro_batch", 2]
    plain = product_of(factors)
    table = {choices: plain(choices) * draw.uniform(0.97, 1.03) for choices in ALL}
    best, _, _ = replay(lambda choices: table[choices], limit=24)
    assert table[best] >= 0.95 * max(table.values())


@pytest.mark.parametrize("seed", range(10))
def test_descent_finds_a_pair_that_no_single_answer_hints_at(seed):
    draw = random.Random(seed)
    by_slot = {entry.slot: entry.candidates for entry in SPACE}
    slots = draw.choice([p for p in PAIRS if set(p) <= by_slot.keys()])
    pair = [draw.choice(by_slot[slot]) for slot in slots]
    if slots[1] is Slot.MICRO_BATCH:
        pair[1] = by_slot[slots[1]][0]

    def speed(choices):
        # Either alone loses, though less than other answers; both together gain much.
        others = sum(c not in pair for c in choices)
        have = sum(choice in choices for choice in pair)
        return (1.0, 0.9, 1.5)[have] * 0.85**others

    best, tried, _ = replay(speed)
    assert set(pair) <= set(best)
    assert len(tried) < len(ALL) / 2


def test_descent_tries_what_compiles_last_when_the_seed_lost():
    speed = product_of({("compile", "block"): 0.5, ("optimizer_impl", "fused"): 1.5})
    seed = arrange([e.candidates[0] for e in SPACE[:3]])
    best, tried, _ = replay(speed, seed)
    assert [c.name for c in best] == ["optimizer_impl"]
    compiled = [i for i, t in enumerate(tried) if any(c.name == "compile" for c in t)]
    assert tried.index(best) < compiled[1]  # The first one is the seed.


class Purse:
    """Costs by the name of a choice, and what is left to spend."""

    def __init__(self, left, **costs):
        self.left, self.costs = left, costs

    def seconds(self, plan):
        return max((self.costs.get(c.name, 1.0) for c in plan), default=1.0)

    def affords(self, plan):
        return self.seconds(plan) <= self.left

    def run(self, speed):
        walk, tried, answer = (
            descend(SPACE, (), 1.0, [], lambda _: None, self),
            [],
            None,
        )
        try:
            while True:
                asked = walk.send(answer) if answer is not None else next(walk)
                assert self.affords(asked)
                self.left -= self.seconds(asked)
                tried.append(asked)
                answer = Outcome(speed(asked))
        except StopIteration as done:
            return done.value, tried


def test_descent_leaves_out_what_there_is_no_time_for_and_goes_on():
    speed = product_of({("precision", "bf16_params"): 2.0, ("compile", "whole"): 3.0})
    best, tried = Purse(8.0, compile=10.0).run(speed)
    assert len(tried) == 8
    assert not any(c.name == "compile" for plan in tried for c in plan)
    assert best == (Choice("precision", {"dtype": "bf16_params"}),)


def test_descent_calls_nothing_too_strong_that_was_only_too_expensive():
    space = SPACE[3:]
    purse = Purse(2.0)
    purse.seconds = lambda plan: 9.0 if plan and plan[0].config["num"] == 4 else 1.0
    walk = descend(space, (), 1.0, [], lambda _: None, purse)
    assert next(walk)[0].config == {"num": 2}
    purse.left = 9.0
    # Nothing was lost: four parts are asked for once there is time.
    assert walk.send(Outcome(1.2))[0].config == {"num": 4}


def test_descent_looks_further_where_a_second_gains_most():
    speed = product_of(
        {
            ("precision", "bf16_params"): 1.5,
            ("micro_batch", 2): 1.3,
            ("compile", "whole"): 1.3,
        }
    )
    _, cheap = Purse(60.0, compile=1.0).run(speed)
    _, dear = Purse(60.0, compile=20.0).run(speed)

    def compiled(tried):
        return sum(any(c.name == "compile" for c in plan) for plan in tried)

    assert compiled(dear) < compiled(cheap)
