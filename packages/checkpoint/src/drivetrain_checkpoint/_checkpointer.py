"""Saves a run's state into memory that outlives it, and brings it back."""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._client import Client
from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._fill import fill
from drivetrain_checkpoint._handle import SaveHandle
from drivetrain_checkpoint._pieces import DTYPES, Piece, pieces_of
from drivetrain_checkpoint._plain import from_json
from drivetrain_checkpoint._record import EntryTexts, PlannedImage, record_text
from drivetrain_checkpoint._source import find_in_memory, find_on_storage, opened
from drivetrain_core import CheckpointError
from drivetrain_core.services import TensorSpec, pack_state, plan_restoration

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, MutableMapping, Sequence

    from torch import Tensor

    from drivetrain_checkpoint._image import Image
    from drivetrain_checkpoint._source import Found

__all__ = ["Checkpointer"]

_ROOM = 1.25
"""How much more than the first record's length is set aside for later ones."""


class Checkpointer:
    """Saves in two stages: a copy into shared memory, then storage, by a daemon.

    The daemon of the node owns the memory. It is started with the first save and lives
    on when the trainers die: what was copied is written and committed without them, and
    a new trainer restores from memory, or from storage where there is none.

    Not thread-safe. With `torch.distributed`, every rank calls `save` and `restore` in
    the same order. The ranks of a job must be on one node; storage is a local folder
    or one that is shared.

    Args:
        folder: Where checkpoints go; it is made.
        job: The job's name. Jobs with other names do not see each other's memory.
        keep: How many checkpoints stay on storage.
        num_threads: How many threads copy; those of torch by default.
        process_group: The ranks that save together; the default group by default.

    Raises:
        ValueError: `keep` is less than 1, or `job` is empty.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> model = torch.nn.Linear(4, 2)
        >>> checkpointer = Checkpointer(folder, job="doctest")
        >>> handle = checkpointer.save(10, {"model": model, "position": 640})
        >>> handle.wait()
        True
        >>> state = {"model": torch.nn.Linear(4, 2), "position": 0}
        >>> checkpointer.restore(state), state["position"]
        (10, 640)
        >>> torch.equal(state["model"].weight, model.weight)
        True
        >>> checkpointer.stop_daemon()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        job: str = "default",
        keep: int = 3,
        num_threads: int | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Checks the arguments; nothing is started and no folder made."""
        if keep < 1:
            message = f"keep must be at least 1, got {keep}"
            raise ValueError(message)
        if not job:
            message = "job must be a name, got an empty one"
            raise ValueError(message)
        self._folder = Path(folder)
        self._job = job
        self._keep = keep
        self._num_threads = num_threads
        self._group = process_group
        self._client = Client(job, self._folder, keep)
        self._arena: Arena | None = None
        self._sequence = 0
        self._plan: PlannedImage | None = None
        self._entries = EntryTexts()
        self._unreported: list[SaveHandle] = []

    def save(self, step: int, state: Mapping[str, object]) -> SaveHandle:
        """Copies a state into memory; when it returns, the state may be changed.

        If the memory still holds a save that is being written, this waits for it.

        Args:
            step: The number of steps that the state has seen. Saving a step again
                replaces it.
            state: Models, optimizers, tensors, objects with `state_dict`, and plain
                data, by name.

        Raises:
            TypeError: The state holds what a checkpoint cannot.
            ValueError: The step is negative, or ranks save different plain data.
            NamesError: Two tensors have one name.
            DaemonError: The daemon cannot be started.
            MemoryError: The machine has no memory for a copy.
        """
        start = time.perf_counter()
        if step < 0:
            message = f"step must be at least 0, got {step}"
            raise ValueError(message)
        packed = pack_state(state)
        entries = self._entries.text(packed.entries)
        save_id, saved_at_ns = self._agree(step, entries)
        pieces = pieces_of(packed.tensors, self._rank, self._world_size)
        if self._plan is None or not self._plan.fits(pieces):
            self._plan = PlannedImage(pieces)
        image = self._plan.image
        text = record_text(
            {"save_id": save_id, "step": step, "saved_at_ns": saved_at_ns},
            self._manifest(step, save_id, image),
            self._plan.parts_text,
            entries if self._rank == 0 else None,
        )
        arena, index, room = self._begin(image, text)
        self._copy(arena, index, room, image, pieces)
        self._sequence += 1
        arena.publish(index, self._sequence, text, room, image.size_bytes)
        self._client.ask(
            {
                "op": "saved",
                "rank": self._rank,
                "index": index,
                "sequence": self._sequence,
                "save_id": save_id,
            }
        )
        handle = SaveHandle(
            step=step,
            save_id=save_id,
            stall_s=time.perf_counter() - start,
            folder=self._folder,
            client=Client(self._job, self._folder, self._keep),
        )
        self._unreported = [h for h in self._unreported if not h.durable] + [handle]
        return handle

    def restore(
        self, into: MutableMapping[str, object], step: int | None = None
    ) -> int:
        """Restores a state in place: from memory if it is there, else from storage.

        Args:
            into: What to restore into, by the names that were saved; plain data is
                replaced.
            step: The step; by default the one that was saved last.

        Returns:
            The step that was restored.

        Raises:
            CheckpointError: There is none, or it does not fit, with every reason.
            CorruptCheckpointError: It is damaged; nothing has been changed.
        """
        found = self._choose(step)
        entries: Any = from_json(found.entries)
        with opened(found) as parts:
            specs = {
                name: TensorSpec(
                    name=name,
                    global_shape=blocks[0][0].global_shape,
                    dtype=DTYPES[blocks[0][0].dtype],
                )
                for name, blocks in parts.items()
            }
            plan = plan_restoration(into, entries, specs)
            for prepare in plan.prepare:
                prepare()
            targets: dict[str, Tensor] = {}
            for target in plan.targets:
                targets.update(target())
            fill(targets, parts)
            for finish in plan.finish:
                finish()
        return found.step

    def flush(self, deadline_s: float | None = None) -> bool:
        """Waits until every save so far is durable.

        Args:
            deadline_s: When to stop waiting, as `time.monotonic()` counts; None is
                without limit.

        Returns:
            Whether all are durable.

        Raises:
            StorageError: A save has failed.
        """
        for handle in list(self._unreported):
            left = None if deadline_s is None else deadline_s - time.monotonic()
            if not handle.wait(left if left is None else max(0.0, left)):
                return False
            self._unreported.remove(handle)
        return True

    def latest(self) -> int | None:
        """Returns the step that was saved last and is durable, or None."""
        saved = find_on_storage(self._folder)
        return saved[-1].step if saved else None

    def stop_daemon(self) -> None:
        """Stops the daemon, and gives up the memory that it holds."""
        if self._client.is_running():
            self._client.ask({"op": "stop"})
        self._client.close()

    @property
    def _rank(self) -> int:
        return dist.get_rank(self._group) if dist.is_initialized() else 0

    @property
    def _world_size(self) -> int:
        return dist.get_world_size(self._group) if dist.is_initialized() else 1

    def _exchange(self, value: object) -> list[Any]:
        if not dist.is_initialized():
            return [value]
        values: list[Any] = [None] * self._world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _agree(self, step: int, entries: str) -> tuple[str, int]:
        """Returns what all ranks call this save, after comparing their plain data."""
        digest = hashlib.sha256(entries.encode()).hexdigest()
        mine = (step, digest, secrets.token_hex(8), time.time_ns())
        values = self._exchange(mine)
        for rank, other in enumerate(values):
            if other[:2] != values[0][:2]:
                what = "steps" if other[0] != values[0][0] else "plain data"
                message = (
                    f"rank 0 and rank {rank} save different {what}. What is no tensor "
                    "must be equal on all ranks; save what belongs to one rank as a "
                    "sharded tensor"
                )
                raise ValueError(message)
        return values[0][2], values[0][3]

    def _manifest(self, step: int, save_id: str, image: Image) -> dict[str, object]:
        """Returns the fields of this rank's manifest but for its parts."""
        return {
            "job": self._job,
            "step": step,
            "save_id": save_id,
            "rank": self._rank,
            "world_size": self._world_size,
            "size_bytes": image.size_bytes,
            "block_bytes": _native.BLOCK_BYTES,
            "crc32c": [],
        }

    def _begin(self, image: Image, record: bytes) -> tuple[Arena, int, int]:
        """Returns the arena, the generation to fill, and the room for its record."""
        room = len(record)
        arena = self._arena
        if arena is None or not arena.holds(image.size_bytes, room):
            self.flush()
            arena = Arena.create(image.size_bytes, int(room * _ROOM))
            self._client.arm(self._rank, arena.fd)
            self._arena = arena
        # This process alone fills the arena, one generation after the other.
        index = self._sequence % 2
        question = {"op": "free", "rank": self._rank, "index": index}
        while not self._client.ask({**question, "timeout_s": 1.0})["free"]:
            pass
        arena.begin(index)
        return arena, index, room

    def _copy(
        self,
        arena: Arena,
        index: int,
        room: int,
        image: Image,
        pieces: Sequence[Piece],
    ) -> None:
        """Fills a generation: CPU tensors in one go, others through torch."""
        address = arena.image_address(room, index)
        base = address - arena.address
        view = arena.view(base, image.size_bytes)
        view[: len(image.header)] = image.header
        by_name = {piece.name: piece.local for piece in pieces}
        blocks = []
        for slot in image.slots:
            tensor = by_name[slot.name]
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                blocks.append(
                    (tensor.data_ptr(), address + slot.start, slot.size_bytes)
                )
            elif slot.size_bytes:
                target = torch.frombuffer(
                    view[slot.start : slot.start + slot.size_bytes], dtype=torch.uint8
                )
                target.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        _native.copy(blocks, self._num_threads or torch.get_num_threads())

    def _choose(self, step: int | None) -> Found:
        """Returns the newest checkpoint that every rank can read, in memory first."""
        try:
            in_memory = find_in_memory(self._client)
        except DaemonError:
            in_memory = []  # a daemon that is gone took the memory with it
        found = {f.save_id: f for f in find_on_storage(self._folder)}
        found.update({f.save_id: f for f in in_memory})
        everywhere = set.intersection(*map(set, self._exchange(sorted(found))))
        choices = [
            found[save_id]
            for save_id in everywhere
            if step is None or found[save_id].step == step
        ]
        if not choices:
            there = sorted({f.step for f in found.values()})
            listed = ", ".join(map(str, there)) or "none"
            wanted = (
                "no checkpoint" if step is None else f"no checkpoint of step {step}"
            )
            message = f"{self._folder} has {wanted}; steps there are: {listed}"
            raise CheckpointError(message)
        return max(choices, key=lambda f: (f.saved_at_ns, f.step))
