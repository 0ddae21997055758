"""What a measurement is given, and what it may say."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil

from drivetrain_core import DrivetrainError
from drivetrain_core.processes import describe_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.distributed_c10d import Store


# GPUs are counted as their places on the bus, as the topology counts them.
TOOL_VARIABLES = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_END_S = 5.0


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


class Said(NamedTuple):
    """How a tool has ended.

    Attributes:
        text: What it has written, to whichever output.
        exit_code: As `subprocess` gives it.
    """

    text: str
    exit_code: int = 0

    @property
    def last_line(self) -> str:
        """What it has written last."""
        return (self.text.strip() or "nothing at all").splitlines()[-1]

    def refuse_failure(self, what: str) -> None:
        """Raises if the tool has failed, whatever it has written before.

        Args:
            what: How the error begins.

        Raises:
            NotHereError: It could not be run, as without a library that it needs.
            CheckFailedError: Any other exit status than 0.
        """
        if self.exit_code:
            message = f"{what} {describe_exit(self.exit_code)}: {self.last_line}"
            # So a shell, and the loader of libraries, say that a program cannot be run.
            is_here = self.exit_code not in (126, 127)
            raise (CheckFailedError if is_here else NotHereError)(message)


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Starts a tool, whose outputs are one pipe. `end` has to end it.

    It stays in the group of processes of the measurement, with which it is killed.

    Args:
        command: The command.

    Raises:
        NotHereError: It does not start.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **TOOL_VARIABLES},
            errors="replace",
        )
    except OSError as error:
        message = f"{command[0]} cannot be started: {error}"
        raise NotHereError(message) from error


def end(process: subprocess.Popen[str]) -> str:
    """Ends a tool with all that it has started; returns what they have written.

    Args:
        process: Of the tool, or of a script around it.
    """
    for one in _family(process):
        with suppress(psutil.Error):
            one.kill()
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=_END_S)[0]
    # A process that has left its parents holds the pipe.
    assert process.stdout is not None
    process.stdout.close()
    process.poll()
    return ""


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether a tool waits for connections over TCP.

    Args:
        process: Of the tool, or of a script around it.
    """
    for one in _family(process):
        with suppress(psutil.Error):
            if any(c.status == psutil.CONN_LISTEN for c in one.net_connections("tcp")):
                return True
    return False


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Returns a process and all that it has started; nothing of one that has ended.

    Its number may be another's then, and what it has started is of the measurement's group.
    """
    with suppress(psutil.Error):
        if process.poll() is None:
            first = psutil.Process(process.pid)
            return [first, *first.children(recursive=True)]
    return []


def said_by(command: Sequence[str], limit_s: float, what: str = "") -> Said:
    """Runs a tool and returns how it has ended, which may be by a failure.

    Args:
        command: The command.
        limit_s: After how long it is killed, with all that it has started.
        what: How errors begin; by default the command's name.

    Raises:
        NotHereError: It does not start.
        CheckFailedError: It does not end in time.
    """
    process = start(command)
    try:
        return Said(process.communicate(timeout=limit_s)[0], process.returncode)
    except subprocess.TimeoutExpired as error:
        message = f"{what or command[0]}: {error}"
        raise CheckFailedError(message) from error
    finally:
        end(process)


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
