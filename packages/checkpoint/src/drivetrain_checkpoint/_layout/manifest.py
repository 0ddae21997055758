"""Manifests of a checkpoint: a root, and one for each rank.

The root names every rank's manifest with its checksum, and each of them its file of
tensors with a checksum for every block: what the root vouches for is whole, or is found not to
be. All of it is JSON; nothing in it runs code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._fields import (
    MISSHAPEN,
    are_counts,
    check_fields,
    is_count,
    is_kind,
    is_name,
)
from drivetrain_checkpoint._native import BLOCK_BYTES, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FORMAT = "drivetrain-checkpoint"
VERSION = 1
ROOT_FILE = "manifest.json"

_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "job": is_kind(str),
    "save_id": is_name,
    "step": is_count,
    "world_size": is_count,
}
_RANK_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **_FIELDS,
    **dict.fromkeys(("rank", "size_bytes", "header_bytes"), is_count),
    "block_bytes": lambda value: value == BLOCK_BYTES,
    "crc32c": are_counts,
}
_ROOT_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **_FIELDS,
    **dict.fromkeys(("saved_at_ns", "began_ns"), is_count),
    **dict.fromkeys(("entries", "layout"), is_kind(dict)),
    "writer": is_kind(str),
}
_FILE_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "file": is_name,
    "size_bytes": is_count,
    "crc32c": is_count,
}


def is_manifest(path: Path) -> bool:
    """Returns whether a file begins as the manifests of this format do."""
    start = f'{{"format":"{FORMAT}",'.encode()
    try:
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except IsADirectoryError:
        return False


def rank_manifest_file(rank: int) -> str:
    """Returns the name of a rank's manifest."""
    return f"rank-{rank:05d}.json"


def tensor_file(rank: int) -> str:
    """Returns the name of a rank's file of tensors."""
    return f"rank-{rank:05d}.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankManifest:
    """What one rank saved: a safetensors file, whose header says what lies in it.

    Args:
        job: The job's name.
        step: The step.
        save_id: What the files of one save have in common.
        rank: The rank.
        world_size: How many ranks saved together.
        size_bytes: The length of its file of tensors.
        header_bytes: How much of that comes before the first tensor.
        block_bytes: How many bytes one checksum covers.
        crc32c: The checksum of each block; empty as long as it lies in memory only.
    """

    job: str
    step: int
    save_id: str
    rank: int
    world_size: int
    size_bytes: int
    header_bytes: int
    block_bytes: int
    crc32c: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """Returns the manifest as JSON."""
        return _dump({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def from_bytes(cls, text: bytes, name: str) -> RankManifest:
        """Returns the manifest that was written.

        Raises:
            CorruptCheckpointError: It is not whole.
            ForeignCheckpointError: It is of another format or version.
        """
        found = cls.from_fields(_parse(text, name), name)
        if len(found.crc32c) != found.num_blocks:
            message = (
                f"{name} has {len(found.crc32c)} checksums, not {found.num_blocks}"
            )
            raise CorruptCheckpointError(message)
        return found

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], name: str) -> RankManifest:
        """Returns the manifest that has these fields.

        Raises:
            CorruptCheckpointError: They are not those of a manifest.
        """
        try:
            check_fields(fields, _RANK_FIELDS)
            found = cls(**{**fields, "crc32c": tuple(fields["crc32c"])})
            if found.rank >= found.world_size or found.header_bytes > found.size_bytes:
                message = f"rank {found.rank} of {found.world_size}, or its sizes"
                raise ValueError(message)  # noqa: TRY301
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"{name} is not a manifest of a rank: {error}"
            raise CorruptCheckpointError(message) from error
        return found

    @property
    def num_blocks(self) -> int:
        """How many checksums cover the file."""
        return -(-self.size_bytes // self.block_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFile:
    """What the root says of one rank's manifest.

    Args:
        file: Its name.
        size_bytes: Its length.
        crc32c: Its checksum.
    """

    file: str
    size_bytes: int
    crc32c: int

    @classmethod
    def of(cls, rank: int, text: bytes) -> RankFile:
        """Returns the entry for a manifest with these bytes."""
        return cls(
            file=rank_manifest_file(rank), size_bytes=len(text), crc32c=checksum(text)
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], rank: int) -> RankFile:
        """Returns the entry that has these fields.

        Raises:
            ValueError: They are not those of that rank.
            TypeError: Likewise.
        """
        check_fields(fields, _FILE_FIELDS)
        found = cls(**fields)
        if found.file != rank_manifest_file(rank):
            message = f"the manifest of rank {rank} must not be {found.file!r:.80}"
            raise ValueError(message)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class RootManifest:
    """A whole checkpoint; its presence is what commits it.

    Args:
        job: The job's name.
        step: The step.
        save_id: What the files of one save have in common.
        saved_at_ns: When it was saved, in nanoseconds since 1970.
        world_size: How many ranks saved together.
        entries: The plain half of the state, equal on all ranks.
        layout: Every tensor, and who saved what of it, as plain data.
        ranks: The manifest of each rank.
        writer: The node that committed it, and its daemon; empty if none did.
        began_ns: When the run began that saved it, as `saved_at_ns` counts.
    """

    job: str
    step: int
    save_id: str
    saved_at_ns: int
    world_size: int
    entries: Mapping[str, Any]
    layout: Mapping[str, Any]
    ranks: tuple[RankFile, ...]
    writer: str = ""
    began_ns: int = 0

    def to_bytes(self) -> bytes:
        """Returns the manifest as JSON, with a checksum over itself."""
        plain = {"entries": self.entries, "layout": self.layout}
        return self.with_plain(_dump(plain)[1:-1])

    def with_plain(self, plain: bytes) -> bytes:
        """Returns the manifest as JSON, with a checksum over itself.

        Args:
            plain: Entries and layout as JSON that is there already, without braces.
        """
        names = ("job", "step", "save_id", "saved_at_ns", "world_size")
        head = {name: getattr(self, name) for name in (*names, "writer", "began_ns")}
        head = {"format": FORMAT, "version": VERSION, **head}
        ranks = {"ranks": [asdict(rank) for rank in self.ranks]}
        body = b",".join([_dump(head)[:-1], plain, _dump(ranks)[1:-1]])
        return body + f',"crc32c":{checksum(body + b"}")}}}'.encode()

    @classmethod
    def from_bytes(cls, text: bytes, name: str) -> RootManifest:
        """Returns the manifest that was written.

        Raises:
            CorruptCheckpointError: It is not whole.
            ForeignCheckpointError: It is of another format or version.
        """
        fields = _parse(text, name)
        stated = fields.pop("crc32c", None)
        body = {"format": FORMAT, "version": VERSION, **fields}
        try:
            # Its very bytes, since JSON has several forms of one number: 1e-8 and 1E-8.
            is_whole = text == _dump({**body, "crc32c": checksum(_dump(body))})
            if not is_whole or not is_count(stated):
                message = f"{name} is damaged: its checksum does not fit"
                raise CorruptCheckpointError(message)
            ranks = fields.pop("ranks")
            files = [RankFile.from_fields(one, rank) for rank, one in enumerate(ranks)]
            check_fields(fields, _ROOT_FIELDS)
            found = cls(**fields, ranks=tuple(files))
            if found.world_size != len(files):
                message = f"{len(files)} ranks of {found.world_size}"
                raise ValueError(message)
        except MISSHAPEN as error:
            message = f"{name} is not the manifest of a checkpoint: {error}"
            raise CorruptCheckpointError(message) from error
        return found


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _parse(text: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{name} is damaged: {error}"
        raise CorruptCheckpointError(message) from error
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        message = f"{name} is not of the format {FORMAT}"
        raise ForeignCheckpointError(message)
    version = found.pop("version", None)
    if version != VERSION:
        message = (
            f"{name} has version {version!r} of {FORMAT}, and this program reads "
            f"{VERSION}; install a newer drivetrain-checkpoint"
        )
        raise ForeignCheckpointError(message)
    return found
