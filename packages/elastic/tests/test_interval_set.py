"""A set of numbers that remembers ranges."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_elastic.decisions.interval_set import IntervalSet


@pytest.mark.slow
@given(st.lists(st.integers(-20, 20)))
def test_numbers_is_a_set(added):
    numbers = IntervalSet()
    for number in added:
        numbers.add(number)
    assert {n for n in range(-25, 25) if n in numbers} == set(added)
    assert len(numbers) == len(set(added))
    ranges = numbers.ranges
    assert all(start < end for start, end in ranges)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    assert IntervalSet(ranges).ranges == ranges


def test_numbers_added_in_order_are_one_range():
    numbers = IntervalSet()
    for number in range(10_000):
        numbers.add(number)
    assert numbers.ranges == [(0, 10_000)]
