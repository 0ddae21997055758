"""Locates the save to restore with all ranks: in memory, on local disks, on storage."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._errors import CorruptCheckpointError, DaemonError
from drivetrain_checkpoint._layout.entries import read_entries
from drivetrain_checkpoint._layout.tensor_layout import Layout
from drivetrain_checkpoint._restore.select_step import (
    HeldShard,
    SelectedSave,
    StoredSave,
    select_step,
)
from drivetrain_checkpoint._restore.sources import MemorySource, PeerSource
from drivetrain_checkpoint._storage.catalog import checkpoints_of_job, read_root, scan
from drivetrain_checkpoint._storage.course import Dated
from drivetrain_checkpoint._storage.local_store import LocalStore
from drivetrain_checkpoint._storage.open_checkpoint import CommittedCheckpoint
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from drivetrain_checkpoint._daemon.client import Client
    from drivetrain_checkpoint._job_context import JobContext
    from drivetrain_checkpoint._layout.shard_source import ShardSource
    from drivetrain_checkpoint._rank_group import Rendezvous
    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_core.services.packed_state import Entry

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlainHalf:
    """What stands beside the tensors of a save, as it lay in memory or on a local disk.

    Args:
        text: Entries and layout as JSON, without braces.
        name: The save, as a user calls it.
    """

    text: bytes
    name: str

    def entries(self) -> dict[str, Entry]:
        """Returns the plain half of the state.

        Raises:
            CorruptCheckpointError: There is none in what was saved.
        """
        return read_entries(self._fields.get("entries"), self.name)

    @functools.cached_property
    def layout(self) -> Layout:
        """Who saved what.

        Raises:
            CorruptCheckpointError: What was saved does not say.
        """
        return Layout.from_plain(self._fields.get("layout", {}), self.name)

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(b"{" + self.text + b"}")
        except (ValueError, RecursionError) as error:
            message = f"{self.name} is damaged on the disk of a node: {error}"
            raise CorruptCheckpointError(message) from error
        return found


class LocatedSave:
    """A save that was selected, ready to be read.

    Args:
        selected: What was selected.
        plain: What stands beside its tensors.
        source: Gives the place that a rank's part is read from; asked once for each.
    """

    def __init__(
        self,
        selected: SelectedSave,
        plain: PlainHalf | CommittedCheckpoint,
        source: Callable[[int], ShardSource],
    ) -> None:
        """Reads nothing yet."""
        self.selected = selected
        self._plain = plain
        self._source = functools.cache(source)
        self._opened: dict[int, ShardSource] = {}

    def entries(self) -> dict[str, Entry]:
        """Returns the plain half of the state; raises what `PlainHalf` does."""
        return self._plain.entries()

    @property
    def layout(self) -> Layout:
        """Who saved what; raises what `PlainHalf` does."""
        return self._plain.layout

    def source(self, rank: int) -> ShardSource:
        """Returns the place that a rank's part is read from."""
        found = self._opened[rank] = self._source(rank)
        return found

    def is_intact(self) -> bool:
        """Whether all that has been read so far was the save, to its last byte."""
        return all(source.is_intact() for source in self._opened.values())


@dataclass(slots=True)
class _NodeSaves:
    """What this node has: parts of saves, and for the first rank's what is plain."""

    held: list[HeldShard] = field(default_factory=list)
    memory: dict[tuple[int, str], ShardSource] = field(default_factory=dict)
    disk: dict[tuple[int, str], ShardSource] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _StorageSaves:
    """What is on storage, as the first rank sees it."""

    stored: list[StoredSave] = field(default_factory=list)
    damaged: list[Dated] = field(default_factory=list)
    problem: str = ""
    others: str = ""


def locate(
    job: JobContext,
    step: int | None,
    under: str = "",
    damaged: Sequence[Dated] = (),
) -> LocatedSave:
    """Selects the save that was made last and is whole; all ranks call it.

    Where newer ones of its course are damaged, a warning names them.

    Args:
        job: The job.
        step: The step; None for the last.
        under: The folder in that of the checkpointer.
        damaged: Saves that turned out to be damaged when they were read.

    Raises:
        CheckpointError: There is none, and the message lists what there is; or ranks
            want different ones.
        CorruptCheckpointError: All that would be selected is damaged.
        StorageError: The storage fails.
    """
    group, rendezvous = job.group, job.rendezvous()
    storage = job.storage_of(under)
    with contextlib.suppress(DaemonError):
        # A daemon that died took nothing with it that a trainer still holds: a new one
        # learns of it, from all ranks before any of them looks.
        job.client.hello()
    _check_alike(group.all_gather((step, under)))
    nodes = rendezvous.nodes
    here = _saves_on_node(job.client, nodes.here, under)
    is_first = group.rank == 0
    there = _saves_on(storage, job) if is_first else _StorageSaves()
    mine = next((node.ranks for node in nodes.nodes if node.id == nodes.here), ())
    speaks = group.rank == min(mine, default=group.rank)
    answers = group.all_gather((here.held if speaks else [], there))
    every = [part for held, _ in answers for part in held]
    there = answers[0][1]
    held = {part.manifest["save_id"] for part in every}
    unread = [one for one in there.damaged if one.save_id not in held]
    found = select_step(every, there.stored, step, [*damaged, *unread])
    if found.save is None:
        if found.damage:
            raise CorruptCheckpointError(found.because)
        notes = "; ".join(filter(None, [there.problem, there.others]))
        message = f"{storage.url} has {found.because}" + (
            f" ({notes})" if notes else ""
        )
        raise CheckpointError(message)
    damage = (*found.damage, *filter(None, [there.problem]))
    if damage and is_first:
        passed_over = "; ".join(damage)
        logger.warning("step %d is restored: %s", found.save.step, passed_over)
    return _open(job, storage, found.save, here)


def _check_alike(wanted: Sequence[tuple[int | None, str]]) -> None:
    """Raises if ranks restore different steps: each would get parts of both."""
    for rank, other in enumerate(wanted):
        if other != wanted[0]:
            message = (
                f"rank 0 and rank {rank} restore different checkpoints (step and folder "
                f"{wanted[0]}, {other}): let one rank choose, and tell it to the others"
            )
            raise CheckpointError(message)


def _saves_on_node(client: Client, node: str, under: str) -> _NodeSaves:
    """Returns what lies in this node's memory, and on its disk."""
    found = _NodeSaves()
    try:
        arenas = [Arena(fd) for fd in client.attach()]
    except DaemonError as error:
        logger.warning("what lies in this node's memory is not known: %s", error)
        arenas = []
    for arena in arenas:
        for generation in arena.generations():
            record = generation.record
            key = (record["manifest"]["rank"], record["save_id"])
            if key in found.memory or record.get("under", "") != under:
                continue
            body = arena.body(generation)
            if not arena.has(generation):
                continue  # a trainer has begun another save in its place
            found.memory[key] = MemorySource(arena, generation)
            found.held.append(_held(node, record, is_on_disk=False))
            if key[0] == 0:
                found.plain[key[1]] = body
    settings = client.settings
    local = LocalStore(settings.local, settings.job) if settings.local else None
    for part in local.parts() if local else ():
        key = (part.manifest.rank, part.manifest.save_id)
        if part.record.get("under", "") != under:
            continue
        with contextlib.suppress(CorruptCheckpointError):
            found.disk[key] = part.open()
            found.held.append(_held(node, part.record, is_on_disk=True))
            if key[0] == 0:
                found.plain.setdefault(key[1], part.body)
    return found


def _held(node: str, record: Mapping[str, Any], *, is_on_disk: bool) -> HeldShard:
    return HeldShard(node, record["manifest"], record["saved_at_ns"], is_on_disk)


def _saves_on(storage: Storage, context: JobContext) -> _StorageSaves:
    job = context.settings.job
    try:
        saved, damaged = scan(storage)
    except CheckpointError as error:
        return _StorageSaves(problem=str(error))
    stored = [
        StoredSave(one.name, one.root.step, one.root.save_id, one.root.saved_at_ns)
        for one in checkpoints_of_job(saved, job, adopt=context.adopt)
    ]
    others = sorted({one.root.job for one in saved} - {job})
    # What names no job any more may be any job's: its step says nothing of ours.
    nobodys = "; ".join(str(one.error) for one in damaged if not one.job)
    text = (
        f"job {job!r} has none, {' and '.join(map(repr, others))} have: pass job= to go "
        "on as one of them, or adopt=True to start from the newest"
    )
    mine = [
        Dated(one.saved_at_ns, one.step, one.save_id, str(one.error))
        for one in damaged
        if one.job == job
    ]
    return _StorageSaves(stored, mine, nobodys, text if others and not stored else "")


def _open(
    job: JobContext, storage: Storage, selected: SelectedSave, here: _NodeSaves
) -> LocatedSave:
    stored = selected.stored
    body = here.plain.get(selected.save_id)
    has = job.group.all_gather(body is not None)

    @functools.cache
    def committed() -> CommittedCheckpoint:
        assert stored is not None
        try:
            root = read_root(storage, stored.name)
        except FileNotFoundError as error:
            message = f"{storage.url}/{stored.name} has gone meanwhile"
            raise CorruptCheckpointError(message) from error
        return CommittedCheckpoint(storage, stored.name, root)

    plain: PlainHalf | CommittedCheckpoint
    if any(has):
        text = job.group.broadcast(body, has.index(True))
        plain = PlainHalf(text, f"step {selected.step}")
    else:
        plain = job.group.run_on_all(committed)

    def source(rank: int) -> ShardSource:
        key = (rank, selected.save_id)
        place = next(_places(job.rendezvous(), selected, here, key), None)
        if place is not None:
            return place
        if stored is None:
            message = f"step {selected.step} of rank {rank} is nowhere any more"
            raise CorruptCheckpointError(message)
        return committed().source(rank)

    return LocatedSave(selected, plain, source)


def _places(
    rendezvous: Rendezvous,
    selected: SelectedSave,
    here: _NodeSaves,
    key: tuple[int, str],
) -> Iterator[ShardSource]:
    """Yields where a rank's part can be had, the nearest first, but for the storage."""
    if key in here.memory:
        yield here.memory[key]
    parts = selected.held.get(key[0], ())
    yield from _on_peers(rendezvous, [part for part in parts if not part.is_on_disk])
    if key in here.disk:
        yield here.disk[key]
    yield from _on_peers(rendezvous, [part for part in parts if part.is_on_disk])


def _on_peers(rendezvous: Rendezvous, parts: list[HeldShard]) -> Iterator[ShardSource]:
    others = {node.id: node for node in rendezvous.nodes.others if node.port}
    for part in parts:
        if part.node in others:
            peer = PeerSource(others[part.node], rendezvous.secret, part.manifest)
            # A node that is gone by now is passed over.
            with contextlib.suppress(DaemonError):
                _ = peer.slots
                yield peer
