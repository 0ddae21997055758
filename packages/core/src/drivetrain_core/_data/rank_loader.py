"""Loaders of several ranks: disjoint parts of one order, and one batch for one model."""

from __future__ import annotations

import json
import logging
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from drivetrain_core._data.batch import batch_size, split_batch, tensors_of
from drivetrain_core._data.loader import WrappedLoader, rebuild_loader
from drivetrain_core._data.random_stream import RandomStream
from drivetrain_core._errors import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from drivetrain_core._rendezvous_store import Notes
    from drivetrain_core.services.batch_plan import BatchPlan

logger = logging.getLogger(__name__)

_OFTEN, _KEPT = 1024, 24


def rank_loader(
    data: Iterable[Any], kind: str, plan: BatchPlan, rank: int, seed: int
) -> Iterable[Any]:
    """Returns this rank's part of each global batch of a single-process loader.

    Every rank draws the same global batches, under one random state, and keeps its own
    rows, so the global batch is the one that a single process would see. A smaller batch
    at the end of an epoch is shared equally, and the few samples that are left over are
    dropped.

    Args:
        data: The single-process loader.
        kind: `torch`, `indexed`, `sharded` or `iterable`, as `LoopFacts.loader` says.
        plan: How a global batch is split.
        rank: This rank.
        seed: Seeds the random state, which must be the same on every rank.
    """
    if plan.world_size == 1 or kind == "sharded":
        return data
    if kind != "iterable" and isinstance(data, DataLoader):
        part = RankBatches(data.batch_sampler, plan, rank, seed)
        return rebuild_loader(data, batch_sampler=part)
    return RankSlices(data, plan, rank, seed)


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


class _Part:
    """This rank's part of what yields global batches, drawn alike on all ranks."""

    def __init__(self, data: Any, plan: BatchPlan, rank: int, seed: int) -> None:
        self._data, self._plan, self._rank = data, plan, rank
        self._stream = RandomStream(seed)
        self._last: Any = None
        self._has_warned = False

    def _parts(self, size_of: Callable[[Any], int]) -> Iterator[tuple[Any, int, slice]]:
        lost, size, ranks = False, 0, self._plan.world_size
        for batch in self._stream.drawn(self._data):
            if lost or not (now := size_of(batch)):
                which = f"{size} samples that is not the last" if lost else "0 samples"
                message = (
                    f"a batch of {which} cannot be divided over {ranks} ranks; make "
                    "batches of one size"
                )
                raise ProgramError(message)
            size = now
            rows = _rows(size, self._plan, self._rank)
            in_all = (rows.stop - rows.start) * ranks
            lost = size not in (self._plan.global_batch, in_all)
            self._last = batch
            if rows.stop > rows.start:
                yield batch, size, rows
        if lost and self._rank == 0 and not self._has_warned:
            self._has_warned = True
            text = "of a last batch of %s, which %s ranks cannot share, %s are left out"
            logger.warning(text, size, ranks, size - in_all)

    def order(self) -> int:
        """Returns a digest of the last global batch, the same on all ranks."""
        return _digest(self._last)


class RankBatches(_Part):
    """Yields this rank's indices of each global batch of a batch sampler."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the indices."""
        for indices, _, rows in self._parts(len):
            yield indices[rows]

    def __len__(self) -> int:
        """Returns how many batches this rank gets."""
        batches, length = self._data, len(self._data)
        if not isinstance(batches, BatchSampler) or batches.drop_last:
            return length
        tail = len(batches.sampler) % batches.batch_size  # type: ignore[arg-type]
        # Of a last batch with too few rows, no rank gets one.
        rows = _rows(tail, self._plan, self._rank)
        return length - (tail > 0 and rows.start == rows.stop)


class RankSlices(_Part):
    """Yields this rank's rows of each global batch of any iterable."""

    def __iter__(self) -> Iterator[Any]:
        """Yields the rows."""
        for batch, size, rows in self._parts(batch_size):
            sizes = (rows.start, rows.stop - rows.start, size - rows.stop)
            yield split_batch(batch, sizes)[1]

    def __len__(self) -> int:
        """Returns how many batches the iterable says to have."""
        return len(self._data)


class AgreedLoader(WrappedLoader):
    """Yields a rank's batches, drawn alike by the ranks of one model, and compares them.

    Now and then each rank notes digests of what it has drawn, and reads those of the
    others once they are there; it waits for none.

    Args:
        loader: This rank's loader.
        data_rank: Which part of each global batch the rank's model trains on.
        seed: Seeds the random state under which samples are made.
        notes: What ranks tell one another.
    """

    def __init__(
        self, loader: Iterable[Any], data_rank: int, seed: int, notes: Notes
    ) -> None:
        """Has drawn nothing yet."""
        super().__init__(loader)
        self._data_rank, self._notes = data_rank, notes
        self._stream = RandomStream(seed + 1 + data_rank)
        self._drawn, self._is_told = 0, True
        self._found: list[list[Any]] = []

    def __iter__(self) -> Iterator[Any]:
        """Yields each batch.

        Raises:
            ProgramError: Ranks have drawn other batches than they must.
        """
        for batch in self._stream.drawn(self._loader):
            if not self._is_told and (notes := self._notes.read()) is not None:
                self._is_told = True
                _require_agreement([json.loads(note) for note in notes])
            count = self._drawn
            if count & (count - 1) == 0 or count % _OFTEN == 0:
                self._note(batch)
            self._drawn += 1
            yield batch

    def _note(self, batch: Any) -> None:
        part = getattr(self._loader, "batch_sampler", self._loader)
        order = part.order() if isinstance(part, _Part) else 0
        self._found = [*self._found, [self._drawn, order, _digest(batch)]][-_KEPT:]
        self._notes.write(json.dumps([self._data_rank, self._found]))
        self._is_told = False


def _digest(batch: Any) -> int:
    if not (tensors := list(tensors_of(batch))):
        return zlib.crc32(repr(batch).encode())
    digest = 0
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_nested:
            flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            values: Any = flat.flatten().view(torch.uint8).numpy()
            digest = zlib.crc32(values, digest)
    return digest


def _require_agreement(notes: Sequence[tuple[int, list[list[int]]]]) -> None:
    """Raises unless ranks drew one order, and those of one model the same batches."""
    first: dict[tuple[str, int, int], tuple[int, int]] = {}
    for rank, (data_rank, found) in enumerate(notes):
        for count, order, content in found:
            for what, key, value in (
                ("order", 0, order),
                ("batch", data_rank, content),
            ):
                known = first.setdefault((what, key, count), (rank, value))
                if known[1] != value:
                    raise ProgramError(_MESSAGES[what].format(known[0], rank, count))


_MESSAGES = {
    "order": "ranks {} and {} drew other samples as batch {}; draw the order from the "
    "random states of torch, Python or numpy, and as often on all ranks, or divide the "
    "data yourself, by a sampler that has num_replicas and rank",
    "batch": "ranks {} and {} hold parts of one model, and got other values as batch {}; "
    "draw them from the random states of torch, Python or numpy, or seed them alike",
}
