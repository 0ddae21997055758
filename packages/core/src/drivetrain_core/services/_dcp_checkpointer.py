"""The fallback `Checkpointer`: torch's distributed checkpoint, made safe to crash."""

from __future__ import annotations

import functools
import hashlib
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from drivetrain_core._errors import CheckpointError, NamesError
from drivetrain_core.services._checkpoint_folder import (
    Committed,
    FileDigest,
    Folder,
    digest_of,
    read_manifest,
    verify,
)
from drivetrain_core.services._pack_state import pack_state
from drivetrain_core.services._plan_restoration import plan_restoration
from drivetrain_core.services.packed_state import RECORD, PackedState
from drivetrain_core.services.safe_dcp import read_index, read_into, specs_of
from drivetrain_core.services.state_entry import is_partial, merge_entries

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, MutableMapping

    from torch.distributed.checkpoint.metadata import Metadata

    from drivetrain_core.services.restoration import Restoration

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_SMALL_BYTES = 1 << 14  # as many are compared between ranks
# What `pack` raises for a state that no checkpoint could hold.
_UNFIT = (TypeError, ValueError, NamesError)


@dataclass(frozen=True, slots=True)
class DurableSave:
    """The handle of a save that is on the disk already.

    Args:
        step: The step that was saved.

    Example:
        >>> DurableSave(3).wait()
        True
    """

    step: int
    done: ClassVar[bool] = True
    durable: ClassVar[bool] = True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns True at once."""
        del timeout_s
        return True


class DcpCheckpointer:
    """Saves to a folder that all ranks share, while the ranks wait.

    A checkpoint is written beside the others, synced, checksummed, and then renamed to
    its name: a crash at any moment leaves the earlier ones whole. What is damaged is
    never restored, but the one before it, with a warning; nothing that is read is run.
    With a process group, all its ranks
    take part; without one, the world is this process.

    Args:
        directory: The folder of the checkpoints; it is created when it is missing.
        keep: How many checkpoints stay, the newest ones; None keeps all.
        process_group: The ranks that save together; by default the default group.

    Raises:
        ValueError: `keep` is below one.

    Example:
        >>> import tempfile
        >>> import torch
        >>> model = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> state = {"model": model, "optimizer": optimizer, "data": {"position": 640}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpointer = DcpCheckpointer(folder, keep=2)
        ...     handle = checkpointer.save(10, state)
        ...     state["data"]["position"] = 0
        ...     step = checkpointer.restore(state)
        >>> handle.durable, step, state["data"]
        (True, 10, {'position': 640})
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            message = f"keep must be at least 1, or None to keep all, got {keep}"
            raise ValueError(message)
        self._folder = Folder(Path(directory), keep)
        self._group = process_group

    def save(self, step: int, state: Mapping[str, object]) -> DurableSave:
        """Saves a state and returns when it is durable; see `Checkpointer`."""
        if type(step) is not int or step < 0:
            message = f"the step must be an integer of at least 0, got {step!r}"
            raise ValueError(message)
        packed = self._on_all(lambda: pack_state(state), as_is=_UNFIT)
        packed = self._agreed(step, packed)
        path = self._on_first(lambda: self._folder.begin(step))
        try:
            own = self._on_all(lambda: self._write(path, packed))
            files = {
                name: d for part in self._exchange(own) for name, d in part.items()
            }
            self._on_first(lambda: self._folder.commit(path, files))
        except BaseException:
            if self._rank == 0:
                self._folder.discard(path)
            raise
        self._on_first(self._folder.prune)
        logger.info("saved step %d to %s", step, self._folder.root)
        return DurableSave(step)

    def restore(
        self,
        into: MutableMapping[str, object],
        step: int | None = None,
        *,
        strict: bool = True,
    ) -> int:
        """Restores a state in place and returns its step; see `Checkpointer`."""
        checkpoint = self._whole(step)
        # All ranks know that it fits before the first of them changes anything.
        plan, index = self._on_all(lambda: _plan(checkpoint, into, strict=strict))
        self._on_all(lambda: _read(checkpoint, plan, index))
        if plan.mismatches:
            logger.warning("not restored from %s: %s", checkpoint.path, plan.summary())
        logger.info("restored step %d from %s", checkpoint.step, checkpoint.path)
        return checkpoint.step

    def flush(self, deadline_s: float | None = None) -> bool:
        """Returns True: `save` returns when the checkpoint is durable."""
        del deadline_s
        return True

    def latest(self) -> int | None:
        """Returns the step that was saved last, or None; asks no other rank."""
        committed = self._folder.committed()
        return committed[-1].step if committed else None

    @property
    def _rank(self) -> int:
        return dist.get_rank(self._group) if dist.is_initialized() else 0

    def _exchange(self, value: _T) -> list[_T]:
        """Returns the value of each rank."""
        if not dist.is_initialized():
            return [value]
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _on_all(
        self, action: Callable[[], _T], as_is: tuple[type[Exception], ...] = ()
    ) -> _T:
        """Returns what an action returns here; raises on all ranks if one raises.

        Args:
            action: What every rank does.
            as_is: The errors that are raised as they are, on the rank that has them.
        """
        value, error = _attempt(action)
        if isinstance(error, as_is):
            self._exchange(_text(error))
            raise error
        _raise_first(error, self._exchange(_text(error)))
        return cast("_T", value)

    def _on_first(self, action: Callable[[], _T]) -> _T:
        """Returns what an action returns on rank 0; raises on all ranks if it raises."""
        value, error = _attempt(action) if self._rank == 0 else (None, None)
        replies = self._exchange((_text(error), value))
        _raise_first(error, [text for text, _ in replies])
        return cast("_T", replies[0][1])

    def _agreed(self, step: int, packed: PackedState) -> PackedState:
        """Returns the state with the plain half of all ranks together.

        Raises:
            ValueError: Plain data differs between ranks, or a small tensor in it.
        """
        parts = {k: e for k, e in packed.entries.items() if is_partial(e)}
        # A part is equal to others by its name alone; what is in it comes after that.
        digests = {"the step": str(step)}
        for key, entry in packed.entries.items():
            names = entry["tensors"] if entry["kind"] in {"data", "object"} else ()
            values = [_values(packed.tensors[name]) for name in names]
            own = None if key in parts else (entry, values)
            digests[key] = hashlib.sha256(repr(own).encode()).hexdigest()
        replies = self._exchange((digests, parts))
        first = replies[0][0]
        for rank, (other, _) in enumerate(replies):
            different = sorted({key for key, _ in first.items() ^ other.items()})
            if different:
                message = (
                    f"rank 0 and rank {rank} save different values in "
                    f"{', '.join(different)}. Save what belongs to one rank as a sharded "
                    "tensor, or by drivetrain-checkpoint, which keeps what each rank has"
                )
                raise ValueError(message)
        merged = {k: merge_entries(k, [of[k] for _, of in replies]) for k in parts}
        return PackedState(packed.tensors, {**packed.entries, **merged})

    def _write(self, path: Path, packed: PackedState) -> dict[str, FileDigest]:
        """Writes this rank's files, and returns what they hold."""
        with warnings.catch_warnings():
            # DCP warns when there is no process group, which is meant here.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp_save(
                {**packed.tensors, RECORD: packed.entries},
                storage_writer=FileSystemWriter(path, sync_files=True),
                planner=DefaultSavePlanner(
                    flatten_state_dict=False, flatten_sharded_tensors=False
                ),
                process_group=self._group,
                no_dist=not dist.is_initialized(),
            )
        own = sorted(path.glob(f"__{self._rank}_*"))
        if self._rank == 0:
            own.append(path / ".metadata")
        return {file.name: digest_of(file) for file in own}

    def _whole(self, step: int | None) -> Committed:
        """Returns the newest checkpoint that is not damaged, of a step or of all."""
        *newer, oldest = self._on_first(lambda: self._folder.candidates(step))
        for checkpoint in newer:
            try:
                self._on_all(functools.partial(self._verify, checkpoint))
            except CheckpointError as error:
                logger.warning("the one before is restored: %s", error)
            else:
                return checkpoint
        self._on_all(lambda: self._verify(oldest))
        return oldest

    def _verify(self, checkpoint: Committed) -> None:
        """Compares this rank's share of the files with the manifest."""
        files = read_manifest(checkpoint)
        world_size = dist.get_world_size(self._group) if dist.is_initialized() else 1
        verify(checkpoint, files, sorted(files)[self._rank :: world_size])


def _plan(
    checkpoint: Committed, into: MutableMapping[str, object], *, strict: bool
) -> tuple[Restoration, Metadata]:
    files = read_manifest(checkpoint)
    index = read_index(checkpoint.path)
    record: dict[str, object] = {RECORD: None}
    read_into(checkpoint.path, record, index, files)
    entries: Any = record[RECORD]
    return plan_restoration(into, entries, specs_of(index), strict=strict), index


def _read(checkpoint: Committed, plan: Restoration, index: Metadata) -> None:
    for prepare in plan.prepare:
        prepare()
    targets: dict[str, object] = {n: t for p in plan.targets for n, t in p().items()}
    read_into(checkpoint.path, targets, index, read_manifest(checkpoint))
    for finish in plan.finish:
        finish()


def _values(tensor: torch.Tensor) -> object:
    """Returns what a small tensor holds, such as a state of random numbers."""
    is_here = type(tensor) is torch.Tensor and tensor.device.type == "cpu"
    try:
        return tensor.tolist() if is_here and tensor.nbytes <= _SMALL_BYTES else None
    except RuntimeError:  # it has no memory, or nothing that Python has numbers for
        return None


def _attempt(action: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    """Runs an action that other ranks wait for, so that its error reaches them."""
    try:
        return action(), None
    # DCP's own error is no Exception. Whatever it is, it is raised after the ranks have
    # told each other.
    except (Exception, CheckpointException) as error:  # noqa: BLE001
        return None, error


def _text(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else ""


def _raise_first(own: BaseException | None, texts: list[str]) -> None:
    """Raises this rank's error, or that of the first rank that has one."""
    if isinstance(own, CheckpointError):
        raise own
    if own is not None:
        raise CheckpointError(_text(own)) from own
    for rank, text in enumerate(texts):
        if text:
            message = f"rank {rank} failed: {text}"
            raise CheckpointError(message)
