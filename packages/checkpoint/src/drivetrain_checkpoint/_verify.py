"""Finds what is wrong with a checkpoint on storage, all of it at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_checkpoint import _posix
from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._manifest import tensor_file
from drivetrain_checkpoint._source import check_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Problem", "verify"]


class Problem(NamedTuple):
    """Something wrong with a checkpoint.

    Args:
        file: The file.
        because: What is wrong with it; damaged tensors are named.
    """

    file: str
    because: str


def verify(path: Path) -> list[Problem]:
    """Compares every byte of a checkpoint with its checksums.

    Args:
        path: The folder of one checkpoint.

    Returns:
        All that is wrong with it; empty if it is whole.
    """
    try:
        root = _posix.read_root(path)
    except FileNotFoundError:
        return [Problem("manifest.json", "is missing: the save was never committed")]
    except (CorruptCheckpointError, ForeignCheckpointError) as error:
        return [Problem("manifest.json", str(error))]
    problems = []
    for rank in range(root.world_size):
        try:
            manifest = _posix.read_rank(path, root, rank)
            with contextlib.ExitStack() as stack:
                check_file(path / tensor_file(rank), manifest, stack)
        except (CorruptCheckpointError, ForeignCheckpointError) as error:
            problems.append(Problem(tensor_file(rank), str(error)))
    return problems
