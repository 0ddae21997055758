import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_elastic.decisions.time_ledger import (
    Account,
    WorldFacts,
    account_for,
    typical_account,
)

SECONDS = st.floats(0.0, 1e4)
ACCOUNTS = st.builds(Account, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
WORLDS = st.lists(
    st.builds(
        WorldFacts,
        st.integers(1, 100),
        st.integers(1, 64),
        st.sampled_from(["start", "killed", "join"]),
        st.sampled_from(["", "killed"]),
        ACCOUNTS,
        SECONDS,
    ),
    max_size=8,
)


def by_what(ledger):
    return {(row.what, row.cause): row.seconds for row in ledger.lost}


def test_each_loss_has_its_cause():
    worlds = [
        WorldFacts(1, 4, "start", "", Account(5.0, 0.0, 50.0, 1.0, 0.5)),
        WorldFacts(2, 3, "crash", "crash", Account(0.2, 0.3, 40.0), 4.0),
        WorldFacts(3, 4, "join", "", Account(0.1, 0.0, 5.0)),
    ]
    ledger = account_for(110.0, worlds)
    lost = by_what(ledger)
    assert lost["world forms", "start"] == 5.0
    assert lost["world forms", "crash"] == pytest.approx(0.2)
    assert lost["step made again", "crash"] == pytest.approx(0.3)
    assert lost["slow rank", "straggler"] == 4.0
    # Three ranks of four made the steps of the second world.
    assert lost["too few ranks", "crash"] == pytest.approx(36.0 / 4)
    assert lost["checkpoint", "save"] == 0.5
    assert lost["script between steps", "script"] == 1.0
    assert ledger.effective_s == pytest.approx(50 + 27 + 5)
    assert lost["not accounted for", "unknown"] == pytest.approx(110 - 102.1)


@given(WORLDS, st.floats(0.0, 1e5))
def test_all_time_is_accounted_for_and_none_twice(worlds, more_s):
    spent = math.fsum(
        w.account.forming_s
        + w.account.redone_s
        + w.account.steps_s
        + w.account.outside_s
        + w.account.saving_s
        for w in worlds
    )
    ledger = account_for(spent + more_s, worlds)
    assert all(row.seconds > 0 for row in ledger.lost)
    total = ledger.effective_s + math.fsum(row.seconds for row in ledger.lost)
    assert total == pytest.approx(spent + more_s, rel=1e-6, abs=1e-6)
    assert 0 <= ledger.effective_s <= (spent + more_s) * (1 + 1e-9)


def reached(first, last):
    return Account(
        first_step=first, last_step=last, first_sample=8 * first, last_sample=8 * last
    )


@pytest.mark.parametrize(
    ("spans", "num_steps"),
    [
        ([], 0),
        ([(0, 20)], 20),
        # Of a world whose ranks have all died not all was told.
        ([(0, 7), (10, 20)], 20),
        # One was restored from a checkpoint, or began with one.
        ([(0, 17), (10, 20)], 20),
        ([(300, 310), (310, 320)], 20),
        # Nobody has told of one.
        ([(0, 5), (0, 0), (5, 20), (0, 0)], 20),
    ],
)
def test_steps_and_samples_that_count_are_counted_once(spans, num_steps):
    worlds = [
        WorldFacts(at, 2, "start", "", reached(*span)) for at, span in enumerate(spans)
    ]
    ledger = account_for(9.0, worlds)
    assert (ledger.num_steps, ledger.num_samples) == (num_steps, 8 * num_steps)


def test_how_far_a_world_is_says_whoever_is_furthest():
    found = typical_account([reached(2, 4), reached(2, 9), reached(2, 3)])
    assert found == reached(2, 9)


def test_no_time_is_no_effective_time():
    assert account_for(0.0, []).effective_s == 0.0


def test_a_rank_that_lies_does_not_change_the_account():
    honest = Account(0.1, 0.0, 5.0)
    lies = Account(math.nan, -5.0, 1e9)
    found = typical_account([honest, honest, lies])
    assert found == honest


def test_nobody_has_an_empty_account():
    assert typical_account([]) == Account()
