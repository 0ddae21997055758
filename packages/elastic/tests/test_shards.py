"""Every sample of every epoch is committed once or in a dead letter, whatever happens."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.shards import (
    Appended,
    Closed,
    Committed,
    DatasetSpec,
    DatasetState,
    Returned,
    append,
    commit,
    give_back,
    lease,
    num_with_indices,
    return_of,
)

WORKERS = ["a", "b", "c"]


def spec(**changes):
    usual = {"name": "d", "num_samples": 10, "shard_size": 4, "shuffle": "none"}
    return DatasetSpec(**{**usual, **changes})


class Master:
    """Decides, journals and applies, and keeps what was committed."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.state = DatasetState(spec=dataset)
        self.journal = []
        self.read = Counter()

    def do(self, *events):
        for event in events:
            if isinstance(event, Committed):
                shard = self.state.leased[event.fence].shard
                for place in range(shard.start, event.upto):
                    self.read[shard.epoch, place] += 1
            self.state.apply(event)
            self.journal.append(event)

    def restart(self):
        again = DatasetState(spec=self.dataset)
        for event in self.journal:
            again.apply(event)
        assert again == self.state
        self.state = again

    def account(self):
        """All places of leased, waiting and dead shards."""
        shards = [one.shard for one in self.state.leased.values()]
        shards += [*self.state.waiting, *(shard for shard, _ in self.state.dead)]
        return Counter((s.epoch, p) for s in shards for p in range(s.start, s.end))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    num=st.integers(1, 30),
    size=st.integers(1, 9),
    num_epochs=st.integers(1, 3),
    most=st.integers(0, 3),
)
def test_shards_are_read_once_whatever_happens(data, num, size, num_epochs, most):
    dataset = spec(
        num_samples=num, shard_size=size, num_epochs=num_epochs, max_failures=most
    )
    master = Master(dataset)
    for _ in range(data.draw(st.integers(0, 40))):
        state = master.state
        what = data.draw(
            st.sampled_from(["lease", "commit", "lost", "again", "repeat"])
        )
        if what == "lease":
            worker = data.draw(st.sampled_from(WORKERS))
            event = lease(state, worker, data.draw(st.integers(1, 3)))
            master.do(*([event] if event else []))
        elif what == "commit" and state.leased:
            one = state.leased[data.draw(st.sampled_from(sorted(state.leased)))]
            upto = data.draw(st.integers(one.shard.start, one.shard.end))
            event, why = commit(state, one.worker, one.fence, upto)
            assert not why
            master.do(*([event] if event else []))
        elif what == "lost":
            gone = data.draw(st.sets(st.sampled_from(WORKERS)))
            failed = data.draw(st.booleans())
            master.do(*return_of(state, gone, failed=failed, reason="gone"))
            assert not gone & {one.worker for one in state.leased.values()}
        elif what == "repeat" and state.done:
            fences = [f for ends in state.done.ranges for f in range(*ends)]
            fence = data.draw(st.sampled_from(fences))
            assert commit(state, "a", fence, num) == (None, "")
        else:
            master.restart()
    finish(master)
    every = {(e, place) for e in range(num_epochs) for place in range(num)}
    together = master.read + master.account()
    assert set(together) == every
    assert set(together.values()) == {1}
    assert master.state.num_samples_done == master.read.total()


def finish(master):
    """One worker reads what is left."""
    master.do(*return_of(master.state, WORKERS, failed=False, reason="end"))
    while (event := lease(master.state, "last", 2)) is not None:
        master.do(event)
        for one in event.leases:
            done, why = commit(master.state, "last", one.fence, one.shard.end)
            assert not why
            master.do(done)
    assert master.state.is_finished


def test_what_came_back_is_leased_first_and_only_the_rest_of_it():
    master = Master(spec())
    master.do(lease(master.state, "a", 1))
    master.do(commit(master.state, "a", 1, 3)[0])
    master.do(*return_of(master.state, ["a"], failed=True, reason="killed"))
    event = lease(master.state, "b", 2)
    ranges = [(one.shard.start, one.shard.end, one.fence) for one in event.leases]
    assert ranges == [(3, 4, 2), (4, 8, 3)]


def test_report_under_an_ended_lease_does_not_count():
    master = Master(spec())
    master.do(lease(master.state, "a", 1))
    master.do(*return_of(master.state, ["a"], failed=False, reason="partition"))
    master.do(lease(master.state, "b", 1))
    assert commit(master.state, "a", 1, 4) == (None, "lease 1 of dataset 'd' has ended")
    event, why = commit(master.state, "a", 2, 4)
    assert event is None
    assert why == "lease 2 is held by b, not by a"


@pytest.mark.parametrize("upto", [-1, 5])
def test_report_of_a_place_outside_the_shard_does_not_count(upto):
    master = Master(spec())
    master.do(lease(master.state, "a", 1))
    event, why = commit(master.state, "a", 1, upto)
    assert event is None
    assert f"place {upto} does not lie in the shard from 0 to 4" in why


def test_return_that_is_repeated_is_right_and_changes_nothing():
    master = Master(spec())
    master.do(lease(master.state, "a", 2))
    master.do(commit(master.state, "a", 1, 4)[0])

    def back(worker, *fences):
        events, whys = give_back(
            master.state, worker, fences, failed=True, reason="ill"
        )
        master.do(*events)
        return [event.fence for event in events], whys

    done = "all samples of lease 1 are committed"
    assert back("a", 2, 2, 1) == ([2], ["", "", done])
    assert back("a", 2, 1) == ([], ["", done])
    master.do(lease(master.state, "b", 2))
    theirs = "lease 3 is held by b, not by a"
    none = [f"dataset 'd' has had no lease {fence}" for fence in (9, 0)]
    assert back("a", 2, 3, 9, 0) == ([], ["", theirs, *none])
    assert back("b", 3) == ([3], [""])
    assert sum(shard.num_failures for shard in master.state.waiting) == 2
    # What came back counts under its new lease only.
    assert commit(master.state, "a", 2, 8)[1] == "lease 2 of dataset 'd' has ended"


@pytest.mark.parametrize("upto", [2, 4])
def test_commit_that_is_repeated_is_right_and_changes_nothing(upto):
    master = Master(spec())
    master.do(lease(master.state, "a", 1))
    master.do(commit(master.state, "a", 1, upto)[0])
    assert commit(master.state, "a", 1, upto) == (None, "")
    master.restart()
    assert commit(master.state, "a", 1, upto) == (None, "")
    assert master.state.num_samples_done == upto


def test_shard_that_fails_too_often_is_a_dead_letter_with_its_reason():
    master = Master(spec(max_failures=1))
    for _ in range(2):
        master.do(lease(master.state, "a", 1))
        master.do(*return_of(master.state, ["a"], failed=True, reason="it crashed"))
    ((shard, reason),) = master.state.dead
    assert (shard.start, shard.end, shard.num_failures) == (0, 4, 2)
    assert reason == "it crashed"
    finish(master)
    assert set(master.read) == {(0, place) for place in range(4, 10)}


def test_shard_of_a_node_that_was_taken_away_never_dies():
    master = Master(spec(max_failures=0))
    for _ in range(20):
        master.do(lease(master.state, "a", 1))
        master.do(*return_of(master.state, ["a"], failed=False, reason="spot"))
    assert not master.state.dead


def test_epochs_follow_without_end_if_none_is_named():
    master = Master(spec(num_samples=3, num_epochs=None))
    event = lease(master.state, "a", 5)
    assert [one.shard.epoch for one in event.leases] == [0, 1, 2, 3, 4]
    assert not master.state.is_finished


def test_source_that_grows_deals_whole_shards_until_it_is_closed():
    master = Master(spec(num_samples=None))
    assert lease(master.state, "a", 1) is None
    assert not master.state.is_finished or master.state.is_closed is False
    master.do(append(master.state, 6)[0])
    event = lease(master.state, "a", 9)
    assert [(one.shard.start, one.shard.end) for one in event.leases] == [(0, 4)]
    master.do(event, Closed())
    event = lease(master.state, "a", 9)
    assert [(one.shard.start, one.shard.end) for one in event.leases] == [(4, 6)]
    assert append(master.state, 1) == (None, "dataset 'd' grows no more")


def test_source_cannot_shrink():
    state = DatasetState(spec=spec(num_samples=None))
    assert append(state, 1) == (Appended(1), "")
    assert append(state, 0)[0] is None


def test_source_grows_no_further_than_its_numbers_can_be_told():
    master = Master(spec(num_samples=None))
    master.do(append(master.state, (1 << 60) - 1)[0])
    event, why = append(master.state, 2)
    assert event is None
    assert f"can have {1 << 60}: not 2 more" in why
    assert append(master.state, 1)[0] == Appended(1)


@pytest.mark.parametrize("shuffle", ["none", "samples", "shards"])
def test_worker_gets_a_bounded_number_of_shards_at_once(shuffle):
    master = Master(spec(num_samples=1 << 40, shuffle=shuffle))
    for _ in range(2):
        event = lease(master.state, "a", 1 << 31)
        assert len(event.leases) == 1000
        master.do(event)
    master.do(*return_of(master.state, ["a"], failed=False, reason="gone"))
    event = lease(master.state, "b", 1 << 31)
    assert [one.shard.number for one in event.leases] == list(range(1000))


@pytest.mark.parametrize(
    ("num", "size", "num_shards", "fits"),
    [
        (10, 4, 3, 3),
        (1 << 40, 1 << 10, 5000, 1 << 10),
        (1 << 40, 1 << 20, 5, 1),
        (3, 1 << 60, 5, 5),
        (None, 1 << 19, 5, 2),
        (10, 4, 0, 0),
    ],
)
def test_reply_has_room_for_the_indices_of_its_shards(num, size, num_shards, fits):
    dataset = spec(num_samples=num, shard_size=size)
    assert num_with_indices(dataset, num_shards) == fits


@pytest.mark.parametrize("num", [1 << 60, None])
def test_shard_that_is_too_large_for_its_indices_says_so(num):
    dataset = spec(num_samples=num, shard_size=(1 << 20) + 1)
    with pytest.raises(ProgramError, match="1048577 samples is too large for a reply"):
        num_with_indices(dataset, 1)


def test_growth_that_is_repeated_counts_once_among_many(monkeypatch):
    monkeypatch.setattr("drivetrain_elastic.decisions.shards._MOST_CALLERS", 2)
    master = Master(spec(num_samples=None))
    for caller, call in (("a", 1), ("b", 1), ("a", 2), ("", 0), ("", 0)):
        master.do(append(master.state, 1, caller, call)[0])
    for caller, call in (("a", 1), ("a", 2), ("b", 1)):
        assert append(master.state, 1, caller, call) == (None, "")
    # One that has not grown for long is forgotten: b, not a.
    master.do(append(master.state, 1, "c", 1)[0])
    assert list(master.state.growths.items()) == [("a", 2), ("c", 1)]
    master.restart()
    assert master.state.num_samples == 6
    assert "numbered from 1, got 0" in append(master.state, 1, "a", 0)[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "name"),
        ({"num_samples": (1 << 60) + 1}, "num_samples must be at most"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"shard_size": 0}, "shard_size must be at least 1, got 0"),
        ({"num_epochs": 0}, "num_epochs must be at least 1, got 0"),
        ({"max_failures": -1}, "max_failures must be at least 0, got -1"),
        ({"shuffle": "some"}, "shuffle must be one of none, samples, shards"),
        ({"num_samples": None, "num_epochs": 2}, "grows"),
        ({"num_samples": None, "shuffle": "samples"}, "grows"),
    ],
)
def test_dataset_says_what_is_wrong_with_it(changes, says):
    with pytest.raises(ProgramError, match=says):
        spec(**changes)


def test_failures_are_counted_by_those_that_may_be_the_cause():
    master = Master(spec())
    master.do(lease(master.state, "a", 1))
    master.do(Returned(1, False, "spot"))
    master.do(lease(master.state, "a", 1))
    master.do(Returned(2, True, "killed"))
    assert master.state.waiting[0].num_failures == 1
