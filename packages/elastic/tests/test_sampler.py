"""No sample is lost or read twice, however the world changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from drivetrain_core import CheckpointError
from drivetrain_elastic import ElasticDistributedSampler


def samplers(num, world_size, **options):
    return [
        ElasticDistributedSampler(range(num), world_size, rank, **options)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("num", "world"), [(1, 1), (1, 3), (10, 3), (12, 4), (2, 5)])
def test_sampler_is_torchs_while_nothing_changes(num, world, shuffle, drop_last):
    for epoch in (0, 1, 5):
        for rank in range(world):
            arguments = (range(num), world, rank, shuffle, 7, drop_last)
            ours, theirs = (
                kind(*arguments)
                for kind in (ElasticDistributedSampler, DistributedSampler)
            )
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            wanted = list(theirs)
            if num < world and drop_last:
                # Torch's has no way to say that there is nothing for anybody.
                wanted = []
            assert len(ours) == len(wanted)
            assert list(ours) == wanted
            # Again, as a loop does that forgets to set the epoch.
            assert list(ours) == wanted


def consume(members, num_each):
    """Each rank reads so many, and says so; returns what they read."""
    passes = [iter(one) for one in members]
    read = [next(it) for _ in range(num_each) for it in passes]
    for one in members:
        one.advance(len(read))
    return read


@settings(max_examples=300, deadline=None)
@given(data=st.data(), num=st.integers(1, 200), seed=st.integers(0, 2**31))
def test_sampler_reads_each_sample_once_for_any_worlds(data, num, seed):
    state, read = None, []
    for _ in range(data.draw(st.integers(0, 4))):
        world = data.draw(st.integers(1, 9))
        members = samplers(num, world, seed=seed, even=False)
        for one in members if state else ():
            one.load_state_dict(state)
        num_each = data.draw(st.integers(0, min(map(len, members))))
        read += consume(members, num_each)
        states = [one.state_dict() for one in members]
        assert all(one == states[0] for one in states)
        state = states[data.draw(st.integers(0, world - 1))]
        assert state["position"] == len(read)
    world = data.draw(st.integers(1, 9))
    members = samplers(num, world, seed=seed, even=False)
    for one in members:
        if state:
            one.load_state_dict(state)
        read += list(one)
    assert sorted(read) == list(range(num))


@given(data=st.data(), num=st.integers(1, 60), world=st.integers(1, 7))
def test_even_sampler_repeats_fewer_samples_than_there_are_ranks(data, num, world):
    before = data.draw(st.integers(1, 7))
    members = samplers(num, before)
    num_each = data.draw(st.integers(0, num // before))
    read = consume(members, num_each)
    resumed = samplers(num, world)
    for one in resumed:
        one.load_state_dict(members[0].state_dict())
    rest = [list(one) for one in resumed]
    assert len({len(part) for part in rest}) == 1
    read += [index for part in rest for index in part]
    assert set(read) == set(range(num))
    assert len(read) < num + world


@given(data=st.data(), num=st.integers(1, 60), world=st.integers(1, 7))
def test_dropping_sampler_leaves_out_fewer_samples_than_there_are_ranks(
    data, num, world
):
    before = data.draw(st.integers(1, 7))
    members = samplers(num, before, drop_last=True)
    read = consume(members, data.draw(st.integers(0, num // before)))
    for one in samplers(num, world, drop_last=True):
        one.load_state_dict(members[-1].state_dict())
        read += list(one)
    assert len(set(read)) == len(read) > num - world


def test_sampler_counts_what_it_is_told_while_a_loader_reads_ahead():
    sampler = ElasticDistributedSampler(range(100), 2, 0, shuffle=False)
    it = iter(sampler)
    for _ in range(20):
        next(it)
    assert sampler.position == 0
    sampler.advance(8)
    assert sampler.position == 8
    sampler.advance(8)
    assert sampler.state_dict()["position"] == 16
    list(it)
    assert sampler.position == 16


@pytest.mark.parametrize("wrong", [-1, 101])
def test_sampler_cannot_advance_beyond_the_epoch(wrong):
    sampler = ElasticDistributedSampler(range(100), 2, 0)
    iter(sampler)
    with pytest.raises(ValueError, match=f"100 samples left cannot advance {wrong}"):
        sampler.advance(wrong)
    assert sampler.position == 0


def test_sampler_of_an_epoch_that_was_finished_has_nothing_left():
    first = ElasticDistributedSampler(range(10), 1, 0)
    first.set_epoch(3)
    list(first)
    first.advance(10)
    second = ElasticDistributedSampler(range(10), 2, 1)
    second.load_state_dict(first.state_dict())
    assert (second.epoch, second.position, len(second)) == (3, 10, 0)
    second.set_epoch(3)
    assert list(second) == []
    second.set_epoch(4)
    assert len(list(second)) == 5


def test_sampler_advances_from_a_position_that_was_loaded():
    sampler = ElasticDistributedSampler(range(10), 1, 0, shuffle=False)
    sampler.load_state_dict({**sampler.state_dict(), "position": 7})
    sampler.advance(2)
    assert sampler.position == 9
    with pytest.raises(ValueError, match="1 samples left"):
        sampler.advance(2)
    assert list(sampler) == [9]


def test_sampler_begins_at_a_position_once():
    sampler = ElasticDistributedSampler(range(10), 1, 0, shuffle=False)
    state = {**sampler.state_dict(), "position": 7}
    sampler.load_state_dict(state)
    assert list(sampler) == [7, 8, 9]
    assert list(sampler) == list(range(10))


def test_sampler_deals_to_another_world_from_where_it_is():
    sampler = ElasticDistributedSampler(range(12), 4, 3, shuffle=False)
    it = iter(sampler)
    assert [next(it), next(it)] == [3, 7]
    sampler.advance(8)
    sampler.load_state_dict(sampler.state_dict())
    sampler.resize(2, 0)
    assert list(sampler) == [8, 10]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"num_samples": 11}, "num_samples 11"),
        ({"seed": 5}, "seed 5"),
        ({"shuffle": False}, "shuffle False"),
        ({"position": 11}, "position 11"),
        ({"position": -1}, "position -1"),
        ({"position": 1.5}, "position 1.5"),
        ({"position": None}, "position None"),
        ({"epoch": -1}, "epoch -1"),
        ({"epoch": "2"}, "epoch '2'"),
    ],
)
def test_sampler_refuses_a_state_of_other_data(change, says):
    sampler = ElasticDistributedSampler(range(10), 2, 0)
    sampler.set_epoch(1)
    before = sampler.state_dict()
    with pytest.raises(CheckpointError, match=says):
        sampler.load_state_dict({**before, **change})
    assert sampler.state_dict() == before


@pytest.mark.parametrize(("world", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_sampler_refuses_a_rank_that_there_is_not(world, rank):
    with pytest.raises(ValueError, match=f"no rank {rank} among {world}"):
        ElasticDistributedSampler(range(4), world, rank)


def test_sampler_refuses_an_empty_dataset():
    with pytest.raises(ValueError, match="empty"):
        ElasticDistributedSampler([], 1, 0)


def test_sampler_state_is_plain_data():
    import json

    state = ElasticDistributedSampler(range(4), 1, 0).state_dict()
    assert json.loads(json.dumps(state)) == state


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_batches", [0, 1, 3, 6])
def test_sampler_in_a_stateful_loader_of_torchdata(num_workers, num_batches):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loaders(world):
        return [
            stateful.StatefulDataLoader(
                torch.arange(50), batch_size=3, sampler=sampler, num_workers=num_workers
            )
            for sampler in samplers(50, world, even=False)
        ]

    read, before = [], loaders(2)
    passes = [iter(loader) for loader in before]
    for _ in range(num_batches):
        read += [x for it in passes for x in next(it).tolist()]
    states = [loader.state_dict() for loader in before]
    after = loaders(3)
    for rank, loader in enumerate(after):
        loader.load_state_dict(states[rank % 2])
        read += [x for batch in loader for x in batch.tolist()]
    assert sorted(read) == list(range(50))


def test_sampler_in_a_plain_loader():
    sampler = ElasticDistributedSampler(range(20), 2, 1, shuffle=False)
    loader = DataLoader(torch.arange(20), batch_size=4, sampler=sampler)
    it = iter(loader)
    assert next(it).tolist() == [1, 3, 5, 7]
    sampler.advance(8)
    assert sampler.position == 8
