"""Fills live tensors from a save, each byte read once where several ranks need it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._layout import size_of
from drivetrain_checkpoint._pieces import DTYPES, is_plain_memory, layout_of
from drivetrain_checkpoint._reads import digest, gathered, plan_fills
from drivetrain_checkpoint._share import groups_of, read_alone, read_together
from drivetrain_core import CheckpointError
from drivetrain_core.services.chunked_tensor import ChunkedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_checkpoint._find import OpenSave
    from drivetrain_checkpoint._layout import Block
    from drivetrain_checkpoint._reads import Fill, Read
    from drivetrain_checkpoint._team import Team

__all__ = ["fill"]


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
    blocks = _blocks(team, targets)
    locals_ = {block.key: block.local for block in blocks}
    classes: dict[bool, list[Fill]] = {False: [], True: []}
    problem: CheckpointError | None = None
    try:
        for block in blocks:
            fills = [
                replace(one, name=block.key)
                for one in plan_fills(
                    save.layout,
                    entries[block.name],
                    block.wanted,
                    lambda rank: save.source(rank).slots(),
                )
            ]
            _check_covered(block.name, fills, block.wanted)
            classes[block.is_sharded] += fills
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

    moves = _Moves()
    for key in (False, True):
        mates = groups_of([answer[1][int(key)] for answer in answers])
        made = {ranks: _group(team, ranks, groups) for ranks in mates}
        ours = next((ranks for ranks in mates if team.rank in ranks), None)
        if ours is None:
            steps = read_alone(reads[key], read)
        else:
            steps = read_together(reads[key], read, team, ours, made[ours])
        for item, data in steps:
            source = save.source(item.source)
            for one in item.fills:
                local = locals_[one.name]
                if not (source.is_local and moves.take(one, source, local)):
                    _apply(one, data[one.start - item.start :], local)
    moves.make()
    return num_bytes


class _Moves:
    """Copies within this machine's memory, which are made together."""

    def __init__(self) -> None:
        self._sources, self._targets, self._sizes = array("Q"), array("Q"), array("Q")

    def take(self, one: Fill, source: Any, local: Tensor) -> bool:
        """Takes note of a copy, if it is one run of bytes here and there."""
        rows, *inner = one.shape or (1,)
        is_run = (
            is_plain_memory(local)
            and local.dtype == DTYPES[one.dtype]
            and tuple(inner) == tuple(local.shape[1:])
            and one.theirs == tuple(slice(0, size) for size in one.shape)
        )
        if is_run:
            first = one.ours[0].start if one.ours else 0
            at = first * (one.size_bytes // rows)
            self._sources.append(source.address(one.start))
            self._targets.append(local.data_ptr() + at)
            self._sizes.append(one.size_bytes)
        return is_run

    def make(self) -> None:
        """Makes the copies."""
        threads = torch.get_num_threads()
        _native.copy(self._sources, self._targets, self._sizes, threads)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """What this rank wants of a tensor, and where it goes.

    Args:
        name: The tensor.
        key: A name of its own among all blocks.
        wanted: The block.
        local: Its memory.
        is_sharded: Whether other ranks may want another.
    """

    name: str
    key: str
    wanted: Block
    local: Tensor
    is_sharded: bool


def _blocks(team: Team, targets: Mapping[str, Tensor]) -> list[_Block]:
    """Returns the blocks of each tensor that this rank holds."""
    layout = layout_of(
        {n: t for n, t in targets.items() if hasattr(t, "to_local")},
        team.world_size,
        team.group,
    )
    sharded = {entry.name: entry for entry in layout.tensors}
    found = []
    for name, target in targets.items():
        if isinstance(target, ChunkedTensor):
            for number, (offset, local) in enumerate(target.local_chunks()):
                ranges = zip(offset, local.shape, strict=True)
                wanted: Block = tuple(((first, size),) for first, size in ranges)
                # No name of a tensor has a zero byte: files have these names.
                found.append(_Block(name, f"{name}\0{number}", wanted, local, True))
        elif name in sharded:
            wanted = layout.held(sharded[name], team.rank)
            found.append(_Block(name, name, wanted, _local(target), True))
        else:
            wanted = tuple(((0, size),) for size in target.shape)
            found.append(_Block(name, name, wanted, _local(target), False))
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
