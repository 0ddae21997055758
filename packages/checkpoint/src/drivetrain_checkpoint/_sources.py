"""Where the bytes of a save come from: this memory, another node's, or storage."""

from __future__ import annotations

import functools
import mmap
import threading
from typing import TYPE_CHECKING, Any, Protocol

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import CorruptCheckpointError, DaemonError
from drivetrain_checkpoint._image import plan_image, read_header
from drivetrain_checkpoint._layout import Layout
from drivetrain_checkpoint._manifest import tensor_file
from drivetrain_checkpoint._peers import connect_to
from drivetrain_checkpoint._saves import read_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_checkpoint._arena import Arena, Generation
    from drivetrain_checkpoint._image import Image, Slot
    from drivetrain_checkpoint._manifest import RankManifest, RootManifest
    from drivetrain_checkpoint._nodes import Node
    from drivetrain_checkpoint._storage.protocol import Storage

__all__ = [
    "ImageSource",
    "MemorySource",
    "PeerSource",
    "StorageSource",
    "saved_image",
]


_SHOWN = 20


class ImageSource(Protocol):
    """Gives the bytes that one rank saved; used by one thread at a time or several.

    Attributes:
        is_local: Whether reading costs no more than a copy.
    """

    is_local: bool

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns bytes of the image, checked.

        Raises:
            CorruptCheckpointError: They are not what was saved.
            CheckpointError: They cannot be had.
        """
        ...

    def slots(self) -> Mapping[str, Slot]:
        """Returns where the tensors lie in the image."""
        ...


class MemorySource:
    """A save in the memory of this node.

    Args:
        arena: The memory.
        generation: Where in it the save lies.
    """

    is_local = True

    def __init__(self, arena: Arena, generation: Generation) -> None:
        """Copies nothing."""
        self._arena = arena
        self._at = generation.image_at
        self._size_bytes = generation.image_bytes
        self._header_bytes: int = generation.record["manifest"]["header_bytes"]

    def address(self, start: int) -> int:
        """Returns where bytes of the image lie in this process."""
        return self._arena.address + self._at + start

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns the memory itself."""
        return self._arena.view(self._at + start, size_bytes)

    @functools.cached_property
    def _slots(self) -> Mapping[str, Slot]:
        return read_header(self.read(0, self._header_bytes))

    def slots(self) -> Mapping[str, Slot]:
        """Returns where the tensors lie in the image."""
        return self._slots


class PeerSource:
    """A save in the memory of another node.

    Args:
        node: The node.
        secret: The secret of the job.
        manifest: The manifest of the rank, as memory holds it.
    """

    is_local = False

    def __init__(self, node: Node, secret: str, manifest: Mapping[str, Any]) -> None:
        """Connects to nobody yet."""
        self._node = node
        self._secret = secret
        self._manifest = manifest
        self._lock = threading.Lock()

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns bytes from the network.

        Raises:
            DaemonError: The node is gone, or the save is not there any more.
        """
        about = (self._manifest["rank"], self._manifest["save_id"])
        target = memoryview(bytearray(size_bytes))
        try:
            with self._lock:
                answer = self._connection.ask(
                    {
                        "op": "fetch",
                        "rank": about[0],
                        "save_id": about[1],
                        "start": start,
                        "size_bytes": size_bytes,
                    }
                )
                if answer.get("size_bytes") == size_bytes:
                    self._connection.receive_into(target)
                    if self._connection.receive()[0]["intact"]:
                        return target
        except (OSError, EOFError) as error:
            answer = {"refused": str(error) or "it hung up"}
        because = answer.get("refused", "the save was overwritten meanwhile")
        message = (
            f"step {self._manifest['step']} of rank {about[0]} does not come from "
            f"{self._node.host}:{self._node.port}: {because}"
        )
        raise DaemonError(message)

    @functools.cached_property
    def _connection(self) -> Any:
        return connect_to(self._node.host, self._node.port, self._secret)

    @functools.cached_property
    def _slots(self) -> Mapping[str, Slot]:
        return read_header(self.read(0, self._manifest["header_bytes"]))

    def slots(self) -> Mapping[str, Slot]:
        """Returns where the tensors lie in the image."""
        return self._slots


class StorageSource:
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

    is_local = False

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
        size = storage.files(name).get(self._file)
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

    @property
    def where(self) -> str:
        """The file."""
        return f"{self._storage.url}/{self._name}/{self._file}"

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
        memory = mmap.mmap(-1, end - at)
        address = _native.address_of(memory)
        try:
            self._storage.read_into(self._name, self._file, address, end - at, at)
        except FileNotFoundError as error:
            message = f"{self.where} is missing"
            raise CorruptCheckpointError(message) from error
        found = _native.checksums(address, end - at, 2)
        stated = self.manifest.crc32c[first : first + len(found)]
        for index, (is_now, was) in enumerate(zip(found, stated, strict=True), first):
            if is_now != was:
                raise CorruptCheckpointError(self._damage(index))
        return memoryview(memory)[start - at : start - at + size_bytes]

    @functools.cached_property
    def _slots(self) -> Mapping[str, Slot]:
        return read_header(self.read(0, self.manifest.header_bytes))

    def slots(self) -> Mapping[str, Slot]:
        """Returns where the tensors lie in the file."""
        return self._slots

    def _damage(self, index: int) -> str:
        """Says what lies in a block; not from the header, which may lie in it itself."""
        start = index * self.manifest.block_bytes
        end = start + self.manifest.block_bytes
        plain = self._layout() or {"meshes": [], "tensors": []}
        layout = Layout.from_plain(plain)
        slots = saved_image(layout, self.manifest.rank).slots
        inside = [
            s.name for s in slots if s.start < end and s.start + s.size_bytes > start
        ]
        if start < self.manifest.header_bytes:
            inside.insert(0, "the header")
        shown = ", ".join(inside[:_SHOWN])
        if len(inside) > _SHOWN:
            shown += f" and {len(inside) - _SHOWN} more"
        return (
            f"{self.where} is damaged in block {index} (from byte {start:,}), which "
            f"holds {shown}"
        )


def saved_image(layout: Layout, rank: int) -> Image:
    """Returns the image that a rank saved, worked out from the layout alone."""
    blocks = (
        (entry.name, entry.dtype, layout.block(entry, rank)) for entry in layout.tensors
    )
    return plan_image(
        (name, dtype, tuple(sum(length for _, length in ranges) for ranges in block))
        for name, dtype, block in blocks
        if block is not None
    )
