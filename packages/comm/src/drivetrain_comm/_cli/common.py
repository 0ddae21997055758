"""What commands share: the group of the ranks that run them, and sizes."""

from __future__ import annotations

import argparse
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import drivetrain_comm
from drivetrain_core import services
from drivetrain_core.commands import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_comm import TunedProcessGroup

_UNITS = {"k": 10, "m": 20, "g": 30}


@contextmanager
def group_of_ranks(command: str) -> Iterator[TunedProcessGroup]:
    """Makes the process group of the ranks that all run this command.

    Raises:
        UsageError: It was not started by torchrun, or on one rank only.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        message = (
            f"{command} needs two ranks at least: start it on every host, as in "
            f"torchrun --nproc-per-node 4 -m drivetrain_comm.cli {command}"
        )
        raise UsageError(message)
    import torch.distributed as dist

    factory = drivetrain_comm.TunedProcessGroupFactory("gloo")
    group = services.init_process_group(factory)
    assert isinstance(group, drivetrain_comm.TunedProcessGroup)
    try:
        yield group
        dist.barrier()
    finally:
        services.destroy_process_group()


def sizes(text: str) -> list[int]:
    """Returns sizes in bytes out of a list such as `4K,1M`, as an option takes them.

    Example:
        >>> sizes("512,4K,1M")
        [512, 4096, 1048576]
    """
    return [size(part) for part in text.split(",")]


def size(text: str) -> int:
    """Returns a size in bytes, as an option takes it.

    Example:
        >>> size("64M") >> 20
        64
    """
    word = text.strip().lower()
    shift = _UNITS.get(word[-1:], 0)
    try:
        found = int(word[:-1] if shift else word) << shift
    except ValueError:
        message = f"a size is a number of bytes such as 512, 4K or 1M, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None
    if not 4 <= found <= 1 << 32:
        message = f"a size is 4 bytes to 4 GiB, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return found


def human(size_bytes: int) -> str:
    """Returns a size for people: `4 KiB`.

    Example:
        >>> human(4096), human(100)
        ('4 KiB', '100 B')
    """
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):g} {unit}"
    return f"{size_bytes} B"


def schedule_file(text: str) -> str:
    """Returns the path of a file that a schedule can be written to."""
    if Path(text).suffix not in (".json", ".xml"):
        message = f"must end in .json or .xml, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return text
