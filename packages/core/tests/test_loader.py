"""Loaders: every row once over the ranks, the same order, other settings."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from drivetrain_core import ProgramError
from drivetrain_core._data.loader import DeviceLoader, rebuild_loader, undisturbed
from drivetrain_core._data.rank_loader import rank_loader
from drivetrain_core.services.batch_plan import BatchPlan

SIZES = st.integers(0, 40), st.integers(1, 9), st.integers(1, 4)


def torch_loader(num_rows, batch_size, **options):
    rows = torch.arange(num_rows)
    return DataLoader(TensorDataset(rows, -rows), batch_size=batch_size, **options)


def listed(num_rows, batch_size):
    rows = torch.arange(num_rows)
    return [(part, -part) for part in rows.split(batch_size) if len(part)]


def parts(make, kind, num_rows, batch_size, world_size, seed=0):
    """Returns the rows of each batch of each rank."""
    plan = BatchPlan(world_size=world_size, global_batch=batch_size)
    ranks = []
    for rank in range(world_size):
        # Ranks are processes of their own: their global seeds differ.
        torch.manual_seed(100 + rank)
        loader = rank_loader(make(num_rows, batch_size), kind, plan, rank, seed)
        ranks.append(loader)
    return [[batch[0].tolist() for batch in loader] for loader in ranks], ranks


def joined(ranks, step):
    """Returns the rows of a step over all ranks, in the order of the ranks."""
    return [row for batches in ranks if step < len(batches) for row in batches[step]]


@settings(deadline=None, max_examples=60)
@given(*SIZES, st.sampled_from(["torch", "iterable"]))
def test_ranks_share_each_batch_and_miss_at_most_the_rest_of_the_tail(
    num_rows, batch_size, world_size, kind
):
    batch_size = max(batch_size, world_size)
    make = torch_loader if kind == "torch" else listed
    ranks, _ = parts(make, kind, num_rows, batch_size, world_size)
    full, tail = divmod(num_rows, batch_size)
    for step in range(full):
        start = step * batch_size
        assert joined(ranks, step) == list(range(start, start + batch_size))
        sizes = [len(batches[step]) for batches in ranks]
        assert max(sizes) - min(sizes) <= 1
    share = tail // world_size
    if batch_size % world_size and share == batch_size // world_size:
        share -= 1  # else a rank could not tell this batch from a full one
    for rank, batches in enumerate(ranks):
        assert len(batches) == full + (share > 0)
        if share:
            begin = full * batch_size + rank * share
            assert batches[-1] == list(range(begin, begin + share))


@settings(deadline=None, max_examples=30)
@given(*SIZES)
def test_length_is_the_number_of_batches(num_rows, batch_size, world_size):
    batch_size = max(batch_size, world_size)
    ranks, loaders = parts(torch_loader, "torch", num_rows, batch_size, world_size)
    assert [len(loader) for loader in loaders] == [len(batches) for batches in ranks]


@pytest.mark.parametrize("kind", ["torch", "iterable", "sharded"])
def test_one_rank_gets_the_loader_itself(kind):
    data = torch_loader(6, 2)
    plan = BatchPlan(world_size=1, global_batch=2)
    assert rank_loader(data, kind, plan, 0, 0) is data


def test_sharded_loader_is_left_alone():
    data = torch_loader(6, 2)
    plan = BatchPlan(world_size=2, global_batch=2)
    assert rank_loader(data, "sharded", plan, 1, 0) is data


def epochs(loader, number=2):
    return [
        [row for batch in loader for row in batch[0].tolist()] for _ in range(number)
    ]


def test_shuffle_is_the_same_on_all_ranks_and_new_each_epoch():
    def make(num_rows, batch_size):
        return torch_loader(num_rows, batch_size, shuffle=True)

    _, loaders = parts(make, "torch", 12, 4, 2, seed=3)
    first, second = (epochs(loader) for loader in loaders)
    for one, other in zip(first, second, strict=True):
        assert sorted(one + other) == list(range(12))
    assert first[0] != first[1]
    _, again = parts(make, "torch", 12, 4, 2, seed=3)
    assert epochs(again[0]) == first
    _, differently = parts(make, "torch", 12, 4, 2, seed=4)
    assert epochs(differently[0]) != first


def test_shuffle_with_the_users_generator_follows_it():
    def make(num_rows, batch_size):
        generator = torch.Generator().manual_seed(7)
        return torch_loader(num_rows, batch_size, shuffle=True, generator=generator)

    ranks, _ = parts(make, "torch", 12, 4, 2, seed=0)
    alone = [batch[0].tolist() for batch in make(12, 4)]
    assert [joined(ranks, step) for step in range(3)] == alone


def test_shuffle_keeps_replacement_number_and_drop_last():
    rows = TensorDataset(torch.arange(5))
    sampler = RandomSampler(rows, replacement=True, num_samples=11)
    loader = DataLoader(rows, batch_size=4, sampler=sampler, drop_last=True)
    plan = BatchPlan(world_size=2, global_batch=4)
    sharded = rank_loader(loader, "torch", plan, 0, 0)
    assert [len(batch[0]) for batch in sharded] == [2, 2]


def test_iterable_keeps_structure_and_what_is_no_batch():
    data = [{"x": torch.arange(4), "scale": torch.tensor(2.0), "note": "n"}]
    plan = BatchPlan(world_size=2, global_batch=4)
    (batch,) = rank_loader(data, "iterable", plan, 1, 0)
    assert batch["x"].tolist() == [2, 3]
    assert (batch["scale"].item(), batch["note"]) == (2.0, "n")


def test_iterable_without_length_has_none():
    plan = BatchPlan(world_size=2, global_batch=4)
    assert len(rank_loader(listed(8, 4), "iterable", plan, 0, 0)) == 2
    with pytest.raises(TypeError, match="has no len"):
        len(rank_loader((x for x in ()), "iterable", plan, 0, 0))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_rebuild_keeps_samples_and_order_with_workers():
    loader = torch_loader(10, 3, shuffle=True)
    rebuilt = rebuild_loader(loader, num_workers=2, prefetch_factor=3)
    torch.manual_seed(5)
    expected = [batch[0].tolist() for batch in loader]
    torch.manual_seed(5)
    assert [batch[0].tolist() for batch in rebuilt] == expected
    assert (rebuilt.num_workers, rebuilt.prefetch_factor) == (2, 3)
    assert rebuilt.dataset is loader.dataset


def collate(samples):
    return [row.item() for row, _ in samples]


def prepare(worker):
    del worker


def test_rebuild_keeps_every_other_setting():
    loader = torch_loader(
        6,
        2,
        collate_fn=collate,
        num_workers=1,
        timeout=9,
        worker_init_fn=prepare,
        prefetch_factor=5,
        persistent_workers=True,
        multiprocessing_context="fork",
        generator=torch.Generator(),
        in_order=False,
        drop_last=True,
    )
    rebuilt = rebuild_loader(loader)
    kept = (
        *("collate_fn", "num_workers", "timeout", "worker_init_fn", "prefetch_factor"),
        *("persistent_workers", "multiprocessing_context", "generator", "in_order"),
        *("batch_sampler", "pin_memory"),
    )
    for name in kept:
        assert getattr(rebuilt, name) == getattr(loader, name), name


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_rebuild_without_workers_drops_what_only_workers_have():
    loader = torch_loader(
        4,
        2,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        timeout=5,
        multiprocessing_context="fork",
    )
    rebuilt = rebuild_loader(loader, num_workers=0)
    assert [batch[0].tolist() for batch in rebuilt] == [[0, 1], [2, 3]]


class Counting(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([1], "got list"),
        (DataLoader(Counting(), batch_size=2), "batches indices .*, of Counting"),
        (torch_loader(4, None), "batches indices .*, of TensorDataset"),
    ],
    ids=["list", "iterable dataset", "no batches"],
)
def test_rebuild_of_what_cannot_be_rebuilt_is_an_error(loader, words):
    with pytest.raises(ProgramError, match=words):
        rebuild_loader(loader, num_workers=0)


class Noted(list):
    """A loader with a name and an epoch of its own."""

    name = "noted"

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_device_loader_moves_batches_and_passes_the_rest_through():
    noted = Noted([(torch.zeros(2), "a"), (torch.ones(1), "b")])
    loader = DeviceLoader(noted, torch.device("meta"))
    batches = list(loader)
    assert [batch[0].device.type for batch in batches] == ["meta", "meta"]
    assert [batch[1] for batch in batches] == ["a", "b"]
    assert len(loader) == 2
    assert loader.name == "noted"
    loader.set_epoch(3)
    assert noted.epoch == 3
    with pytest.raises(AttributeError, match="no_such"):
        _ = loader.no_such


@pytest.mark.parametrize("clone", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_device_loader_can_be_copied(clone):
    # A `__getattr__` that looks at itself before it is filled would never end.
    loader = clone(DeviceLoader([torch.zeros(2)], torch.device("cpu")))
    assert len(list(loader)) == 1


def test_device_loader_without_length_has_none():
    with pytest.raises(TypeError, match="no len"):
        len(DeviceLoader(iter([]), torch.device("cpu")))


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 9), (3, 8), (2, 3)])
def test_rank_can_tell_a_full_batch_from_any_other_by_its_rows(world_size, batch_size):
    plan = BatchPlan(world_size=world_size, global_batch=batch_size)
    full = {plan.for_rank(rank).size for rank in range(world_size)}
    for size in {*range(1, 3 * batch_size)} - {batch_size}:
        batches = [torch.arange(batch_size), torch.arange(size)]
        loaders = [
            list(rank_loader(batches, "iterable", plan, rank, 0))
            for rank in range(world_size)
        ]
        others = [len(batch) for loader in loaders for batch in loader[1:]]
        assert len(set(others)) <= 1
        assert not full & set(others)


class Resuming:
    """A loader that goes on where its last iteration ended."""

    def __init__(self):
        self.place, self.seen = 0, []

    def __iter__(self):
        while self.place < 4:
            self.place += 1
            self.seen.append(self.place)
            yield torch.full((2,), self.place)


def test_looking_at_a_batch_of_a_loader_that_counts_takes_none():
    loader = Resuming()
    with undisturbed(loader):
        assert next(iter(loader)).tolist() == [1, 1]
    assert [batch[0].item() for batch in loader] == [1, 2, 3, 4]
    assert loader.seen == [1, 2, 3, 4]
