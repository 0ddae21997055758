"""Data repeated without end, and data that ends too early."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import DataExhaustedError
from drivetrain_core._data.cycle import cycle, guard_batches


class OneBatchOnce:
    """An epoch-aware loader that has nothing in its second epoch."""

    def __init__(self):
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        return iter([1] if self.epochs == 1 else [])


@given(st.lists(st.integers(), min_size=1, max_size=6), st.integers(0, 20))
def test_cycle_repeats_in_order(items, number):
    assert list(islice(cycle(items), number)) == [
        items[i % len(items)] for i in range(number)
    ]


def test_cycle_starts_each_pass_anew():
    data = OneBatchOnce()
    batches = cycle(data)
    assert next(batches) == 1
    assert data.epochs == 1
    with pytest.raises(DataExhaustedError, match="only once"):
        next(batches)
    assert data.epochs == 2


@pytest.mark.parametrize("data", [[], (), iter([])], ids=["list", "tuple", "iterator"])
def test_cycle_of_nothing_names_the_type_and_a_fix(data):
    with pytest.raises(DataExhaustedError, match="yields no batch") as caught:
        next(cycle(data))
    assert type(data).__name__ in str(caught.value)
    assert "DataLoader" in str(caught.value)


def test_cycle_of_a_generator_says_that_it_can_be_read_once():
    batches = cycle(i for i in range(2))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(
        DataExhaustedError, match=r"\(generator\) can be read only once"
    ):
        next(batches)


def test_guard_batches_reads_no_further_than_asked():
    data = iter(range(5))
    assert guard_batches(data, 2) == [0, 1]
    assert next(data) == 2


def test_guard_batches_of_nothing_is_an_error():
    with pytest.raises(DataExhaustedError, match=r"\(list\) yields no batch"):
        guard_batches([], 3)


def test_guard_batches_are_few_where_each_takes_long(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow():
        for index in range(20):
            now[0] += 2.0
            yield torch.full((1,), index)

    assert len(guard_batches(slow())) == 3
    assert len(guard_batches([torch.zeros(1)] * 20)) == 14
