"""What a measurement is given, and what it may say."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.distributed_c10d import Store


# GPUs are counted as their places on the bus, as the topology counts them.
TOOL_VARIABLES = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class NotHereError(DrivetrainError):
    """What is to be measured does not exist on this node; the message says why."""


class CheckFailedError(DrivetrainError, RuntimeError):
    """The node, or its way to others, does not do what it should."""


class Found(NamedTuple):
    """What a measurement has found.

    Attributes:
        measures: Rates, by names that say the unit; more is better.
        digests: Of fixed computations, by the build and device that made them.
        wrong_bits: How the node contradicts itself; empty if it does not.
        received: A digest of what a group has sent each other.
    """

    measures: Mapping[str, float] = {}
    digests: Mapping[str, str] = {}
    wrong_bits: str = ""
    received: str = ""


class Task(NamedTuple):
    """What a measurement is given.

    Attributes:
        measure_s: For how long to measure.
        limit_s: After how long it is killed.
        num_threads: Of the CPU that compute.
        folder: Where a file may be written; None for nowhere.
        address: Of this node, as others see it; None to find out.
        rank: Of this node in its group.
        num_nodes: Of the group.
        note: Says what it is doing now, for the case that it hangs there.
        store: Where the group meets; None for a check of the node alone.
    """

    measure_s: float
    limit_s: float
    num_threads: int
    folder: str | None
    address: str | None
    rank: int
    num_nodes: int
    note: Callable[[str], None]
    store: Store | None = None


def said_by(command: Sequence[str], limit_s: float, what: str = "") -> str:
    """Returns what a command writes, to whichever output.

    Args:
        command: The command.
        limit_s: After how long it is killed.
        what: How errors begin; by default the command's name.

    Raises:
        CheckFailedError: It does not start, or does not end in time.
    """
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **TOOL_VARIABLES},
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{what or command[0]}: {error}"
        raise CheckFailedError(message) from error


def repeat(work: Callable[[], object], seconds: float) -> tuple[int, float]:
    """Does something again and again for a time.

    Args:
        work: What is done.
        seconds: For how long.

    Returns:
        How often it was done, and how many seconds that took.

    Example:
        >>> repeat(print, 0.0)[0]
        0
    """
    num, begin_s = 0, time.monotonic()
    while (took_s := time.monotonic() - begin_s) < seconds:
        work()
        num += 1
    return num, took_s
