"""Loaders of several ranks: each sample once, in one order, however it was drawn."""

# ruff: noqa: NPY002 - what data sets in the field draw from.

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
)

from drivetrain_core import DrivetrainError, ProgramError, accelerate
from drivetrain_core._data.rank_loader import AgreedLoader, rank_loader
from drivetrain_core.services.batch_plan import BatchPlan
from drivetrain_testing import run_ranks

NUM_ROWS, BATCH = 24, 6
ROWS = TensorDataset(torch.arange(NUM_ROWS))
PLAN = BatchPlan(world_size=2, global_batch=BATCH)


class Drawn:
    """A sampler, or batches of indices, drawn from one of the global random states."""

    def __init__(self, draw, batch_size=0):
        self.draw, self.batch_size_of = draw, batch_size

    def __iter__(self):
        order = self.draw()
        size = self.batch_size_of
        batches = [order[at : at + size] for at in range(0, len(order), size or 99)]
        return iter(batches if size else order)

    def __len__(self):
        return NUM_ROWS // self.batch_size_of if self.batch_size_of else NUM_ROWS


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randperm(NUM_ROWS).unsqueeze(1))


class Own(DataLoader):
    pass


def by_torch():
    return torch.randperm(NUM_ROWS).tolist()


def by_numpy():
    return np.random.permutation(NUM_ROWS).tolist()


def by_python():
    return random.sample(range(NUM_ROWS), NUM_ROWS)


def one_by_one():
    """Draws each index when it is asked for, between the draws of other things."""
    left = list(range(NUM_ROWS))
    while left:
        yield left.pop(int(torch.randint(len(left), ())))


class Lazy(Drawn):
    def __iter__(self):
        return self.draw()


LOADERS = {
    "torch": lambda: DataLoader(ROWS, BATCH, sampler=Drawn(by_torch)),
    "numpy": lambda: DataLoader(ROWS, BATCH, sampler=Drawn(by_numpy)),
    "python": lambda: DataLoader(ROWS, BATCH, sampler=Drawn(by_python)),
    "lazy": lambda: DataLoader(ROWS, BATCH, sampler=Lazy(one_by_one)),
    "subset": lambda: DataLoader(
        ROWS, BATCH, sampler=SubsetRandomSampler(range(NUM_ROWS))
    ),
    "batches": lambda: DataLoader(ROWS, batch_sampler=Drawn(by_numpy, BATCH)),
    "subclass": lambda: Own(ROWS, BATCH, shuffle=True),
    "stream": lambda: DataLoader(Stream(), BATCH),
}
INDEXED = ("torch", "numpy", "python", "lazy", "subset", "batches")


def disturb():
    """What models and loops draw between two batches."""
    torch.rand(3), np.random.rand(), random.random()


def first(batch):
    rows = batch[0] if isinstance(batch, list) else batch
    return rows.reshape(-1, 1).float()


def rows_of(loader):
    found = []
    for batch in loader:
        disturb()
        found.append(first(batch).flatten().int().tolist())
    return found


@pytest.mark.parametrize("name", LOADERS)
def test_each_sample_comes_once_an_epoch_whatever_draws_the_order(name):
    kind = "indexed" if name in INDEXED else "iterable"
    epochs = []
    for rank in range(2):
        torch.manual_seed(rank), np.random.seed(rank), random.seed(rank)
        loader = rank_loader(LOADERS[name](), kind, PLAN, rank, seed=5)
        epochs.append([rows_of(loader) for _ in range(2)])
    for one, other in zip(*epochs, strict=True):
        assert sorted(itertools.chain(*one, *other)) == list(range(NUM_ROWS))
    assert epochs[0][0] != epochs[0][1]


def test_drawing_leaves_the_global_random_states_alone():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(()).item(), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    part = rank_loader(LOADERS["numpy"](), "indexed", PLAN, 0, seed=5)
    list(agreed([part, part], (0, 1))[0])
    assert (torch.rand(()).item(), np.random.rand(), random.random()) == expected


@pytest.mark.parametrize("sizes", [(5, 6), (6, 3, 6)])
def test_batch_that_would_lose_samples_before_the_end_is_refused(sizes):
    batches = [torch.arange(size) for size in sizes]
    loader = rank_loader(batches, "iterable", PLAN, 0, seed=0)
    with pytest.raises(
        ProgramError, match=rf"batch of {min(sizes)} samples .* 2 ranks"
    ):
        list(loader)


class Notice:
    """Notes of two ranks in one process."""

    def __init__(self, rank, notes):
        self.rank, self.notes = rank, notes

    def write(self, note):
        self.notes[self.rank] = note

    def read(self):
        return list(self.notes.values()) if len(self.notes) == 2 else None


def agreed(loaders, data_ranks, notes=None):
    notes = {} if notes is None else notes
    return [
        AgreedLoader(loader, data_rank, 0, Notice(rank, notes))
        for rank, (loader, data_rank) in enumerate(
            zip(loaders, data_ranks, strict=True)
        )
    ]


def alternate(loaders, num_passes=1):
    for _ in range(num_passes):
        yield from zip(*loaders, strict=False)


def test_ranks_that_draw_alike_agree():
    halves = [rank_loader(LOADERS["torch"](), "indexed", PLAN, r, 3) for r in (0, 1)]
    for loaders in (halves, [LOADERS["torch"]() for _ in range(2)]):
        seen = list(alternate(agreed(loaders, (0, 1)), num_passes=3))
        assert len(seen) == 12


class Noisy(Dataset):
    """Samples with a part that is drawn where the caller says."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return NUM_ROWS

    def __getitem__(self, index):
        return torch.tensor([float(index), self.draw()])


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_ranks_of_one_model_get_the_same_noise_and_those_of_others_another(draw):
    same = agreed([DataLoader(Noisy(draw), BATCH) for _ in range(2)], (0, 0))
    assert all(torch.equal(a, b) for a, b in alternate(same))
    apart = agreed([DataLoader(Noisy(draw), BATCH) for _ in range(2)], (0, 1))
    assert not any(torch.equal(a[:, 1], b[:, 1]) for a, b in alternate(apart))


def test_noise_that_no_rank_can_share_is_told_for_one_model():
    own = [np.random.default_rng(rank).random for rank in range(2)]
    loaders = [DataLoader(Noisy(draw), BATCH) for draw in own]
    with pytest.raises(ProgramError, match="ranks 0 and 1 hold parts of one model"):
        list(alternate(agreed(loaders, (0, 0))))
    assert len(list(alternate(agreed(loaders, (0, 1))))) == NUM_ROWS // BATCH


def test_order_that_ranks_do_not_share_is_told():
    orders = [Drawn(np.random.default_rng(r).permutation(24).tolist) for r in (0, 1)]
    loaders = [
        rank_loader(DataLoader(ROWS, BATCH, sampler=order), "indexed", PLAN, rank, 0)
        for rank, order in enumerate(orders)
    ]
    with pytest.raises(ProgramError, match="drew other samples as batch 0"):
        list(alternate(agreed(loaders, (0, 1))))


def test_rank_that_begins_a_pass_of_its_own_is_told_of():
    halves = [rank_loader(LOADERS["torch"](), "indexed", PLAN, r, 3) for r in (0, 1)]
    loaders = agreed(halves, (0, 1))
    next(iter(loaders[0]))
    with pytest.raises(ProgramError, match="as often on all ranks"):
        list(alternate(loaders))


def test_a_rank_waits_for_no_other():
    notes = {}
    first, _ = agreed([LOADERS["torch"]() for _ in range(2)], (0, 1), notes)
    assert len(list(first)) == NUM_ROWS // BATCH
    data_rank, found = json.loads(notes[0])
    assert data_rank == 0
    assert [count for count, *_ in found] == [0, 1, 2]


def trained_rows(name):
    torch.seed(), np.random.seed(None), random.seed(None)
    try:
        done = accelerate(
            lambda: nn.Linear(1, 1),
            lambda parameters: torch.optim.SGD(parameters, lr=0.0),
            LOADERS[name](),
            lambda output, batch: output.mean(),
            forward=lambda model, batch: model(first(batch)),
            strategy=["ddp"],
            progress=False,
        )
        found = []
        for batch in done.loader:
            done.train_step(batch)
            found += first(batch).flatten().int().tolist()
    except DrivetrainError as error:
        return str(error)
    return found


def rows_of_all_loaders():
    return {name: trained_rows(name) for name in LOADERS}


@pytest.mark.slow
def test_two_ranks_train_on_each_sample_once():
    one, other = run_ranks(rows_of_all_loaders, 2)
    for name in LOADERS:
        assert sorted(one[name] + other[name]) == list(range(NUM_ROWS)), name


@pytest.mark.parametrize("size", [3, 1])
def test_samples_of_a_last_batch_that_are_left_out_are_told_of_once(size, caplog):
    data = [torch.zeros(BATCH, 2), torch.zeros(size, 2)]
    parts = rank_loader(data, "iterable", PLAN, 0, 0)
    for _ in range(2):
        assert [len(batch) for batch in parts] == [BATCH // 2, size // 2][
            : 1 + size // 2
        ]
    assert [record.getMessage() for record in caplog.records] == [
        f"of a last batch of {size}, which 2 ranks cannot share, 1 are left out"
    ]


def test_a_last_batch_that_ranks_share_says_nothing(caplog):
    data = [torch.zeros(BATCH, 2), torch.zeros(4, 2)]
    for rank in range(2):
        assert len(list(rank_loader(data, "iterable", PLAN, rank, 0))) == 2
    assert not caplog.records


def test_a_batch_without_samples_is_refused_over_ranks():
    data = [torch.zeros(BATCH, 2), torch.zeros(0, 2)]
    with pytest.raises(ProgramError, match="a batch of 0 samples cannot be divided"):
        list(rank_loader(data, "iterable", PLAN, 0, 0))
