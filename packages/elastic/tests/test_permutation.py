"""Permutations whose places are computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_elastic.decisions.permutation import permuted


@given(
    num=st.integers(1, 3000),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 99),
)
def test_permuted_has_each_number_once(num, seed, epoch):
    found = permuted(0, num, num=num, seed=seed, epoch=epoch)
    assert sorted(found.tolist()) == list(range(num))


@given(data=st.data(), num=st.integers(1, 1 << 60))
def test_permuted_places_do_not_depend_on_how_they_are_asked_for(data, num):
    start = data.draw(st.integers(0, num))
    end = data.draw(st.integers(start, min(num, start + 50)))
    whole = permuted(start, end, num=num, seed=1, epoch=2)
    singly = [
        permuted(place, place + 1, num=num, seed=1, epoch=2)[0]
        for place in range(start, end)
    ]
    assert whole.tolist() == singly
    assert all(0 <= value < num for value in singly)
    assert len(set(singly)) == len(singly)


def test_permuted_differs_by_seed_and_epoch_and_looks_random():
    num = 20_000
    orders = [
        permuted(0, num, num=num, seed=seed, epoch=epoch)
        for seed in range(3)
        for epoch in range(3)
    ]
    for at, one in enumerate(orders):
        # Of unrelated permutations about one place agrees; neighbours are far apart.
        assert all((one == other).sum() < 12 for other in orders[at + 1 :])
        assert abs(np.abs(np.diff(one)).mean() / num - 1 / 3) < 0.01
        assert abs(np.corrcoef(np.arange(num), one)[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("start", "end", "num"), [(-1, 1, 5), (0, 6, 5), (3, 2, 5), (0, 1, 1 << 61)]
)
def test_permuted_refuses_places_that_there_are_not(start, end, num):
    with pytest.raises(ValueError, match=f"no places {start} to {end} of {num}"):
        permuted(start, end, num=num, seed=0, epoch=0)
