"""What an observation consists of, in the passes that there is time for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core.numerics.observation import FIRST_STEPS
from drivetrain_search.process.pace import (
    ALL_PASSES,
    TRAJECTORY_STEPS,
    passes_within,
)


def number_of(passes, has_dropout):
    """Passes after the first steps."""
    return (
        1
        + (2 if has_dropout else 0)
        + passes.noise
        + passes.counts_flops
        + (passes.steps - FIRST_STEPS)
        + (passes.steps if passes.is_swayed else 0)
    )


@given(st.floats(0.0, 200.0), st.booleans(), st.booleans())
def test_passes_fit_the_time_but_for_what_is_never_left_out(
    number, has_dropout, may_sway
):
    found = passes_within(number, has_dropout=has_dropout, may_sway=may_sway)
    least = 3 if has_dropout else 1
    assert number_of(found, has_dropout) <= max(number, least)
    assert FIRST_STEPS <= found.steps <= TRAJECTORY_STEPS
    assert found.noise in (0, 2, 3)
    assert not found.is_swayed or may_sway


@given(st.floats(0.0, 200.0), st.floats(0.0, 50.0), st.booleans())
def test_more_time_never_makes_an_observation_worse(number, more, has_dropout):
    def found(n):
        # In the order in which they are bought: the last of the passes of noise makes room
        # for rounded weights where there is time for only one of both.
        one = passes_within(n, has_dropout=has_dropout, may_sway=True)
        return one.noise > 0, one.is_swayed, one.counts_flops, one.noise, one.steps

    assert found(number) <= found(number + more)
    assert found(number)[-1] <= found(number + more)[-1]


@pytest.mark.parametrize("has_dropout", [False, True])
def test_whole_observation_needs_34_passes_and_two_for_dropout(has_dropout):
    needed = number_of(ALL_PASSES, has_dropout)

    def found(n):
        return passes_within(n, has_dropout=has_dropout, may_sway=True)

    assert found(needed) == ALL_PASSES
    assert found(needed - 1) != ALL_PASSES
