"""Local store: saves on a disk of the node, which it gives back if its memory is lost.

Each rank's part lies there as on the storage of the job, with the record that lay beside
it in memory. There is no commit: a part is whole when its record is there, and which save
is whole is found by asking all nodes.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from drivetrain_checkpoint._errors import (
    CorruptCheckpointError,
    ForeignCheckpointError,
    StorageError,
)
from drivetrain_checkpoint._fields import MISSHAPEN
from drivetrain_checkpoint._layout.manifest import RankManifest, rank_manifest_file
from drivetrain_checkpoint._storage.checked_source import StorageSource
from drivetrain_checkpoint._storage.posix import PosixStorage
from drivetrain_checkpoint._storage.protocol import folder_name
from drivetrain_checkpoint._storage.write_rank import write_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from drivetrain_checkpoint._native import Progress
    from drivetrain_checkpoint._storage.protocol import Storage

logger = logging.getLogger(__name__)

_KEPT = 3
"""Two generations of memory may be on their way at one time, and one must be whole."""

_UNREADABLE = (
    CorruptCheckpointError,
    ForeignCheckpointError,
    FileNotFoundError,
    *MISSHAPEN,
)


class LocalPart(NamedTuple):
    """A rank's part of a save on this disk.

    Args:
        storage: The disk.
        name: The folder.
        manifest: The rank's manifest, with checksums.
        record: The first line of what lay beside it in memory.
        body: What stood behind that.
    """

    storage: Storage
    name: str
    manifest: RankManifest
    record: Mapping[str, Any]
    body: bytes

    def open(self) -> StorageSource:
        """Returns what reads it.

        Raises:
            CorruptCheckpointError: Its file is missing, or has another length.
        """
        return StorageSource(self.storage, self.name, self.manifest, dict)


class LocalStore:
    """The parts of one job's saves on a disk of this node.

    Args:
        folder: A folder on that disk; jobs have folders of their own in it.
        job: The job's name.
    """

    def __init__(self, folder: str, job: str) -> None:
        """Makes nothing yet."""
        self._storage: Storage = PosixStorage(Path(folder) / quote(job, safe=""))

    def keep(
        self,
        manifest: RankManifest,
        memory: memoryview,
        record: bytes,
        num_threads: int,
        progress: Progress,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        """Writes a rank's part, and deletes what is older than the last few saves.

        Where the disk refuses or fails, it says so: the part would have been a shorter
        way back, and the checkpoint does not need it.
        """
        storage, record_file = self._storage, _record_file(manifest.rank)
        try:
            write_rank(storage, manifest, memory, num_threads, progress, holds)
            name = folder_name(manifest.step, manifest.save_id)
            storage.commit(name, record_file, record)
            names = sorted(storage.names(), key=storage.changed_s)
            for old in names[:-_KEPT]:
                storage.remove(old, record_file)
        except StorageError as error:
            logger.warning("nothing is kept on the local disk: %s", error)

    def parts(self) -> Iterator[LocalPart]:
        """Yields the parts that are there and read; what does not is left out."""
        for name in self._storage.names():
            for file in self._storage.files(name):
                if file.startswith("record-") and not file.endswith(".tmp"):
                    with contextlib.suppress(*_UNREADABLE):
                        yield self._part(name, file)

    def _part(self, name: str, file: str) -> LocalPart:
        storage = self._storage
        line, _, body = storage.read(name, file).partition(b"\n")
        record = json.loads(line)
        text = storage.read(name, rank_manifest_file(record["manifest"]["rank"]))
        manifest = RankManifest.from_bytes(text, name)
        return LocalPart(storage, name, manifest, record, body)


def _record_file(rank: int) -> str:
    return f"record-{rank:05d}.json"
