"""Catalog of the checkpoints on a storage: listed, read, and retired."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_checkpoint._arguments import count
from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._layout.manifest import (
    ROOT_FILE,
    RankFile,
    RankManifest,
    RootManifest,
    rank_manifest_file,
    tensor_file,
)
from drivetrain_checkpoint._storage.course import Chosen, Dated, choose
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_checkpoint._storage.protocol import parse_name

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_core import CheckpointError

_ABANDONED_S = 6 * 3600.0


class CheckpointInfo(NamedTuple):
    """A committed checkpoint.

    Args:
        step: The step.
        job: The job that saved it.
        saved_at: When it was saved.
        world_size: How many ranks saved it.
        size_bytes: How long its files are together.
        url: Its folder.
    """

    step: int
    job: str
    saved_at: dt.datetime
    world_size: int
    size_bytes: int
    url: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint.

    Args:
        name: Its folder in the storage.
        root: Its root manifest.
    """

    name: str
    root: RootManifest

    def without_plain(self) -> Saved:
        """Returns what is small of it."""
        return Saved(self.name, replace(self.root, entries={}, layout={}))


class DamagedSave(NamedTuple):
    """A checkpoint that was committed, and whose root manifest does not read.

    Args:
        name: Its folder in the storage.
        step: The step.
        save_id: What its files have in common.
        job: The job that saved it; empty if nothing says so any more.
        error: What is wrong with it.
    """

    name: str
    step: int
    save_id: str
    job: str
    error: CheckpointError

    @property
    def saved_at_ns(self) -> int:
        """When it was saved: its id says so."""
        return int(self.save_id, 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Which checkpoints stay on storage: the last ones, and some for good.

    Args:
        last: How many of the newest stay; None for all.
        every: Those whose step is a multiple of this stay for good; None for none.

    Raises:
        TypeError: One of them is no whole number.
        ValueError: One of them is less than 1.

    Example:
        >>> Keep(last=2, every=1000)
        Keep(last=2, every=1000)
    """

    last: int | None = 3
    every: int | None = None

    def __post_init__(self) -> None:
        """Checks both numbers."""
        for name in ("last", "every"):
            value = getattr(self, name)
            if value is not None:
                number = count(f"keep: {name}", value, 1)
                object.__setattr__(self, name, number)


def list_checkpoints(
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[CheckpointInfo]:
    """Returns the committed checkpoints of a folder, the one saved last at the end.

    What is not committed, or whose root manifest is damaged, is left out.

    Args:
        folder: Where a checkpointer saves: a path or an URL.
        storage_options: For URLs, what fsspec is to know.

    Raises:
        StorageError: The storage fails.

    Example:
        >>> list_checkpoints("no/such/folder")
        []
    """
    storage = open_storage(resolve(folder), storage_options)
    return [
        CheckpointInfo(
            step=saved.root.step,
            job=saved.root.job,
            saved_at=dt.datetime.fromtimestamp(saved.root.saved_at_ns / 1e9, dt.UTC),
            world_size=saved.root.world_size,
            size_bytes=sum(storage.files(saved.name).values()),
            url=f"{storage.url}/{saved.name}",
        )
        for saved in list_saved(storage)
    ]


def list_saved(storage: Storage) -> list[Saved]:
    """Returns the committed checkpoints of a storage, the one saved last at the end.

    What is not committed, or does not read, is left out.

    Raises:
        StorageError: The storage fails.
    """
    return scan(storage)[0]


def checkpoints_of_job(
    saved: Sequence[Saved], job: str, *, adopt: bool = False
) -> list[Saved]:
    """Returns the checkpoints of a job; those of all if it has none, and adopts them."""
    return [s for s in saved if s.root.job == job] or [s for s in saved if adopt]


def scan(storage: Storage) -> tuple[list[Saved], list[DamagedSave]]:
    """Returns what `list_saved` does, and what was committed and does not read."""
    found: list[Saved] = []
    damaged: list[DamagedSave] = []
    for name in storage.names():
        try:
            found.append(Saved(name, read_root(storage, name)))
        except (CorruptCheckpointError, ForeignCheckpointError) as error:
            said = parse_name(name)
            if said is not None:
                job = _job_of(storage, name)
                damaged.append(DamagedSave(name, *said, job, error))
        except FileNotFoundError:
            continue
    found.sort(key=lambda saved: (saved.root.saved_at_ns, saved.root.step))
    return found, damaged


def look_again(storage: Storage, known: dict[str, Saved]) -> None:
    """Brings what was read of a storage up to date; it costs no more than what is new.

    Args:
        storage: The storage.
        known: What is committed, by its folder, without its plain half.
    """
    names = storage.names()
    for name in known.keys() - set(names):
        del known[name]
    for name in names:
        if name not in known:
            with contextlib.suppress(
                CorruptCheckpointError, ForeignCheckpointError, FileNotFoundError
            ):
                known[name] = Saved(name, read_root(storage, name)).without_plain()


def newest(
    saved: Sequence[Saved], damaged: Sequence[DamagedSave], step: int | None = None
) -> Chosen:
    """Returns the checkpoint that a folder stands for: the newest, or that of a step.

    Args:
        saved: What is committed, the one saved last at the end.
        damaged: What was committed, and does not read.
        step: The step; None for any.
    """
    known = [(one.root.job, _dated(one)) for one in saved] + [
        (one.job, Dated(one.saved_at_ns, one.step, one.save_id, str(one.error)))
        for one in damaged
    ]
    fits = sorted((d, job) for job, d in known if step in {None, d.step})
    if step is not None:
        return choose(d for d, _ in fits[-1:])
    # Steps of two jobs tell nothing of each other.
    return choose(d for d, job in fits if job == fits[-1][1])


def _dated(saved: Saved) -> Dated:
    root = saved.root
    return Dated(root.saved_at_ns, root.step, root.save_id)


def _job_of(storage: Storage, name: str) -> str:
    """Returns the job that a rank's manifest names, if one is readable."""
    file = rank_manifest_file(0)
    try:
        return RankManifest.from_bytes(storage.read(name, file), file).job
    except (CorruptCheckpointError, ForeignCheckpointError, FileNotFoundError):
        return ""


def read_root(storage: Storage, name: str) -> RootManifest:
    """Returns the root manifest of a checkpoint.

    Raises:
        CorruptCheckpointError: It is damaged, or another save's.
        ForeignCheckpointError: It is of another format or version.
        FileNotFoundError: The save was never committed.
    """
    where = f"{storage.url}/{name}/{ROOT_FILE}"
    root = RootManifest.from_bytes(storage.read(name, ROOT_FILE), where)
    said = parse_name(name)
    if said is not None and said != (root.step, root.save_id):
        message = f"{where} is that of step {root.step}, save {root.save_id}"
        raise CorruptCheckpointError(message)
    return root


def read_rank(
    storage: Storage, name: str, root: RootManifest, rank: int
) -> RankManifest:
    """Returns a rank's manifest, checked against the root.

    Raises:
        CorruptCheckpointError: It is missing or damaged, or another save's.
    """
    if rank >= root.world_size:
        message = f"{storage.url}/{name} has no rank {rank}, which its layout names"
        raise CorruptCheckpointError(message)
    entry = root.ranks[rank]
    where = f"{storage.url}/{name}/{entry.file}"
    try:
        text = storage.read(name, entry.file)
    except FileNotFoundError as error:
        message = f"{where} is missing"
        raise CorruptCheckpointError(message) from error
    if RankFile.of(rank, text) != entry:
        message = f"{where} is not what the checkpoint was committed with"
        raise CorruptCheckpointError(message)
    manifest = RankManifest.from_bytes(text, where)
    named = (manifest.step, manifest.save_id, manifest.rank)
    if named != (root.step, root.save_id, rank):
        message = f"{where} is that of step {manifest.step}, rank {manifest.rank}"
        raise CorruptCheckpointError(message)
    return manifest


def written_ranks(
    storage: Storage, name: str, known: dict[int, RankFile], world_size: int
) -> dict[int, RankFile]:
    """Returns the manifests that are in a folder; those that are known are not read.

    Args:
        storage: The storage.
        name: The folder.
        known: What has been reported of them already.
        world_size: How many there will be.
    """
    files = storage.files(name)
    found = {}
    for rank in range(world_size):
        file = rank_manifest_file(rank)
        if file not in files or tensor_file(rank) not in files:
            continue
        reported = known.get(rank)
        if reported is None or reported.size_bytes != files[file]:
            reported = RankFile.of(rank, storage.read(name, file))
        found[rank] = reported
    return found


def retired(
    saved: Sequence[Saved], newest: RootManifest, keep: Keep, *, ahead: bool = False
) -> list[Saved]:
    """Returns the checkpoints of a job that may go, now that there is a newer one.

    A step that was saved again replaces the older one. Those of other jobs stay.

    Args:
        saved: What is committed, the one saved last at the end.
        newest: What was committed last; it never goes.
        keep: What is to be kept.
        ahead: Whether those of later steps may go too, which this training has left
            behind and not reached again.
    """
    mine = [s for s in saved if s.root.job == newest.job]
    replaced = [
        s
        for s in mine
        if s.root.step == newest.step
        and s.root.save_id != newest.save_id
        and s.root.saved_at_ns <= newest.saved_at_ns
    ]
    others = [s for s in mine if s not in replaced]
    keeps = len(others) if keep.last is None else keep.last
    last = max(0, len(others) - keeps)
    old = [s for s in others[:last] if ahead or s.root.step < newest.step]
    every = keep.every
    gone = [s for s in old if every is None or s.root.step % every]
    return [s for s in [*replaced, *gone] if s.root.save_id != newest.save_id]


def abandoned(
    storage: Storage, now_s: float | None = None, committed: Collection[str] = ()
) -> list[str]:
    """Returns the folders of saves that nobody will end: not committed, and long still.

    Args:
        storage: The storage.
        now_s: The time, in seconds since 1970.
        committed: Folders of which it is known that they are committed.
    """
    now = time.time() if now_s is None else now_s
    return [
        name
        for name in {*storage.names(), *storage.unfinished()}
        if name not in committed
        and ROOT_FILE not in storage.files(name)
        and now - storage.changed_s(name) > _ABANDONED_S
    ]
