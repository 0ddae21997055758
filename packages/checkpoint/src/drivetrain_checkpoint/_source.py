"""Where a checkpoint is read from: the memory of this node, or storage."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native, _posix
from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._manifest import Part, RankManifest, tensor_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from drivetrain_checkpoint._client import Client

__all__ = ["Found", "check_file", "find_in_memory", "find_on_storage", "opened"]


@dataclass(frozen=True, slots=True)
class Found:
    """A whole checkpoint, and where it is.

    Args:
        step: The step.
        save_id: What its files have in common.
        saved_at_ns: When it was saved.
        entries: The plain half of the state, as JSON.
        place: Its folder, or "memory".
        images: In memory, what each rank saved: the memory, where in it the image
            begins, and the rank's manifest.
    """

    step: int
    save_id: str
    saved_at_ns: int
    entries: Mapping[str, Any]
    place: Path | str
    images: tuple[tuple[Arena, int, RankManifest], ...] = field(default=())


def find_in_memory(client: Client) -> list[Found]:
    """Returns the checkpoints that the daemon of this node holds whole.

    A save is whole if every rank of its world has published it here.
    """
    if not client.is_running():
        return []
    saves: dict[str, dict[int, tuple[Arena, Any, RankManifest]]] = {}
    for rank, fd in client.attach().items():
        arena = Arena(fd)
        for generation in arena.generations():
            fields = generation.record["manifest"]
            manifest = RankManifest.from_fields(fields, f"memory of rank {rank}")
            saves.setdefault(manifest.save_id, {})[rank] = (arena, generation, manifest)
    found = []
    for save_id, ranks in saves.items():
        first = ranks.get(0)
        if first is None or len(ranks) != first[2].world_size:
            continue
        record = first[1].record
        images = tuple(
            (arena, generation.image_at, manifest)
            for arena, generation, manifest in ranks.values()
        )
        found.append(
            Found(
                step=first[2].step,
                save_id=save_id,
                saved_at_ns=record["saved_at_ns"],
                entries=record["entries"],
                place="memory",
                images=images,
            )
        )
    return found


def find_on_storage(folder: Path) -> list[Found]:
    """Returns the committed checkpoints of a folder, the one saved last at the end."""
    return [
        Found(
            step=saved.root.step,
            save_id=saved.root.save_id,
            saved_at_ns=saved.root.saved_at_ns,
            entries=saved.root.entries,
            place=saved.path,
        )
        for saved in _posix.list_saved(folder)
    ]


@contextlib.contextmanager
def opened(found: Found) -> Iterator[dict[str, list[tuple[Part, memoryview]]]]:
    """Gives the parts of every tensor with the bytes of each, all of them verified.

    Raises:
        CorruptCheckpointError: A file is missing or damaged; it is named, with the
            tensors in the damaged block.
    """
    with contextlib.ExitStack() as stack:
        parts: dict[str, list[tuple[Part, memoryview]]] = {}
        for manifest, view in _images(found, stack):
            for part in manifest.parts:
                data = view[part.start : part.start + part.size_bytes]
                parts.setdefault(part.name, []).append((part, data))
        yield parts


def _images(
    found: Found, stack: contextlib.ExitStack
) -> Iterator[tuple[RankManifest, memoryview]]:
    for arena, at, manifest in found.images:
        yield manifest, arena.view(at, manifest.size_bytes)
    if found.images:
        return
    assert not isinstance(found.place, str)
    root = _posix.read_root(found.place)
    for rank in range(root.world_size):
        manifest = _posix.read_rank(found.place, root, rank)
        file = found.place / tensor_file(rank)
        yield manifest, check_file(file, manifest, stack)


def check_file(
    file: Path, manifest: RankManifest, stack: contextlib.ExitStack
) -> memoryview:
    """Returns the bytes of a rank's file after comparing them with its checksums.

    Raises:
        CorruptCheckpointError: They are not what was saved.
    """
    try:
        handle = stack.enter_context(file.open("rb"))
    except FileNotFoundError as error:
        message = f"{file} is missing"
        raise CorruptCheckpointError(message) from error
    size = file.stat().st_size
    if size != manifest.size_bytes:
        message = f"{file} has {size:,} bytes instead of {manifest.size_bytes:,}"
        raise CorruptCheckpointError(message)
    # Private and writable, so that its address is to be had; nothing is written.
    memory = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
    sums = _native.checksums(_native.address_of(memory), size, 2)
    for index, (is_now, was) in enumerate(zip(sums, manifest.crc32c, strict=True)):
        if is_now != was:
            start = index * manifest.block_bytes
            inside = [
                part.name
                for part in manifest.parts
                if part.start < start + manifest.block_bytes
                and part.start + part.size_bytes > start
            ]
            message = (
                f"{file} is damaged in block {index} (from byte {start:,}), which holds "
                f"{', '.join(inside[:5]) or 'the header'}"
            )
            raise CorruptCheckpointError(message)
    return memoryview(memory)
