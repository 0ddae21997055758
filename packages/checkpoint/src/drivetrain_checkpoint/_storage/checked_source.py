"""Source of a rank's file on storage; every block that is read is checked."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._layout.manifest import tensor_file
from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
from drivetrain_checkpoint._layout.shard_source import ShardSource
from drivetrain_checkpoint._layout.tensor_layout import Layout, shape_of
from drivetrain_checkpoint._storage.catalog import read_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from drivetrain_checkpoint._layout.manifest import RankManifest, RootManifest
    from drivetrain_checkpoint._layout.safetensors_layout import SafetensorsLayout
    from drivetrain_checkpoint._storage.protocol import Storage

_SHOWN = 20


class StorageSource(ShardSource):
    """What a rank saved, on storage; every block that is read is checked.

    Args:
        storage: The storage.
        name: The save's folder.
        manifest: The rank's manifest.
        layout: Returns the layout of the save as plain data, or something empty; asked
            for only to say what is damaged.

    Raises:
        CorruptCheckpointError: The file is missing, or has another length.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        manifest: RankManifest,
        layout: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Reads nothing yet."""
        self._storage = storage
        self._name = name
        self._layout = layout
        self._file = tensor_file(manifest.rank)
        self.manifest = manifest
        self.header_bytes = manifest.header_bytes
        self.size_bytes = manifest.size_bytes
        self.where = f"{storage.url}/{name}/{self._file}"
        size = storage.files(name).get(self._file)
        # Some object stores list what is new later than they give it.
        if size is None and storage.exists(name, self._file):
            size = manifest.size_bytes
        if size is None:
            message = f"{self.where} is missing"
            raise CorruptCheckpointError(message)
        if size != manifest.size_bytes:
            message = (
                f"{self.where} has {size:,} bytes instead of {manifest.size_bytes:,}"
            )
            raise CorruptCheckpointError(message)

    @classmethod
    def committed(
        cls, storage: Storage, name: str, root: RootManifest, rank: int
    ) -> StorageSource:
        """Returns a rank's part of a checkpoint.

        Raises:
            CorruptCheckpointError: Its manifest is missing or damaged.
        """
        manifest = read_rank(storage, name, root, rank)
        return cls(storage, name, manifest, lambda: root.layout)

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns bytes of the file, after comparing whole blocks with their checksums.

        Raises:
            CorruptCheckpointError: A block is damaged; it is named, with its tensors.
            StorageError: The storage fails.
        """
        block = self.manifest.block_bytes
        first = start // block
        at = first * block
        end = min(-(-(start + size_bytes) // block) * block, self.manifest.size_bytes)
        if end <= at:
            return memoryview(b"")
        memory = memoryview(mmap.mmap(-1, end - at))
        try:
            self._storage.read_into(self._name, self._file, memory, at)
        except FileNotFoundError as error:
            message = f"{self.where} is missing"
            raise CorruptCheckpointError(message) from error
        found = _native.checksums(memory, 2)
        stated = self.manifest.crc32c[first : first + len(found)]
        for index, (is_now, was) in enumerate(zip(found, stated, strict=True), first):
            if is_now != was:
                raise CorruptCheckpointError(self._damage(index))
        return memory[start - at : start - at + size_bytes]

    def spans(self, num_blocks: int) -> Iterator[tuple[int, int]]:
        """Yields where runs of so many blocks begin in the file, and how long they are."""
        size, step = self.manifest.size_bytes, num_blocks * self.manifest.block_bytes
        for start in range(0, size, step):
            yield start, min(step, size - start)

    def _damage(self, index: int) -> str:
        """Says what lies in a block; not from the header, which may lie in it itself."""
        start = index * self.manifest.block_bytes
        end = start + self.manifest.block_bytes
        plain = self._layout() or {"meshes": [], "tensors": []}
        slots = saved_image(Layout.from_plain(plain), self.manifest.rank).slots
        inside = [
            s.name for s in slots if s.start < end and s.start + s.size_bytes > start
        ]
        if start < self.header_bytes:
            inside.insert(0, "the header")
        shown = ", ".join(inside[:_SHOWN])
        if len(inside) > _SHOWN:
            shown += f" and {len(inside) - _SHOWN} more"
        return (
            f"{self.where} is damaged in block {index} (from byte {start:,}), which "
            f"holds {shown}"
        )


def saved_image(layout: Layout, rank: int) -> SafetensorsLayout:
    """Returns the layout of a rank's file, worked out from that of the tensors alone."""
    return plan_safetensors(
        (entry.name, entry.dtype, shape_of(block))
        for entry in layout.tensors
        if (block := layout.block(entry, rank)) is not None
    )
