"""The samples of a training in one global order, which all of its runs follow.

A place in the order is a step and a row of its global batch. Where the script has a
`DataLoader` that draws indices, a process reads the rows that it computes and no other;
of any other data it reads whole batches, and takes its rows.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from drivetrain_core import ProgramError
from drivetrain_core.scripts import batch_size, move_batch, split_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from drivetrain_core import Accelerated


class Batches(Protocol):
    """Reads the global order."""

    def whole(self) -> Iterator[Any]:
        """Yields global batches, from the first one on."""
        ...

    def part(self, places: Sequence[int]) -> Any:
        """Returns consecutive samples of one global batch."""
        ...


def draw_order(accelerated: Accelerated, num_steps: int, path: Path) -> None:
    """Writes which samples the steps are made of, as the script's sampler draws them.

    Batches at the end of an epoch that are smaller are left out.

    Args:
        accelerated: The program as written, with its generators at their start.
        num_steps: How many.
        path: Of the file.

    Raises:
        ProgramError: No batch is whole.
    """
    loader: Any = accelerated.loader
    order: list[list[int]] | None = None
    if _draws_indices(loader):
        size = accelerated.context.batch.size
        order = list(islice(_cycle_whole(loader.batch_sampler, size), num_steps))
    path.write_text(json.dumps(order))


def open_batches(accelerated: Accelerated, path: Path) -> Batches:
    """Returns what reads the order that `draw_order` has written.

    Args:
        accelerated: The program, under any plan.
        path: Of the file.
    """
    order = json.loads(path.read_text())
    if order is None:
        return _ReadBatches(accelerated)
    return _DrawnBatches(accelerated, order)


def _draws_indices(loader: Any) -> bool:
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )


def _cycle_whole(batches: Iterable[Sequence[int]], size: int) -> Iterator[list[int]]:
    while True:
        found = 0
        for indices in batches:
            if len(indices) == size:
                found += 1
                yield [int(index) for index in indices]
        if not found:
            message = f"the data yields no whole batch of {size} samples"
            raise ProgramError(message)


class _DrawnBatches:
    """Reads by index, with the settings of the program's own loader."""

    def __init__(self, accelerated: Accelerated, order: list[list[int]]) -> None:
        self._loader: Any = accelerated.loader
        self._device = accelerated.device
        self._order = order
        self._size = accelerated.context.batch.size

    def whole(self) -> Iterator[Any]:
        loader = self._loader
        same = {name: getattr(loader, name) for name in _SETTINGS}
        if loader.num_workers:
            same |= {name: getattr(loader, name) for name in _WORKER_SETTINGS}
        batches = DataLoader(loader.dataset, batch_sampler=self._order, **same)
        return (move_batch(batch, self._device) for batch in batches)

    def part(self, places: Sequence[int]) -> Any:
        step, row = divmod(places[0], self._size)
        indices = self._order[step][row : row + len(places)]
        dataset = self._loader.dataset
        read = getattr(dataset, "__getitems__", None)
        samples = read(indices) if read else [dataset[index] for index in indices]
        return move_batch(self._loader.collate_fn(samples), self._device)


_SETTINGS = ("collate_fn", "generator", "num_workers", "pin_memory", "worker_init_fn")
_WORKER_SETTINGS = (
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
    "timeout",
)


class _ReadBatches:
    """Reads batch after batch, epoch after epoch."""

    def __init__(self, accelerated: Accelerated) -> None:
        self._data: Iterable[Any] = accelerated.loader
        self._device = accelerated.device
        self._size = accelerated.context.batch.size
        self._batches = self.whole()
        # Of the batch in hand.
        self._step, self._batch = -1, None

    def whole(self) -> Iterator[Any]:
        while True:
            found = 0
            for batch in self._data:
                if batch_size(batch) == self._size:
                    found += 1
                    yield move_batch(batch, self._device)
            if not found:
                message = f"the data yields no whole batch of {self._size} samples"
                raise ProgramError(message)

    def part(self, places: Sequence[int]) -> Any:
        step, row = divmod(places[0], self._size)
        if step < self._step:  # A step that is made again, from the start.
            self._batches, self._step = self.whole(), -1
        while self._step < step:
            self._batch = next(self._batches)
            self._step += 1
        sizes = (row, len(places), self._size - row - len(places))
        return split_batch(self._batch, sizes)[1]
