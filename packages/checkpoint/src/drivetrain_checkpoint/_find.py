"""Finds, with all ranks, the save to go on from, and opens it where it is nearest."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._choose import Choice, Held, Stored, choose
from drivetrain_checkpoint._errors import (
    CorruptCheckpointError,
    DaemonError,
    ForeignCheckpointError,
)
from drivetrain_checkpoint._layout import Layout
from drivetrain_checkpoint._local import LocalStore
from drivetrain_checkpoint._saves import own, read_root, scan
from drivetrain_checkpoint._sources import MemorySource, PeerSource, StorageSource
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_checkpoint._client import Client
    from drivetrain_checkpoint._nodes import Nodes
    from drivetrain_checkpoint._sources import ImageSource
    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_checkpoint._team import Meeting, Team

__all__ = ["OpenSave", "find"]


class OpenSave:
    """A save that was chosen, ready to be read.

    Args:
        choice: What was chosen.
        entries: The plain half of the state, as JSON.
        layout: Who saved what.
        sources: Gives the place that a rank's part is read from.
    """

    def __init__(
        self,
        choice: Choice,
        entries: Mapping[str, Any],
        layout: Layout,
        sources: Any,
    ) -> None:
        """Reads nothing yet."""
        self.choice = choice
        self.entries = entries
        self.layout = layout
        self.source: Any = functools.cache(sources)


@dataclass(slots=True)
class _Here:
    """What this node has: parts of saves, and for the first rank's what is plain."""

    held: list[Held] = field(default_factory=list)
    memory: dict[tuple[int, str], ImageSource] = field(default_factory=dict)
    disk: dict[tuple[int, str], ImageSource] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _OnStorage:
    """What is on storage, as the first rank sees it."""

    stored: list[Stored] = field(default_factory=list)
    broken: dict[Any, tuple[bool, str]] = field(default_factory=dict)
    problem: str = ""


def find(
    team: Team,
    client: Client,
    storage: Storage,
    meeting: Meeting,
    step: int | None,
    under: str = "",
) -> OpenSave:
    """Chooses the save that was made last and is whole; all ranks call it.

    Args:
        team: The ranks.
        client: The way to this node's daemon.
        storage: Where checkpoints are kept.
        meeting: What the ranks know of each other.
        step: The step; None for the last.
        under: The folder in that of the checkpointer; `storage` is that folder.

    Raises:
        CheckpointError: There is none; the message lists what there is.
        CorruptCheckpointError: What would be chosen is damaged.
        StorageError: The storage fails.
    """
    with contextlib.suppress(DaemonError):
        # A daemon that died took nothing with it that a trainer still holds: a new one
        # learns of it, from all ranks before any of them looks.
        client.hello()
    team.exchange(None)
    here = _look_here(client, meeting.nodes.here, under)
    job = client.settings.job
    there = _look_at(storage, job) if team.rank == 0 else _OnStorage()
    nodes = meeting.nodes
    mine = next((node.ranks for node in nodes.nodes if node.id == nodes.here), ())
    speaks = team.rank == min(mine, default=team.rank)
    answers = team.exchange((here.held if speaks else [], there))
    every = [part for held, _ in answers for part in held]
    on_storage: _OnStorage = answers[0][1]
    choice = choose(every, on_storage.stored, step)
    _check_nothing_newer_is_broken(every, on_storage, choice, step)
    if isinstance(choice, str):
        because = f" ({on_storage.problem})" if on_storage.problem else ""
        message = f"{storage.url} has {choice}{because}"
        raise CheckpointError(message)
    return _open(team, storage, meeting, choice, here)


def _look_here(client: Client, node: str, under: str) -> _Here:
    """Returns what lies in this node's memory, and on its disk."""
    found = _Here()
    try:
        arenas = [Arena(fd) for fd in client.attach()]
    except DaemonError:
        arenas = []
    for arena in arenas:
        for generation in arena.generations():
            record = generation.record
            key = (record["manifest"]["rank"], record["save_id"])
            if key in found.memory or record.get("under", "") != under:
                continue
            found.memory[key] = MemorySource(arena, generation)
            found.held.append(_held(node, record))
            if key[0] == 0:
                found.plain[key[1]] = arena.body(generation)
    settings = client.settings
    local = LocalStore(settings.local, settings.job) if settings.local else None
    for part in local.parts() if local else ():
        key = (part.manifest.rank, part.manifest.save_id)
        if part.record.get("under", "") != under:
            continue
        with contextlib.suppress(CorruptCheckpointError):
            assert local is not None
            found.disk[key] = StorageSource(
                local.storage, part.name, part.manifest, dict
            )
            found.held.append(_held(node, part.record, is_on_disk=True))
            if key[0] == 0:
                found.plain.setdefault(key[1], part.body)
    return found


def _held(node: str, record: Mapping[str, Any], *, is_on_disk: bool = False) -> Held:
    return Held(
        node=node,
        rank=record["manifest"]["rank"],
        manifest=record["manifest"],
        saved_at_ns=record["saved_at_ns"],
        is_on_disk=is_on_disk,
    )


def _look_at(storage: Storage, job: str) -> _OnStorage:
    found = _OnStorage()
    try:
        saved, damaged = scan(storage)
    except CheckpointError as error:
        found.problem = str(error)
        return found
    found.stored = [
        Stored(
            name=one.name,
            step=one.root.step,
            save_id=one.root.save_id,
            saved_at_ns=one.root.saved_at_ns,
        )
        for one in own(saved, job)
    ]
    found.broken = {
        name: (isinstance(error, ForeignCheckpointError), str(error))
        for name, error in damaged.items()
    }
    return found


def _check_nothing_newer_is_broken(
    every: list[Held], on_storage: _OnStorage, choice: Choice | str, step: int | None
) -> None:
    """Raises for a damaged checkpoint that would have been chosen.

    An older step would be no answer, since nobody would notice.
    """
    held = {part.manifest["save_id"] for part in every}
    for (old_step, save_id), (is_foreign, text) in on_storage.broken.items():
        is_newer = isinstance(choice, str) or choice.step < old_step
        if step in {None, old_step} and save_id not in held and is_newer:
            kind = ForeignCheckpointError if is_foreign else CorruptCheckpointError
            raise kind(text)


def _open(
    team: Team, storage: Storage, meeting: Meeting, choice: Choice, here: _Here
) -> OpenSave:
    stored = choice.stored
    body = here.plain.get(choice.save_id)
    has = team.exchange(body is not None)

    @functools.cache
    def root() -> Any:
        assert stored is not None
        try:
            return read_root(storage, stored.name)
        except FileNotFoundError as error:
            message = f"{storage.url}/{stored.name} has gone meanwhile"
            raise CorruptCheckpointError(message) from error

    if any(has):
        plain = json.loads(b"{" + team.broadcast(body, has.index(True)) + b"}")
    else:
        plain = {"entries": root().entries, "layout": root().layout}

    def source(rank: int) -> ImageSource:
        key = (rank, choice.save_id)
        place = next(_places(meeting, choice, here, key), None)
        if place is not None:
            return place
        if stored is None:
            message = f"step {choice.step} of rank {rank} is nowhere any more"
            raise CorruptCheckpointError(message)
        return StorageSource.committed(storage, stored.name, root(), rank)

    layout = Layout.from_plain(plain["layout"])
    return OpenSave(choice, plain["entries"], layout, source)


def _places(
    meeting: Meeting, choice: Choice, here: _Here, key: tuple[int, str]
) -> Iterator[ImageSource]:
    """Yields where a rank's part can be had, the nearest first, but for the storage."""
    if key in here.memory:
        yield here.memory[key]
    parts = choice.held.get(key[0], ())
    yield from _of_peers(meeting, [part for part in parts if not part.is_on_disk])
    if key in here.disk:
        yield here.disk[key]
    yield from _of_peers(meeting, [part for part in parts if part.is_on_disk])


def _of_peers(meeting: Meeting, parts: list[Held]) -> Iterator[ImageSource]:
    nodes: Nodes = meeting.nodes
    for part in parts:
        node = next((n for n in nodes.others if n.id == part.node), None)
        if node is not None and node.port:
            peer = PeerSource(node, meeting.secret, part.manifest)
            # A node that is gone by now is passed over.
            with contextlib.suppress(DaemonError):
                peer.slots()
                yield peer
