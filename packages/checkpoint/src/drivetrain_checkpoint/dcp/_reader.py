"""Storage reader by which torch's distributed checkpoint (DCP) reads this format."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from drivetrain_checkpoint._formats.plain_values import MAPPINGS, is_value, value_of
from drivetrain_checkpoint._layout.partition import DTYPES
from drivetrain_checkpoint._layout.rank_entries import RANKS, entries_of_rank
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._restore.read_blocks import read_blocks
from drivetrain_checkpoint._restore.read_plan import Wanted
from drivetrain_checkpoint._storage.open import resolve
from drivetrain_checkpoint._storage.open_checkpoint import (
    CommittedCheckpoint,
    open_checkpoint,
)
from drivetrain_checkpoint.dcp._checkpoint_id import step_of
from drivetrain_core import CheckpointError
from drivetrain_core.services import unwritable

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

    from drivetrain_checkpoint._layout.tensor_layout import TensorLayout
    from drivetrain_core.services.packed_state import Entry


class Reader(StorageReader):
    """Reads checkpoints for `torch.distributed.checkpoint.load`.

    Each rank reads only what its own shards need, however the tensors were cut when they
    were saved, and compares it with its checksums. What a `Checkpointer` saved can be
    read, too: its tensors by their names, and its plain data by its name in the state.
    Nothing that is read runs code.

    Not thread-safe.

    Args:
        folder: Where checkpoints were saved, or the folder of one checkpoint.
        step: The step; the one that was saved last by default.
        storage_options: For URLs, what fsspec is to know.

    Example:
        >>> Reader("no/such/folder", step=3).read_metadata()
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.CheckpointError: ... has no checkpoint of step 3; it \
has none at all
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        step: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._folder = self._place = resolve(folder)
        self._given = self._step = step
        self._options = storage_options
        self._checkpoint: CommittedCheckpoint | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a load.

        Args:
            checkpoint_id: What was given when it was saved; or the folder of one
                checkpoint, in place of the one that was given first.
        """
        self._checkpoint = None
        self._place, self._step = self._folder, self._given
        if checkpoint_id is not None:
            try:
                self._step = step_of(checkpoint_id, self._folder)
            except ValueError:
                self._place = resolve(checkpoint_id)

    # DCP would look for a rank's own index if the last parameter were called `kwargs`.
    def read_metadata(self, *args: Any, **more: Any) -> Metadata:
        """Returns what the checkpoint holds, each tensor as one piece.

        Raises:
            CheckpointError: There is no such checkpoint, or it is damaged.
        """
        del args, more
        self._checkpoint = open_checkpoint(self._place, self._step, self._options)
        entries = self._checkpoint.entries()
        found: dict[str, Any] = {
            tensor.name: _metadata_of(tensor)
            for tensor in self._checkpoint.layout.tensors
        }
        mappings = entries.pop(MAPPINGS, None)
        for name, entry in entries.items():
            if entry["kind"] == RANKS or is_value(entry):
                found.setdefault(name, BytesStorageMetadata())
        return Metadata(
            state_dict_metadata=found,
            planner_data=value_of(mappings) if mappings else None,
            storage_data={},
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing: all is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan, with the save that this rank means to read."""
        assert self._checkpoint is not None
        root = self._checkpoint.root
        return dataclasses.replace(plan, storage_data=(root.step, root.save_id))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans, if all ranks mean the same save.

        Raises:
            CheckpointError: They do not, since one was committed meanwhile.
        """
        steps = sorted({plan.storage_data for plan in plans})
        if len(steps) > 1:
            found = ", ".join(f"step {step}" for step, _ in steps)
            message = f"ranks found different checkpoints ({found}): give the step"
            raise CheckpointError(message)
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what a plan asks for.

        Raises:
            CheckpointError: A tensor cannot be written in place; none has been.
            CorruptCheckpointError: What was saved is damaged.
        """
        assert self._checkpoint is not None
        layouts = {tensor.name: tensor for tensor in self._checkpoint.layout.tensors}
        entries = self._checkpoint.entries()
        wanted, targets = [], []
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                # The planner loads it without restrictions, so that it gets a pickle
                # that was made here.
                stream = io.BytesIO()
                torch.save(_value_of_rank(name, entries[name]), stream)
                stream.seek(0)
                planner.load_bytes(item, stream)
                continue
            target = planner.resolve_tensor(item).detach()
            problem = unwritable(target)
            if problem:
                message = f"{name!r} {problem}"
                raise CheckpointError(message)
            wanted.append(Wanted(layouts[name], _block_of(item), target))
            targets.append((item, target))
        read_blocks(self._checkpoint.layout, self._checkpoint.source, wanted)
        for item, target in targets:
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether there is a committed checkpoint."""
        try:
            open_checkpoint(checkpoint_id)
        except CheckpointError:
            return False
        return True


def _value_of_rank(name: str, entry: Entry) -> Any:
    group = RankGroup()
    own, others = entries_of_rank({name: entry}, group.rank, group.world_size)
    if name in others or not is_value(own[name]):
        message = (
            f"each of {len(entry['plain'][1])} ranks has saved a {name!r} of its own, and "
            f"there are {group.world_size} now: leave it out of the state that is loaded"
        )
        raise CheckpointError(message)
    return value_of(own[name])


def _metadata_of(tensor: TensorLayout) -> TensorStorageMetadata:
    """Returns a tensor as one piece, since what lies where is no concern of DCP's."""
    size = torch.Size(tensor.shape)
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=DTYPES[tensor.dtype]),
        size=size,
        chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)],
    )


def _block_of(item: ReadItem) -> tuple[tuple[tuple[int, int], ...], ...]:
    pairs = zip(item.storage_offsets, item.lengths, strict=True)
    return tuple(((start, length),) for start, length in pairs)
