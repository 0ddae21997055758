"""Brings a save back into live tensors, from the nearest place that has it."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._choose import Choice, Held, Stored, choose
from drivetrain_checkpoint._errors import (
    CorruptCheckpointError,
    DaemonError,
    ForeignCheckpointError,
)
from drivetrain_checkpoint._layout import Layout, size_of
from drivetrain_checkpoint._pieces import DTYPES, layout_of
from drivetrain_checkpoint._reads import digest, gathered, plan_fills
from drivetrain_checkpoint._saves import read_root, scan
from drivetrain_checkpoint._share import groups_of, read_alone, read_together
from drivetrain_checkpoint._sources import MemorySource, PeerSource, StorageSource
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_checkpoint._client import Client
    from drivetrain_checkpoint._layout import Block
    from drivetrain_checkpoint._manifest import RootManifest
    from drivetrain_checkpoint._nodes import Nodes
    from drivetrain_checkpoint._reads import Fill, Read
    from drivetrain_checkpoint._sources import ImageSource
    from drivetrain_checkpoint._storage.protocol import Storage
    from drivetrain_checkpoint._team import Team

__all__ = ["OpenSave", "fill", "find", "open_save"]


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


def find(
    team: Team,
    client: Client,
    storage: Storage,
    nodes: Nodes,
    step: int | None,
) -> tuple[Choice, dict[tuple[int, str], MemorySource], dict[str, Any] | None]:
    """Chooses, with all ranks, the save that was made last and is whole.

    Returns:
        The choice; what of it lies in the memory of this node, by rank; and the record
        of the first rank, if that lies here.

    Raises:
        CheckpointError: There is none; the message lists what there is.
        StorageError: The storage fails.
    """
    mine: list[Held] = []
    local: dict[tuple[int, str], MemorySource] = {}
    records: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(DaemonError):
        # A daemon that died took nothing with it that a trainer still holds: a new one
        # learns of it, from all ranks before any of them looks.
        client.hello()
    team.exchange(None)
    try:
        arenas = [Arena(fd) for fd in client.attach()]
    except DaemonError:
        arenas = []
    for arena in arenas:
        for generation in arena.generations():
            record = generation.record
            manifest = record["manifest"]
            rank, save_id = manifest["rank"], record["save_id"]
            local.setdefault((rank, save_id), MemorySource(arena, generation))
            if rank == 0:
                records[save_id] = json.loads(b"{" + arena.body(generation) + b"}")
            mine.append(
                Held(
                    node=nodes.here,
                    rank=rank,
                    manifest=manifest,
                    saved_at_ns=record["saved_at_ns"],
                )
            )
    stored: list[Stored] = []
    problem = ""
    broken: dict[Any, tuple[bool, str]] = {}
    if team.rank == 0:
        try:
            saved_there, damaged = scan(storage)
            stored = [
                Stored(
                    name=saved.name,
                    step=saved.root.step,
                    save_id=saved.root.save_id,
                    saved_at_ns=saved.root.saved_at_ns,
                )
                for saved in saved_there
            ]
            broken = {
                name: (isinstance(error, ForeignCheckpointError), str(error))
                for name, error in damaged.items()
            }
        except CheckpointError as error:
            problem = str(error)
    first = nodes.nodes and team.rank == min(
        next(node.ranks for node in nodes.nodes if node.id == nodes.here)
    )
    answers = team.exchange((mine if first else [], stored, problem, broken))
    stored = answers[0][1]
    every = [part for answer in answers for part in answer[0]]
    choice = choose(every, stored, step)
    in_memory = {part.manifest["save_id"] for part in every}
    for (old_step, save_id), (is_foreign, text) in answers[0][3].items():
        # An older step would be no answer, since nobody would notice.
        is_newer = isinstance(choice, str) or choice.step < old_step
        if step in {None, old_step} and save_id not in in_memory and is_newer:
            kind = ForeignCheckpointError if is_foreign else CorruptCheckpointError
            raise kind(text)
    if isinstance(choice, str):
        because = f" ({answers[0][2]})" if answers[0][2] else ""
        message = f"{storage.url} has {choice}{because}"
        raise CheckpointError(message)
    return choice, local, records.get(choice.save_id)


def open_save(
    team: Team,
    storage: Storage,
    nodes: Nodes,
    secret: str,
    found: tuple[Choice, dict[tuple[int, str], MemorySource], dict[str, Any] | None],
) -> OpenSave:
    """Opens the save that `find` chose; all ranks call it.

    Raises:
        CorruptCheckpointError: Its manifest is damaged.
    """
    choice, local, record = found
    root: RootManifest | None = None
    has = team.exchange(record is not None)
    plain: Any
    if any(has):
        there = has.index(True)
        plain = team.broadcast(record, there)
    else:
        assert choice.stored is not None
        try:
            root = read_root(storage, choice.stored.name)
        except FileNotFoundError as error:
            message = f"{storage.url}/{choice.stored.name} has gone meanwhile"
            raise CorruptCheckpointError(message) from error
        plain = {"entries": root.entries, "layout": root.layout}
    by_id = {node.id: node for node in nodes.nodes}

    @functools.cache
    def root_manifest() -> RootManifest:
        assert choice.stored is not None
        return root or read_root(storage, choice.stored.name)

    def source(rank: int) -> ImageSource:
        here = local.get((rank, choice.save_id))
        if here is not None:
            return here
        for part in choice.held.get(rank, ()):
            node = by_id.get(part.node)
            if node is not None and node.id != nodes.here and node.port:
                return PeerSource(node, secret, part.manifest)
        if choice.stored is None:
            message = f"step {choice.step} of rank {rank} is nowhere any more"
            raise CorruptCheckpointError(message)
        return StorageSource(storage, choice.stored.name, root_manifest(), rank)

    return OpenSave(
        choice, plain["entries"], Layout.from_plain(plain["layout"]), source
    )


def fill(
    team: Team, save: OpenSave, targets: Mapping[str, Tensor], groups: dict[Any, Any]
) -> int:
    """Writes tensors in place from a save; all ranks call it.

    Ranks that need the same bytes from farther away than their own memory read each of
    them once, and broadcast.

    Args:
        team: The ranks.
        save: What is read.
        targets: The tensors by name; a DTensor takes its own block.
        groups: Process groups that were made before, by their ranks.

    Returns:
        How many bytes this rank has read from farther away than its own memory.

    Raises:
        CorruptCheckpointError: What was saved is damaged, or does not cover a tensor.
        CheckpointError: It cannot be read.
    """
    entries = {entry.name: entry for entry in save.layout.tensors}
    wanted = _wanted(team, targets)
    locals_ = {name: _local(target) for name, target in targets.items()}
    classes: dict[bool, list[Fill]] = {False: [], True: []}
    problem: CheckpointError | None = None
    try:
        for name, target in targets.items():
            fills = list(
                plan_fills(
                    save.layout,
                    entries[name],
                    wanted[name],
                    lambda rank: save.source(rank).slots(),
                )
            )
            _check_covered(name, fills, wanted[name])
            classes[hasattr(target, "to_local")] += fills
    except CheckpointError as error:
        problem = error
    reads = {key: gathered(fills) for key, fills in classes.items()}
    digests = (
        tuple(
            None
            if not reads[key] or any(save.source(r.source).is_local for r in reads[key])
            else digest(reads[key])
            for key in (False, True)
        )
        if problem is None
        else (None, None)
    )
    answers = team.exchange((str(problem or ""), digests))
    for rank, (text, _) in enumerate(answers):
        if text:
            raise problem or CheckpointError(f"rank {rank}: {text}")
    num_bytes = 0

    def read(item: Read) -> memoryview:
        nonlocal num_bytes
        found = save.source(item.source)
        if not found.is_local:
            num_bytes += item.size_bytes
        data: memoryview = found.read(item.start, item.size_bytes)
        return data

    for key in (False, True):
        mates = groups_of([answer[1][int(key)] for answer in answers])
        made = {ranks: _group(team, ranks, groups) for ranks in mates}
        ours = next((ranks for ranks in mates if team.rank in ranks), None)
        if ours is None:
            steps = read_alone(reads[key], read)
        else:
            steps = read_together(reads[key], read, team, ours, made[ours])
        for item, data in steps:
            for one in item.fills:
                _apply(one, data[one.start - item.start :], locals_[one.name])
    return num_bytes


def _group(team: Team, ranks: tuple[int, ...], groups: dict[Any, Any]) -> Any:
    """Returns a process group of some ranks that moves CPU tensors."""
    if ranks not in groups:
        everyone = ranks == tuple(range(team.world_size))
        if everyone and dist.get_backend(team.group) == "gloo":
            groups[ranks] = team.group or dist.group.WORLD
        else:
            numbers = [
                r if team.group is None else dist.get_global_rank(team.group, r)
                for r in ranks
            ]
            groups[ranks] = dist.new_group(numbers, backend="gloo")
    return groups[ranks]


def _wanted(team: Team, targets: Mapping[str, Tensor]) -> dict[str, Block]:
    """Returns the block of each tensor that this rank holds."""
    layout = layout_of(
        {n: t for n, t in targets.items() if hasattr(t, "to_local")},
        team.world_size,
        team.group,
    )
    sharded = {entry.name: entry for entry in layout.tensors}
    found: dict[str, Block] = {}
    for name, target in targets.items():
        if name in sharded:
            found[name] = layout.held(sharded[name], team.rank)
        else:
            found[name] = tuple(((0, size),) for size in target.shape)
    return found


def _check_covered(name: str, fills: list[Fill], wanted: Block) -> None:
    covered = sum(_count(one.theirs) for one in fills)
    if covered != size_of(wanted):
        message = (
            f"the checkpoint has {covered:,} of the {size_of(wanted):,} elements of "
            f"{name} that this rank needs"
        )
        raise CorruptCheckpointError(message)


def _count(slices: tuple[slice, ...]) -> int:
    number = 1
    for part in slices:
        number *= part.stop - part.start
    return number


def _apply(one: Fill, data: memoryview, local: Tensor) -> None:
    source = torch.frombuffer(data[: one.size_bytes], dtype=torch.uint8)
    block = source.view(DTYPES[one.dtype]).view(one.shape)
    with torch.no_grad():
        local[one.ours].copy_(block[one.theirs])


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.detach()
    return local.to_local() if hasattr(local, "to_local") else local
