"""The processes that faults are for, held so that no other one is ever hit."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from drivetrain_core import ProgramError
from drivetrain_health.faults._errors import (
    FaultError,
    MissingPrivilegeError,
    TargetGoneError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

_PATIENCE_S = 10.0
_POLL_S = 0.001


class HasPid(Protocol):
    """A process as a library has it: of subprocess, multiprocessing or psutil."""

    @property
    def pid(self) -> int | None:
        """Its number; None while it was not started."""


Target = int | HasPid
"""A process, by its number or as an object that has it. An object is safer: it knows
whether the process with this number is still the one that it stands for."""


class Held:
    """One process, by a file descriptor of the kernel; safe in any thread.

    Its number may pass to another process when it ends. A signal goes to this one, or
    to none.

    Args:
        target: The process.

    Attributes:
        pid: Its number.

    Raises:
        ProgramError: No process can be meant, or it is this one.
        TargetGoneError: It has ended.
    """

    def __init__(self, target: Target) -> None:
        pid = target if isinstance(target, int) else target.pid
        if pid is None or pid <= 1 or pid == os.getpid():
            message = f"a fault needs another process than this one and 1, got {pid}"
            raise ProgramError(message)
        self.pid = pid
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise self._gone() from error
        except OSError as error:
            message = (
                f"process {pid} cannot be held ({error.strerror}): is it a thread?"
            )
            raise FaultError(message) from error
        # Only now can the object's own view of it not grow old any more.
        if self.wait(0) or _has_ended(target):
            self.close()
            raise self._gone()

    def signal(self, number: int) -> None:
        """Sends a signal.

        Raises:
            TargetGoneError: It has ended.
            MissingPrivilegeError: It belongs to another user.
        """
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError as error:
            raise self._gone() from error
        except PermissionError as error:
            message = f"process {self.pid} is another user's: run it as root"
            raise MissingPrivilegeError(message) from error

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended; returns whether it has."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))

    def stop(self) -> None:
        """Stops it; returns when all its threads stand still.

        Raises:
            TargetGoneError: It has ended.
            FaultError: It does not stop, for the kernel is at work for it.
        """
        self.signal(signal.SIGSTOP)
        end_s = time.monotonic() + _PATIENCE_S
        while (states := self._states()) - {"T", "t"}:
            if self.wait(_POLL_S):
                raise self._gone()
            if time.monotonic() > end_s:
                message = (
                    f"process {self.pid} has not stopped for {_PATIENCE_S:g} s; its "
                    f"threads are in the states {', '.join(sorted(states))}"
                )
                raise FaultError(message)

    def go_on(self) -> None:
        """Lets it go on, if it has not ended."""
        with suppress(TargetGoneError):
            self.signal(signal.SIGCONT)

    def cpu_time_s(self) -> float | None:
        """Returns the CPU time of its threads so far; None when it has ended."""
        # The clock of a process, as clock_getcpuclockid(3) makes it of the number.
        with suppress(OSError):
            used_s = time.clock_gettime((~self.pid << 3) | 2)
            return None if self.wait(0) else used_s
        return None

    def _states(self) -> set[str]:
        found = set()
        for thread in _numbers(Path("/proc", str(self.pid), "task")):
            with suppress(OSError):
                found.add(_fields(f"{self.pid}/task/{thread}")[0])
        return found

    def _gone(self) -> TargetGoneError:
        return TargetGoneError(f"process {self.pid} has ended")

    def close(self) -> None:
        """Lets go of it."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def hold(target: Target, *, tree: bool = False) -> Iterator[list[Held]]:
    """Holds a process, and if asked all that descend from it now.

    Args:
        target: The process.
        tree: Whether its descendants are meant too.

    Yields:
        The processes, parents first.

    Raises:
        ProgramError: No process can be meant, or it is this one.
        TargetGoneError: It has ended.
    """
    with ExitStack() as stack:
        found = [stack.enter_context(Held(target))]
        if tree:
            while new := _descendants(found, stack):
                found += new
        yield found


@contextmanager
def frozen(target: Target, *, tree: bool = False) -> Iterator[list[Held]]:
    """Stops a process, and if asked all that descend from it; they go on at the end.

    Those that are made meanwhile are stopped too: it looks again until there is none.

    Args:
        target: The process.
        tree: Whether its descendants are meant too.

    Yields:
        The processes, parents first.

    Raises:
        ProgramError: No process can be meant, or it is this one.
        TargetGoneError: It has ended.
        FaultError: It does not stop.
    """
    with ExitStack() as stack:
        found = [stack.enter_context(Held(target))]
        try:
            found[0].stop()
            while tree and (new := _descendants(found, stack)):
                found += new
                for one in new:
                    with suppress(TargetGoneError):
                        one.stop()
            yield found
        finally:
            for one in found:
                one.go_on()


def children_of(pid: int) -> list[int]:
    """Returns the numbers of the processes that a process has started and not outlived."""
    return sorted(one for one, parent in _parents().items() if parent == pid)


def _descendants(known: Iterable[Held], stack: ExitStack) -> list[Held]:
    """Holds the children of processes that are held; this process is none of them."""
    pids = {one.pid for one in known}
    found = []
    for pid, parent in sorted(_parents().items()):
        if parent not in pids or pid in pids or pid == os.getpid():
            continue
        with suppress(TargetGoneError):
            child = stack.enter_context(Held(pid))
            # The number may have passed to a stranger before it was held.
            if _parents([pid]).get(pid) == parent:
                found.append(child)
    return found


def _parents(pids: Iterable[int] | None = None) -> dict[int, int]:
    """Returns the parent of each process."""
    found = {}
    for pid in _numbers(Path("/proc")) if pids is None else pids:
        with suppress(OSError):
            found[pid] = int(_fields(str(pid))[1])
    return found


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208
    except FileNotFoundError:
        return []


def _fields(place: str) -> list[str]:
    # The name of a program stands in parentheses, and may hold some.
    return Path("/proc", place, "stat").read_text().rpartition(")")[2].split()


def _has_ended(target: Any) -> bool:
    """Asks the object that stands for a process whether it has ended."""
    for name in ("is_running", "is_alive"):
        ask = getattr(target, name, None)
        if ask is not None:
            return not ask()
    poll = getattr(target, "poll", None)
    return poll is not None and poll() is not None
