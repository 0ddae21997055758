"""Storage writer by which torch's distributed checkpoint (DCP) writes this format."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from drivetrain_checkpoint._arguments import count
from drivetrain_checkpoint._checkpointer import Checkpointer
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._formats.plain_values import (
    MAPPINGS,
    entry_of_tensor,
    entry_of_value,
)
from drivetrain_checkpoint._layout.rank_entries import merge_entries
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._save.remote_shard import describe, merge_tensors, on_mesh
from drivetrain_checkpoint._storage.open import resolve
from drivetrain_checkpoint.dcp._checkpoint_id import step_of
from drivetrain_core import CheckpointError
from drivetrain_core.services import PackedState

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch.distributed as dist
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

    from drivetrain_core.services.packed_state import Entry


class _Turns:
    """The saves of this process to one place: one is copied at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_step = -1


_turns: dict[tuple[str, str], _Turns] = {}


class _AsIs:
    """Hands a packed state on."""

    def pack(self, state: Mapping[str, Any]) -> PackedState:
        """Returns what it is given."""
        found: PackedState = state["packed"]
        return found


class Writer(StorageWriter):
    """Writes checkpoints for `torch.distributed.checkpoint.save` and `async_save`.

    When `save` returns, the checkpoint is committed, checksummed and durable; before that
    it does not exist. A tensor that several ranks hold is saved by one of them, chosen by
    this format's own formula. Plain data is kept as JSON, other objects as the bytes of
    `torch.save`, which are only ever loaded with `weights_only`; values that differ from
    rank to rank are kept for each. The shards of FSDP1 are saved as those of a DTensor.

    One process may save from several threads, as `async_save` does. With several ranks
    one save must have ended before the next is begun, as DCP itself demands.

    Args:
        folder: Where checkpoints go: a path or an URL, the same for all steps.
        job: The job's name.
        step: The step of all saves of this writer. None takes it from `checkpoint_id`,
            whose last part names the step and nothing else by a number (`step-100`), or
            else counts on from the last checkpoint.
        keep: How many checkpoints stay; None for all, as DCP does.
        process_group: The ranks that save together, as given to `save`.
        timeout_s: How long a save may take to become durable.
        **options: Further arguments of `Checkpointer`.

    Raises:
        TypeError: It has no such argument, as of `FileSystemWriter`.
        ValueError: An argument is out of its range.

    Example:
        >>> import tempfile, warnings
        >>> import torch.distributed.checkpoint as dcp
        >>> warnings.simplefilter("ignore")  # there are no other ranks, it says
        >>> folder = tempfile.mkdtemp()
        >>> writer = Writer(folder, job="doctest-dcp")
        >>> _ = dcp.save({"weight": torch.ones(2), "seen": 3}, storage_writer=writer)
        >>> state = {"weight": torch.zeros(2), "seen": 0}
        >>> from drivetrain_checkpoint.dcp import Reader
        >>> dcp.load(state, storage_reader=Reader(folder))
        >>> state
        {'weight': tensor([1., 1.]), 'seen': 3}
        >>> writer.close()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        job: str = "default",
        step: int | None = None,
        keep: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 600.0,
        **options: Any,
    ) -> None:
        super().__init__()
        taken = inspect.signature(Checkpointer).parameters
        if unknown := sorted(options.keys() - taken.keys()):
            message = (
                f"Writer has no argument {unknown[0]!r}: how files are laid out and "
                "written is this format's own matter; see Checkpointer for what it takes"
            )
            raise TypeError(message)
        if step is not None:
            step = count("step", step, 0)
        options |= {
            "job": job,
            "keep": keep,
            "process_group": process_group,
            "timeout_s": timeout_s,
        }
        self._arguments = {"folder": resolve(folder), "step": step, **options}
        self._step = step
        self._timeout_s = timeout_s
        self._of_thread = threading.local()
        self._group = RankGroup(process_group)
        self._turns = _turns.setdefault((resolve(folder), job), _Turns())
        self._checkpointer = Checkpointer(folder, **options)
        self._checkpointer._saver.packer = _AsIs()
        self._checkpointer._saver.keeps_apart = False
        # All that was saved is durable: nobody needs the memory.
        self._end = weakref.finalize(self, _stop, self._checkpointer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets the writer go to another process, where it begins anew."""
        return functools.partial(Writer, **self._arguments), ()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a save.

        Raises:
            ValueError: The id says no step.
        """
        self._of_thread.step = self._step
        if checkpoint_id is not None and self._step is None:
            self._of_thread.step = step_of(checkpoint_id, self._arguments["folder"])

    def set_up_storage_writer(
        self, is_coordinator: bool, *_args: Any, **kwargs: Any
    ) -> None:
        """Checks how DCP means to save.

        Raises:
            ValueError: It means to save without collectives.
        """
        del is_coordinator
        if not kwargs.get("use_collectives", True):
            message = (
                "use_collectives=False makes checkpoints that cannot be resharded, "
                "which this format has not; leave it out"
            )
            raise ValueError(message)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Returns the plans as they are.

        Raises:
            ValueError: They are not those of all ranks.
        """
        if len(plans) != self._group.world_size:
            message = (
                f"{len(plans)} of {self._group.world_size} ranks save: give the writer "
                "the process_group that `save` is given, and leave no_dist out"
            )
            raise ValueError(message)
        return plans

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        """Saves what the planner holds, and returns when it is durable."""
        tensors, values = self._group.run_on_all(lambda: _split(planner))
        mappings = dict(getattr(planner, "mappings", {}))
        answers = self._group.all_gather((describe(tensors), values, mappings))
        every = merge_tensors(tensors, [one[0] for one in answers], self._group)
        entries: dict[str, Entry] = {name: entry_of_tensor(name) for name in every}
        paths: dict[str, Any] = {}
        for _, theirs, their_paths in answers:
            paths.update(their_paths)
            for name in theirs:
                of_ranks = [values[name] for _, values, _ in answers if name in values]
                entries.setdefault(name, merge_entries(of_ranks))
        if paths:
            entries[MAPPINGS] = entry_of_value(paths)
        with self._turns.lock:
            step = self._group.all_gather(self._next_step())[0]
            self._turns.last_step = max(step, self._turns.last_step)
            packed = {"packed": PackedState(every, entries)}
            handle = self._checkpointer.save(step, packed)
            handle.wait(self._timeout_s, until="staged")
        if not handle.wait(self._timeout_s):
            message = f"step {step} was not durable within {self._timeout_s:g} s"
            raise StorageError(message)
        future: Future[list[WriteResult]] = Future()
        future.set_result([WriteResult(i.index, _size_of(i), None) for i in plan.items])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Does nothing more: the checkpoint is committed."""
        del results
        metadata.storage_data = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether an id says a step."""
        with contextlib.suppress(ValueError):
            step_of(checkpoint_id)
            return True
        return False

    def close(self) -> None:
        """Stops the daemon of the job on this node, when it has nothing left to do.

        A writer that nobody has any more does it by itself.
        """
        self._end()

    def _next_step(self) -> int:
        asked: int | None = getattr(self._of_thread, "step", self._step)
        self._of_thread.step = self._step  # DCP calls `reset` only where it has an id
        if asked is not None or self._group.rank:
            return asked or 0
        latest = self._checkpointer.latest()
        return max(-1 if latest is None else latest, self._turns.last_step) + 1


def _stop(checkpointer: Checkpointer) -> None:
    with contextlib.suppress(CheckpointError):  # as in a forked process
        checkpointer.stop_daemon()


def _split(planner: SavePlanner) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Returns the tensors that a planner holds, and all else in the form of entries.

    Raises:
        TypeError: The planner, or something in the state, cannot be saved like this.
    """
    kind = type(planner)
    for name in ("transform_object", "resolve_data", "lookup_object"):
        if getattr(kind, name, None) is not getattr(DefaultSavePlanner, name):
            message = (
                f"{kind.__name__} has a {name} of its own, which this writer would not "
                "call; use DefaultSavePlanner, and change the state before it is saved"
            )
            raise TypeError(message)
    tensors: dict[str, Any] = {}
    values: dict[str, Entry] = {}
    for name, value in planner.state_dict.items():  # type: ignore[attr-defined]
        if isinstance(value, ShardedTensor):
            tensors[name] = on_mesh(name, value)
        elif isinstance(value, torch.Tensor):
            tensors[name] = value.detach()
        else:
            values[name] = entry_of_value(value, name)
    return tensors, values


def _size_of(item: Any) -> int:
    if item.tensor_data is None:
        return 0
    data = item.tensor_data
    num_elements: int = data.chunk.sizes.numel()
    return num_elements * int(data.properties.dtype.itemsize)
