"""A folder of checkpoints: what is committed, what is damaged, what may go.

    <root>/step-<step>.<serial>/     committed: it was renamed to this name when whole
        manifest.json                every file with its size and CRC-32
        ...
    <root>/.saving-<...>/            not committed: being written, or left by a crash
    <root>/.removing-<...>/          being removed

The serial counts the saves. The last one is the highest serial, not the highest step:
a run that went back to step 10 goes on from there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core._errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FORMAT = "drivetrain_checkpoint"
_VERSION = 1
_MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)\.(\d+)")
_CHUNK_BYTES = 1 << 22


class FileDigest(NamedTuple):
    """The length and CRC-32 of a file."""

    size_bytes: int
    crc32: int


class Committed(NamedTuple):
    """A checkpoint that was written to its end."""

    serial: int
    step: int
    path: Path


class Folder:
    """The checkpoints under one root; one writer at a time, any number of readers.

    Args:
        root: The folder; it need not exist yet.
        keep: How many checkpoints stay, the newest ones; None keeps all.
    """

    def __init__(self, root: Path, keep: int | None) -> None:
        self.root = root
        self._keep = keep

    def committed(self) -> list[Committed]:
        """Returns the committed checkpoints, in the order they were saved."""
        try:
            paths = list(self.root.iterdir())
        except FileNotFoundError:
            return []
        found = [(path, _NAME.fullmatch(path.name)) for path in paths]
        return sorted(
            Committed(int(name[2]), int(name[1]), path) for path, name in found if name
        )

    def candidates(self, step: int | None) -> list[Committed]:
        """Returns the checkpoint of a step; or the last one, and those that it came from.

        The newest is the first. Where the training went back to an earlier step, those
        that it left behind are not among them.

        Raises:
            CheckpointError: There is none.
        """
        found = self.committed()
        fitting: list[Committed] = []
        for one in reversed(found):
            is_before = step is None and (not fitting or one.step < fitting[-1].step)
            if is_before or (one.step == step and not fitting):
                fitting.append(one)
        if fitting:
            return fitting
        if not found:
            message = f"there is no checkpoint in {self.root}"
            raise CheckpointError(message)
        steps = ", ".join(str(c.step) for c in found)
        message = (
            f"there is no checkpoint of step {step} in {self.root}; it has {steps}"
        )
        raise CheckpointError(message)

    def begin(self, step: int) -> Path:
        """Returns a new empty folder to write a checkpoint to, and clears old ones."""
        self.root.mkdir(parents=True, exist_ok=True)
        for pattern in (".saving-*", ".removing-*"):
            for left in self.root.glob(pattern):
                shutil.rmtree(left)
        serial = max((c.serial for c in self.committed()), default=0) + 1
        path = self.root / f".saving-step-{step}.{serial}"
        path.mkdir()
        return path

    def commit(self, path: Path, files: Mapping[str, FileDigest]) -> None:
        """Makes a folder from `begin` a checkpoint; all or nothing, and durable.

        Args:
            path: The folder. Its files have been written and synced.
            files: What each of them holds, by name.
        """
        body = {_FORMAT: _VERSION, "files": {k: list(files[k]) for k in sorted(files)}}
        manifest = path / _MANIFEST
        manifest.write_text(json.dumps({**body, "crc32": _crc(body)}, indent=1))
        sync(manifest)
        sync(path)
        path.rename(self.root / path.name.removeprefix(".saving-"))
        sync(self.root)

    def discard(self, path: Path) -> None:
        """Removes a folder from `begin` that is not to be committed."""
        shutil.rmtree(path, ignore_errors=True)

    def prune(self) -> None:
        """Removes all but the newest checkpoints, and older ones of the same step."""
        newest: dict[int, Committed] = {c.step: c for c in self.committed()}
        kept = sorted(newest.values())
        if self._keep is not None:
            kept = kept[-self._keep :]
        for checkpoint in self.committed():
            if checkpoint not in kept:
                # Renamed first, so that a crash leaves no committed one half removed.
                doomed = self.root / f".removing-{checkpoint.path.name}"
                checkpoint.path.rename(doomed)
                shutil.rmtree(doomed)


def read_manifest(checkpoint: Committed) -> dict[str, FileDigest]:
    """Returns the files that a checkpoint must have.

    Raises:
        CheckpointError: The manifest is missing, damaged or of another version.
    """
    path = checkpoint.path / _MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        crc = content.pop("crc32")
        if content[_FORMAT] != _VERSION:
            message = (
                f"{checkpoint.path} has format {content[_FORMAT]!r}, this version of "
                f"Drivetrain reads {_VERSION}"
            )
            raise CheckpointError(message)
        if crc != _crc(content):
            raise _damaged(checkpoint, f"{_MANIFEST} does not have its checksum")
        files = {
            str(name): FileDigest(int(size), int(crc))
            for name, (size, crc) in content["files"].items()
        }
    except FileNotFoundError:
        raise _damaged(checkpoint, f"{_MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(checkpoint, f"{_MANIFEST} cannot be read: {error}") from error
    if any(Path(name).name != name for name in files):
        raise _damaged(checkpoint, f"{_MANIFEST} names files of another folder")
    return files


def verify(
    checkpoint: Committed, files: Mapping[str, FileDigest], names: Iterable[str]
) -> None:
    """Reads files of a checkpoint and compares them with the manifest.

    Raises:
        CheckpointError: One is missing, cut short, or not what was written.
    """
    for name in names:
        try:
            found = digest_of(checkpoint.path / name)
        except FileNotFoundError:
            raise _damaged(checkpoint, f"{name} is missing") from None
        expected = files[name]
        if found.size_bytes != expected.size_bytes:
            raise _damaged(
                checkpoint,
                f"{name} has {found.size_bytes} bytes instead of {expected.size_bytes}",
            )
        if found.crc32 != expected.crc32:
            raise _damaged(checkpoint, f"{name} does not have its checksum")


def digest_of(path: Path) -> FileDigest:
    """Returns the length and CRC-32 of a file."""
    size, crc = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return FileDigest(size, crc)


def sync(path: Path) -> None:
    """Makes a file, or the names in a folder, survive the loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crc(body: object) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def _damaged(checkpoint: Committed, what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint of step {checkpoint.step} is damaged: {what} in "
        f"{checkpoint.path}. Restore another step, and remove this folder"
    )
