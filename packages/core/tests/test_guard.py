"""The guard: what it accepts, and what it names."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drivetrain_core import Numerics, Ok, Reject
from drivetrain_core.numerics.guard import compare, differences
from drivetrain_core.numerics.observation import (
    Accounting,
    Observation,
    ParameterUsage,
)
from drivetrain_core.numerics.observe import observe, without_dropout

BASE = Observation(
    losses=(2.0, 1.5, 1.2),
    norms={"a": 1.0, "b": 0.5, "tiny": 1e-7},
    samples={"a": (0.6, 0.8), "b": (0.3, -0.4), "tiny": (1e-7, 0.0)},
    moved=frozenset({"a", "b", "tiny"}),
    buffers={"mean": (1.0, 2.0), "empty": (), "zero": (0.0,)},
    updates={"a": (0.1, -0.1), "b": (0.2, 0.1), "tiny": (0.1, 0.0)},
    accounting=Accounting(rows=4, content=7, drawn=((1, 2, 3, 4), (5, 6, 7, 8))),
    liveness=ParameterUsage(
        ties=(("a", "c"),),
        stir=0.1,
        rates=((0.1,), (0.1,)),
        last_epoch=2,
        clipped_norm=1.0,
        rests=True,
    ),
)


def changed(**fields):
    return dataclasses.replace(BASE, **fields)


def counted(**fields):
    return changed(accounting=dataclasses.replace(BASE.accounting, **fields))


def lives(**fields):
    return changed(liveness=dataclasses.replace(BASE.liveness, **fields))


@pytest.mark.parametrize("numerics", list(Numerics))
def test_guard_accepts_the_same(numerics):
    assert isinstance(compare(BASE, BASE, numerics), Ok)


def test_ties_that_share_a_name_are_one():
    base = lives(ties=(("a", "c", "d"),))
    seen = lives(ties=(("c", "d"), ("a", "c")))
    assert isinstance(compare(base, seen, Numerics.EXACT), Ok)
    seen = lives(ties=(("c", "d"), ("a", "b")))
    assert (
        "the tie of a and c and d is broken"
        in compare(base, seen, Numerics.EXACT).because
    )


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (changed(losses=(2.0, float("nan"), 1.2)), "loss at step 2 is nan"),
        (changed(losses=(2.0, 1.5, float("inf"))), "loss at step 3 is inf"),
        (changed(losses=(2.0, 1.6, 1.2)), "the loss differs"),
        (changed(norms=BASE.norms | {"b": float("nan")}), "not finite for b"),
        (changed(norms={"a": 1.0, "tiny": 1e-7}), "get no gradient: b"),
        (changed(norms=BASE.norms | {"a": 1.4}), "differs for a"),
        (changed(samples=BASE.samples | {"b": (0.3, 0.4)}), "differs for b"),
        (changed(moved=frozenset({"a"})), "do not train: b, tiny"),
        (changed(buffers=BASE.buffers | {"mean": (2.0, 4.0)}), "differs for mean"),
        (changed(buffers=BASE.buffers | {"zero": (1.0,)}), "differs for zero"),
        (changed(buffers={}), "differs for mean, zero"),
        (
            changed(norms={"a": 0.5, "b": 0.25, "tiny": 5e-8}),
            "every gradient is 0.500 times the baseline's",
        ),
        (changed(norms=BASE.norms | {"new": 1.0}), "the program keeps: new"),
        (changed(updates=BASE.updates | {"b": (0.0, 0.0)}), "of the baseline's way: b"),
        (changed(updates=BASE.updates | {"a": (float("nan"), 0)}), "or NaN: a"),
        (counted(rows=3), "3 samples go through the forward of a step"),
        (counted(content=8), "a step trains on other samples"),
        (counted(drawn=((1, 2, 3),)), "batch 1 of the loader has 3 samples"),
        (counted(drawn=((1, 1, 2, 2),)), "holds only 2 different samples of 4"),
        (counted(drawn=((5, 6, 7, 8),)), "batch 1 of the loader is batch 2"),
        (counted(drawn=((1, 2, 3, 9),)), "other samples than the program's, 1 are"),
        (lives(foreign=2), "holds 2 tensor(s) that are not the model's"),
        (lives(ties=()), "the tie of a and c is broken"),
        (lives(apart=("a",)), "the ranks drift apart in a"),
        (lives(evaluating=frozenset({""})), "left in evaluation mode: the model"),
        (lives(stir=0.0), "dropout does nothing"),
        (lives(stir=None), "dropout does nothing"),
        (lives(rates=((0.1,), (0.05,))), "the learning rate is (0.05,)"),
        (lives(last_epoch=None), "the scheduler has counted None steps"),
        (lives(clipped_norm=1e4), "a norm of 1e+04 gets to the optimizer"),
        (lives(clipped_norm=None), "nothing gets to the optimizer"),
        (lives(rests=False), "does not follow the learning rate"),
    ],
)
def test_guard_names_what_is_wrong(seen, words):
    answer = compare(BASE, seen, Numerics.REORDER)
    assert isinstance(answer, Reject)
    assert words in answer.because
    assert answer.code == "NUMERICS"


def test_guard_lets_rest_what_only_rounding_moves():
    ways = BASE.updates | {"tiny": (1e-9, 0.0)}
    baseline = changed(updates=ways)
    still = dataclasses.replace(baseline, moved=frozenset({"a", "b"}))
    assert isinstance(compare(baseline, still, Numerics.REORDER), Ok)
    assert "tiny" in compare(BASE, still, Numerics.REORDER).because


@pytest.mark.parametrize(
    ("factor", "ranks", "parts", "words"),
    [
        (4.0, 4, 1, "summed over the 4 ranks, not averaged"),
        (0.25, 4, 1, "divided by the 4 ranks twice"),
        (2.0, 1, 2, "summed over the 2 micro-batches, not averaged"),
        (0.5, 1, 2, "divided by the 2 micro-batches twice"),
        (8.0, 4, 2, "summed over ranks and micro-batches"),
        (3.0, 4, 2, "not accounted for right"),
    ],
)
def test_guard_says_which_accounting_is_wrong(factor, ranks, parts, words):
    accounting = dataclasses.replace(
        BASE.accounting, world_size=ranks, num_micro_batches=parts
    )
    norms = {name: norm * factor for name, norm in BASE.norms.items()}
    answer = compare(
        BASE, changed(norms=norms, accounting=accounting), Numerics.REORDER
    )
    assert answer.because.endswith(words) or words in answer.because


def test_guard_holds_an_unrepeatable_loader_to_its_counts():
    base = counted(is_repeatable=False)
    other = counted(drawn=((9, 10, 11, 12), (1, 2, 3, 4)))
    assert isinstance(compare(BASE, other, Numerics.EXACT), Reject)
    assert isinstance(compare(base, other, Numerics.EXACT), Ok)
    assert isinstance(compare(base, counted(drawn=((9, 10),)), Numerics.EXACT), Reject)
    same = counted(drawn=((9, 9, 10, 10),))
    assert "different" in compare(base, same, Numerics.EXACT).because


def test_guard_compares_a_short_look_with_a_long_one():
    long = changed(
        losses=(*BASE.losses, 1.1, 1.0),
        journey=dict.fromkeys(BASE.updates, (0.5, 0.5)),
    )
    assert isinstance(compare(long, BASE, Numerics.EXACT), Ok)
    low = Numerics.LOW_PRECISION
    assert isinstance(compare(long, long, low), Ok)
    late = dataclasses.replace(long, losses=(*BASE.losses, 1.1, 1.2))
    assert "at step 5" in compare(long, late, low).because
    biased = dataclasses.replace(long, losses=tuple(1.004 * x for x in long.losses))
    assert "the mean loss differs by 4.0e-03" in compare(long, biased, low).because
    lost = dataclasses.replace(long, journey=dict.fromkeys(BASE.updates, (0.1, 0.1)))
    assert "20.0% of the baseline's way" in compare(long, lost, low).because


def test_guard_holds_an_unstable_program_to_its_own_sway():
    seen = changed(losses=(2.0, 1.5, 1.23))
    low = Numerics.LOW_PRECISION
    assert isinstance(compare(BASE, seen, low), Reject)
    steady = changed(swayed=(2.0, 1.5, 1.2002))
    assert isinstance(compare(steady, seen, low), Reject)
    swayed = changed(swayed=(2.0, 1.5, 1.21))
    assert isinstance(compare(swayed, seen, low), Ok)
    assert isinstance(compare(swayed, seen, Numerics.REORDER), Reject)


@pytest.mark.parametrize("numerics", [Numerics.EXACT, Numerics.REORDER])
def test_guard_holds_a_chaotic_program_to_what_rounding_does_to_it(numerics):
    seen = changed(losses=(2.0, 1.5, 1.206))
    assert isinstance(compare(BASE, seen, numerics), Reject)
    calm = changed(nudged=(2.0, 1.5, 1.2000001))
    assert isinstance(compare(calm, seen, numerics), Reject)
    chaotic = changed(nudged=(2.0, 1.5, 1.202))
    assert isinstance(compare(chaotic, seen, numerics), Ok)
    # What rounding does to a later step is no excuse for an earlier one.
    early = changed(losses=(2.0, 1.51, 1.2))
    assert isinstance(compare(chaotic, early, numerics), Reject)
    wild = changed(nudged=(2.0, 1.5, 9.0))
    lost = changed(losses=(2.0, 1.5, 1.8))
    assert isinstance(compare(wild, lost, numerics), Reject)


def test_guard_holds_buffers_to_what_the_programs_own_sway_does_to_them():
    # As a bias before batch normalization does, which an optimizer moves by noise.
    seen = changed(buffers=BASE.buffers | {"mean": (1.01, 2.0)})
    twice = changed(buffers=BASE.buffers | {"mean": (2.0, 4.0)})
    for numerics in (Numerics.EXACT, Numerics.REORDER):
        assert "differs for mean" in compare(BASE, seen, numerics).because
        sways = changed(swayed_buffers=BASE.buffers | {"mean": (0.995, 2.0)})
        assert isinstance(compare(sways, seen, numerics), Ok)
        for wild in (1e9, float("nan")):
            wilder = changed(swayed_buffers=BASE.buffers | {"mean": (wild, 2.0)})
            assert isinstance(compare(wilder, twice, numerics), Reject)


def test_guard_holds_the_way_of_an_unstable_program_to_its_own_sway():
    low = Numerics.LOW_PRECISION
    long = changed(journey=BASE.updates)
    seen = dataclasses.replace(long, journey=times(0.85))
    assert "85.0% of the baseline's way" in compare(long, seen, low).because
    steady = dataclasses.replace(long, swayed_journey=times(0.99))
    assert isinstance(compare(steady, seen, low), Reject)
    chaotic = dataclasses.replace(long, swayed_journey=times(0.9))
    assert isinstance(compare(chaotic, seen, low), Ok)
    assert isinstance(compare(chaotic, seen, Numerics.REORDER), Reject)
    # The first steps have a sway of their own, and no sway excuses everything.
    early = dataclasses.replace(chaotic, updates=times(0.85))
    assert isinstance(compare(chaotic, early, low), Reject)
    wild = dataclasses.replace(long, swayed_journey=times(0.0))
    lost = dataclasses.replace(long, journey=times(0.5))
    assert isinstance(compare(wild, lost, low), Reject)


def times(factor):
    """Returns the first steps' way of `BASE`, longer or shorter."""
    return {n: tuple(factor * x for x in v) for n, v in BASE.updates.items()}


def test_guard_ignores_gradients_that_are_rounding_noise():
    noisy = changed(
        norms=BASE.norms | {"tiny": 9e-7}, samples=BASE.samples | {"tiny": (0.0, -1e-7)}
    )
    assert isinstance(compare(BASE, noisy, Numerics.EXACT), Ok)


def test_guard_bounds_follow_the_declared_numerics():
    near = changed(losses=(2.005, 1.5, 1.2))
    assert isinstance(compare(BASE, near, Numerics.EXACT), Reject)
    assert isinstance(compare(BASE, near, Numerics.REORDER), Reject)
    assert isinstance(compare(BASE, near, Numerics.LOW_PRECISION), Ok)
    other = changed(losses=(2.0, 1.0, 0.1), norms={"a": 9.0, "b": 1.0, "tiny": 1.0})
    assert isinstance(compare(BASE, other, Numerics.CHANGES_ALGORITHM), Ok)


def test_guard_holds_a_random_model_to_its_own_noise():
    noisy = changed(noise=0.02)
    shifted = changed(losses=(2.06, 1.5, 1.2))
    assert isinstance(compare(noisy, shifted, Numerics.EXACT), Ok)
    assert isinstance(compare(BASE, shifted, Numerics.EXACT), Reject)


@given(st.floats(0.02, 50).filter(lambda x: abs(x - 1) > 0.02))
def test_guard_finds_every_wrong_batch_scale(scale):
    scaled = changed(
        norms={k: v * scale for k, v in BASE.norms.items()},
        samples={k: tuple(x * scale for x in v) for k, v in BASE.samples.items()},
    )
    answer = compare(BASE, scaled, Numerics.REORDER)
    assert isinstance(answer, Reject)
    assert "global batch" in answer.because


def test_differences_name_the_worst_parameter():
    seen = changed(norms=BASE.norms | {"b": 0.55}, losses=(2.0, 1.5, 1.3))
    found = differences(BASE, seen)
    assert found["worst_grad"] == "b"
    assert found["worst_grad_rel"] == pytest.approx(0.1)
    assert found["loss_rel"] == pytest.approx(0.1 / 1.2, rel=1e-2)


def test_observe_sees_gradients_and_motion(built):
    accelerated = built()
    batches = list(accelerated.loader)[:3]
    seen = observe(accelerated, batches, seed=0)
    names = {name for name, _ in accelerated.module.named_parameters()}
    assert set(seen.norms) == names == seen.moved
    assert len(seen.losses) == 3


def test_observe_of_one_step_makes_no_pass_beyond_it(built):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.drop = nn.Linear(16, 5), nn.Dropout(0.1)
            self.passes = 0

        def forward(self, images):
            self.passes += 1
            return self.inner(self.drop(images.flatten(1)))

    def watch(**options):
        accelerated = built(model=Dropping)
        batch = next(iter(accelerated.loader))
        seen = observe(accelerated, [batch], seed=0, **options)
        return seen, accelerated.model.passes

    one, passes = watch(num_steps=1, steers=False)
    assert (len(one.losses), len(one.liveness.rates), passes) == (1, 1, 1)
    assert (one.liveness.stir, one.liveness.rests) == (None, None)
    # Two passes for dropout, and one for clipping and learning rates.
    whole, passes = watch(num_steps=1)
    assert (whole.losses, passes) == (one.losses, 4)
    assert whole.liveness.stir
    assert whole.liveness.rests


def test_observe_sees_sparse_gradients(built):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 5, sparse=True)

        def forward(self, images):
            return self.table(torch.arange(len(images)) % 7)

    accelerated = built(model=Table, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    seen = observe(accelerated, list(accelerated.loader)[:3], seed=0)
    assert seen.norms["table.weight"] > 0


def test_observe_finds_buffers_that_recomputation_updates_twice(built):
    class Counted(nn.Linear):
        def __init__(self):
            super().__init__(16, 16)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Counted() for _ in range(2))
            self.head = nn.Linear(16, 5)

        def forward(self, images):
            x = images.flatten(1)
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.head(x)

    def watch(strategy):
        accelerated = built(strategy, model=Stack)
        batches = list(accelerated.loader)[:3]
        return observe(accelerated, batches, seed=0)

    answer = compare(watch([]), watch(["activation_checkpoint"]), Numerics.EXACT)
    assert isinstance(answer, Reject)
    assert "layers.0.calls" in answer.because


def test_dropout_is_off_inside_and_back_after():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn_dropout = 0.2
            self.dropout_count = 3
            self.module = nn.Dropout(0.5)

    model = Functional()
    with without_dropout(model):
        assert (model.attn_dropout, model.module.p, model.dropout_count) == (0, 0, 3)
    assert (model.attn_dropout, model.module.p) == (0.2, 0.5)
