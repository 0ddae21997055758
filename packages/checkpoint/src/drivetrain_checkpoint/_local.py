"""Saves on a local disk of the node: what a node can give back when its memory is gone.

Each rank's part lies there as on the storage of the job, with the record that lay beside
it in memory. There is no commit: a part is whole when its record is there, and which save
is whole is found by asking all nodes.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._manifest import (
    RankManifest,
    rank_manifest_file,
    tensor_file,
)
from drivetrain_checkpoint._storage.posix import PosixStorage
from drivetrain_checkpoint._storage.protocol import folder_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._storage.protocol import Storage

__all__ = ["LocalPart", "LocalStore"]

_KEPT = 3
"""Two generations of memory may be on their way at one time, and one must be whole."""


class LocalPart(NamedTuple):
    """A rank's part of a save on this disk.

    Args:
        name: The folder.
        manifest: The rank's manifest, with checksums.
        record: The first line of what lay beside it in memory.
        body: What stood behind that.
    """

    name: str
    manifest: RankManifest
    record: Mapping[str, Any]
    body: bytes


class LocalStore:
    """The parts of one job's saves on a disk of this node.

    Args:
        folder: A folder on that disk; jobs have folders of their own in it.
        job: The job's name.
    """

    def __init__(self, folder: str, job: str) -> None:
        """Makes nothing yet."""
        self.storage: Storage = PosixStorage(Path(folder) / quote(job, safe=""))

    def keep(
        self,
        manifest: RankManifest,
        address: int,
        record: bytes,
        num_threads: int,
        progress: Progress,
    ) -> None:
        """Writes a rank's part, and deletes what is older than the last few saves.

        Raises:
            StorageError: The disk refuses or fails.
        """
        name, rank = folder_name(manifest.step, manifest.save_id), manifest.rank
        storage, size = self.storage, manifest.size_bytes
        file = tensor_file(rank)
        sums = storage.write(name, file, address, size, num_threads, progress)
        text = dataclasses.replace(manifest, crc32c=tuple(sums)).to_bytes()
        storage.write_small(name, rank_manifest_file(rank), text)
        storage.commit(name, _record_file(rank), record)
        names = sorted(storage.names(), key=storage.changed_s)
        for old in names[:-_KEPT]:
            storage.remove(old, _record_file(rank))

    def parts(self) -> Iterator[LocalPart]:
        """Yields the parts that are there and read; what does not is left out."""
        for name in self.storage.names():
            for file in self.storage.files(name):
                if file.startswith("record-") and not file.endswith(".tmp"):
                    try:
                        yield self._part(name, file)
                    except (
                        CorruptCheckpointError,
                        ForeignCheckpointError,
                        FileNotFoundError,
                        ValueError,
                    ):
                        continue

    def _part(self, name: str, file: str) -> LocalPart:
        line, _, body = self.storage.read(name, file).partition(b"\n")
        record = json.loads(line)
        rank = record["manifest"]["rank"]
        text = self.storage.read(name, rank_manifest_file(rank))
        return LocalPart(name, RankManifest.from_bytes(text, name), record, body)


def _record_file(rank: int) -> str:
    return f"record-{rank:05d}.json"
