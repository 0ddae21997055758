"""Loaders: rebuilt with other settings, divided between ranks, moved to the device."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
)

from drivetrain_core._data.batch import batch_size, move_batch, split_batch
from drivetrain_core._errors import ProgramError
from drivetrain_core.accelerators._isolated_rng import isolated_rng

if TYPE_CHECKING:
    from drivetrain_core.services.batch_plan import BatchPlan


def rebuild_loader(loader: Iterable[Any], **settings: Any) -> DataLoader[Any]:
    """Returns a `DataLoader` of the same samples in the same order.

    Args:
        loader: The loader to copy.
        settings: Arguments of `DataLoader` that shall differ.

    Raises:
        ProgramError: It is no `DataLoader` that draws batches of indices.
    """
    if not isinstance(loader, DataLoader):
        message = f"only a DataLoader can be rebuilt, got {type(loader).__name__}"
        raise ProgramError(message)
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        kind = type(loader.dataset).__name__
        message = f"only a DataLoader that batches indices can be rebuilt, of {kind}"
        raise ProgramError(message)
    same = {
        "batch_sampler": loader.batch_sampler,
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
        **{name: getattr(loader, name) for name in _OF_WORKERS},
    }
    if settings.get("num_workers") == 0:
        same = {key: same[key] for key in same if key not in _OF_WORKERS}
    return DataLoader(loader.dataset, **{**same, **settings})


# What only workers have; a DataLoader without them refuses most of it.
_OF_WORKERS = (
    "in_order",
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
    "timeout",
)


def num_prepared(loader: Iterable[Any]) -> int:
    """Returns how many batches the workers of a loader may hold ready.

    Example:
        >>> num_prepared(DataLoader([1, 2], num_workers=2, prefetch_factor=3))
        6
        >>> num_prepared([1, 2])
        0
    """
    workers = getattr(loader, "num_workers", 0)
    each = getattr(loader, "prefetch_factor", 0)
    return workers * each if isinstance(workers, int) and isinstance(each, int) else 0


@contextmanager
def undisturbed(data: Iterable[Any]) -> Iterator[None]:
    """Puts every random state back that iterating over the data may draw from.

    These are the global ones of torch, Python and numpy, and the generators of the
    loader and its samplers. So one may look at a batch, and training draws what it
    would have drawn.

    Args:
        data: A loader, or any iterable of batches that can be passed over again.

    Example:
        >>> loader = DataLoader(range(100), batch_size=2, shuffle=True)
        >>> with undisturbed(loader):
        ...     seen = next(iter(loader))
        >>> torch.equal(next(iter(loader)), seen)
        True
    """
    batches = getattr(data, "batch_sampler", None)
    parts = (data, getattr(data, "sampler", None), getattr(batches, "sampler", None))
    found = [getattr(part, "generator", None) for part in parts]
    generators = [g for g in found if isinstance(g, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    # The legacy global state is what data sets in the field draw from.
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with isolated_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def rank_loader(
    data: Iterable[Any], kind: str, plan: BatchPlan, rank: int, seed: int
) -> Iterable[Any]:
    """Returns this rank's part of each global batch of a single-process loader.

    Every rank draws the same global batches and keeps its own rows, so the global
    batch is the one that a single process would see. A smaller batch at the end of
    an epoch is shared equally, and the few samples that are left over are dropped.

    Args:
        data: The single-process loader.
        kind: `torch`, `sharded` or `iterable`, as `LoopFacts.loader` says.
        plan: How a global batch is split.
        rank: This rank.
        seed: Seeds the shuffle, which must be the same on every rank.
    """
    if plan.world_size == 1 or kind == "sharded":
        return data
    if kind == "torch" and isinstance(data, DataLoader):
        batches = _shared_order(data, seed)
        return rebuild_loader(data, batch_sampler=_RankBatches(batches, plan, rank))
    return _RankSlices(data, plan, rank)


def _shared_order(loader: DataLoader[Any], seed: int) -> BatchSampler:
    batches = loader.batch_sampler
    assert isinstance(batches, BatchSampler)
    sampler = batches.sampler
    if not isinstance(sampler, RandomSampler) or sampler.generator is not None:
        return batches
    # Without a generator each rank would shuffle by its own global seed.
    shuffled = RandomSampler(
        sampler.data_source,
        replacement=sampler.replacement,
        num_samples=sampler._num_samples,
        generator=torch.Generator().manual_seed(seed),
    )
    return BatchSampler(shuffled, batches.batch_size, batches.drop_last)


def _rows(size: int, plan: BatchPlan, rank: int) -> slice:
    if size == plan.global_batch:
        share = plan.for_rank(rank)
        return slice(share.start, share.start + sum(share.sizes))
    equal = size // plan.world_size
    # A rank knows a full batch by its number of rows, so no other may have as many.
    full = {plan.for_rank(other).size for other in range(plan.world_size)}
    if len(full) > 1 and equal in full:
        equal = min(full) - 1
    return slice(rank * equal, (rank + 1) * equal)


class _RankBatches:
    """Yields this rank's indices of each global batch of a batch sampler."""

    def __init__(self, batches: BatchSampler, plan: BatchPlan, rank: int) -> None:
        self._batches = batches
        self._plan = plan
        self._rank = rank

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._batches:
            mine = indices[_rows(len(indices), self._plan, self._rank)]
            if mine:
                yield mine

    def __len__(self) -> int:
        batches = self._batches
        if batches.drop_last:
            return len(batches)
        tail = len(batches.sampler) % batches.batch_size  # type: ignore[arg-type]
        # Of a last batch with too few rows, no rank gets one.
        rows = _rows(tail, self._plan, self._rank)
        return len(batches) - (tail > 0 and rows.start == rows.stop)


class _RankSlices:
    """Yields this rank's rows of each global batch of any iterable."""

    def __init__(self, data: Iterable[Any], plan: BatchPlan, rank: int) -> None:
        self._data = data
        self._plan = plan
        self._rank = rank

    def __iter__(self) -> Iterator[Any]:
        for batch in self._data:
            size = batch_size(batch)
            rows = _rows(size, self._plan, self._rank)
            if rows.stop > rows.start:
                sizes = (rows.start, rows.stop - rows.start, size - rows.stop)
                yield split_batch(batch, sizes)[1]

    def __len__(self) -> int:
        if isinstance(self._data, Sized):
            return len(self._data)
        message = f"{type(self._data).__name__} has no length"
        raise TypeError(message)


class DeviceLoader:
    """Yields the batches of a loader on a device.

    Everything else, such as `dataset` or `set_epoch`, is the loader's own.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        """Keeps the loader and the device."""
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        """Yields each batch, moved."""
        for batch in self._loader:
            yield move_batch(batch, self._device)

    def __len__(self) -> int:
        """Returns the loader's length."""
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the loader."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)
