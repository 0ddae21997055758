"""Batches of trials: the loader's first ones, and whether they can be compared."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from drivetrain_core.extending import cycle
from drivetrain_core.numerics.checksum import gathered, row_checksums

if TYPE_CHECKING:
    from collections.abc import Iterable

NUM_DRAWN = 4
"""Batches of the loader that are compared with the program's own."""

_Drawn = tuple[tuple[int, ...], ...]

# Where loaders, ours among them, keep what they draw from.
_INNER = ("_loader", "_data", "batch_sampler", "_batches", "sampler", "generator")


def draw(
    batches: Iterator[Any], *, seed: int, number: int = NUM_DRAWN, copies: int = 1
) -> _Drawn:
    """Returns the checksums of the samples of the next global batches.

    Args:
        batches: This rank's batches; with several ranks, all must call this.
        seed: Every global random generator is set to it first.
        number: Batches to draw.
        copies: How many ranks read each sample; it is counted once.
    """
    _seed_everything(seed)
    mine = [row_checksums(next(batches)).tolist() for _ in range(number)]
    parts = zip(*gathered(mine), strict=True)
    # Within a batch the order is of no consequence, and ranks may share it anyhow.
    return tuple(tuple(sorted(itertools.chain(*part))[::copies]) for part in parts)


def is_repeatable(
    loader: Iterable[Any], data: Iterable[Any], *, seed: int, number: int = NUM_DRAWN
) -> bool:
    """Returns whether another pass of the loader yields the same samples.

    It decides whether a plan's samples can be held to the program's one by one. They
    cannot when samples are changed at random, as by augmentation: worker processes
    draw from other generators. They can when only their order is random, since that
    is drawn from the seed.

    Args:
        loader: This rank's loader under the baseline; it is left as if it was unread.
        data: The user's own loader.
        seed: The seed that `draw` is called with.
        number: Batches to compare.
    """
    if _is_read_once(data):
        return False
    is_map = isinstance(data, DataLoader) and not isinstance(
        data.dataset, IterableDataset
    )
    with _kept(loader):
        first = draw(iter(cycle(loader)), seed=seed, number=number)
    with _kept(loader):
        # Of other data than a map, nobody knows which of its parts the seed decides.
        second = draw(
            iter(cycle(loader)), seed=seed if is_map else seed + 1, number=number
        )
    fixed = not isinstance(data, DataLoader) or not is_map or _is_fixed(data, seed)
    return first == second and fixed


def _is_read_once(data: Iterable[Any]) -> bool:
    if isinstance(data, Iterator):
        return True
    return not isinstance(data, DataLoader) and iter(data) is iter(data)


def _is_fixed(data: DataLoader[Any], seed: int) -> bool:
    """Returns whether a sample is the same under another seed."""
    if data.batch_sampler is None:
        return False
    with _kept(data):
        indices = next(iter(data.batch_sampler))
        found = []
        for other in (seed, seed + 1):
            _seed_everything(other)
            fetch = getattr(data.dataset, "__getitems__", None)
            samples = fetch(indices) if fetch else [data.dataset[i] for i in indices]
            found.append(row_checksums(data.collate_fn(samples)).tolist())
    return bool(found[0] == found[1])


def _seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    # The legacy global state is what data sets in the field draw from.
    np.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def _kept(loader: object) -> Iterator[None]:
    """Puts the random generators inside a loader back."""
    generators = list(_generators(loader, depth=len(_INNER)))
    states = [generator.get_state() for generator in generators]
    yield
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def _generators(part: object, depth: int) -> Iterator[torch.Generator]:
    if isinstance(part, torch.Generator):
        yield part
    elif part is not None and depth:
        for name in _INNER:
            yield from _generators(getattr(part, name, None), depth - 1)
