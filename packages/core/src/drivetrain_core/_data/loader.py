"""Loaders: rebuilt with other settings, looked at without a trace, moved to the device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from drivetrain_core._data.batch import move_batch
from drivetrain_core._data.random_stream import put_random_states, random_states
from drivetrain_core._errors import ProgramError
from drivetrain_core._model.snapshot import ModelSnapshot
from drivetrain_core.accelerators._isolated_rng import isolated_rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


@contextmanager
def undisturbed(data: Iterable[Any]) -> Iterator[None]:
    """Puts every state back that iterating over the data may draw from.

    These are the global random ones of torch, Python and numpy, the generators of the
    loader and its samplers, and what a loader, sampler or data set of the user's own counts.
    So one may look at a batch, and training draws what it would have drawn.

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
    inner = getattr(data, "sampler", None), getattr(batches, "sampler", None)
    parts = (data, getattr(data, "dataset", None), batches, *inner)
    found = [getattr(part, "generator", None) for part in parts]
    snapshot = ModelSnapshot(torch.nn.Module(), *parts, *found)
    outside = random_states()
    try:
        with isolated_rng():
            yield
    finally:
        put_random_states(outside)
        snapshot.restore()


class WrappedLoader:
    """A loader around another; whatever it does not say itself is the other's own.

    Such as `dataset` or `set_epoch`.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        """Keeps the loader."""
        self._loader = loader

    def __len__(self) -> int:
        """Returns the loader's length."""
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the loader."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class DeviceLoader(WrappedLoader):
    """Yields the batches of a loader on a device."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        """Keeps the loader and the device."""
        super().__init__(loader)
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        """Yields each batch, moved."""
        for batch in self._loader:
            yield move_batch(batch, self._device)
