"""Which loaders can be compared sample by sample, and that looking leaves no trace."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from drivetrain_core._data.cycle import cycle
from drivetrain_core._data.rank_loader import rank_loader, rebuild_loader
from drivetrain_core.services.batch_plan import BatchPlan
from drivetrain_search.draw import draw, is_repeatable

ROWS = TensorDataset(torch.arange(24).float())


class Augmented(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index)]) + torch.rand(1)


class Stream(IterableDataset):
    def __init__(self, shuffled):
        self.shuffled = shuffled

    def __iter__(self):
        order = list(range(24))
        if self.shuffled:
            random.shuffle(order)
        return iter(torch.tensor([float(i)]) for i in order)


class Hidden:
    """Data that shuffles by a state that nobody can reach."""

    def __init__(self):
        self.random = random.Random(0)

    def __iter__(self):
        yield from self.random.sample([torch.full((2,), float(i)) for i in range(9)], 9)


def drawn(loader, seed=0):
    return draw(iter(cycle(loader)), seed=seed)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (DataLoader(ROWS, 4), True),
        (DataLoader(ROWS, 4, shuffle=True), True),
        (DataLoader(ROWS, 4, shuffle=True, generator=torch.Generator()), True),
        ([torch.ones(2), torch.zeros(2)], True),
        (DataLoader(Stream(shuffled=False), 4), True),
        (DataLoader(Augmented(), 4), False),
        (DataLoader(Stream(shuffled=True), 4), False),
        (Hidden(), False),
        (iter([torch.ones(2)] * 9), False),
    ],
    ids=[
        "ordered",
        "shuffled",
        "own-generator",
        "list",
        "stream",
        "augmented",
        "shuffled-stream",
        "hidden",
        "iterator",
    ],
)
def test_draw_knows_what_can_be_repeated(data, expected):
    assert is_repeatable(data, data, seed=0) is expected


def test_draw_of_random_collation_cannot_be_repeated():
    def mask(samples):
        return torch.stack([s[0] for s in samples]) * (torch.rand(len(samples)) < 0.5)

    loader = DataLoader(ROWS, 4, collate_fn=mask)
    assert not is_repeatable(loader, loader, seed=0)


def test_draw_leaves_the_generators_of_a_loader_alone():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(ROWS, 4, shuffle=True, generator=generator)
    before = generator.get_state()
    assert is_repeatable(loader, loader, seed=0)
    assert generator.get_state().equal(before)


def test_draw_is_the_same_with_workers():
    loader = DataLoader(ROWS, 4, shuffle=True)
    other = rebuild_loader(loader, num_workers=1, persistent_workers=True)
    assert drawn(loader) == drawn(other) != drawn(loader, seed=1)


def test_draw_of_ranks_makes_up_the_global_batch():
    loader = DataLoader(ROWS, 4, shuffle=True, generator=torch.Generator())
    plan = BatchPlan(world_size=2, global_batch=4, num_micro_batches=1)
    before = loader.generator.get_state()
    whole, parts = drawn(loader), []
    for rank in range(2):
        loader.generator.set_state(before)
        part = rank_loader(loader, "torch", plan, rank, 0)
        assert is_repeatable(part, loader, seed=0)
        parts.append(drawn(part))
    joined = tuple(tuple(sorted(a + b)) for a, b in zip(*parts, strict=True))
    assert joined == whole
