"""Runs the main process of a pod, and leaves nothing of it behind.

It is a program of its own, which is started by path: `launcher.py PROCESSES LIBRARIES PARENT COMMAND...`. It
adopts whatever the command's processes leave, hands on SIGTERM, kills everything at
SIGUSR1 or when its parent is gone, and ends with the status of the command as a shell
would: 128 and the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

KILL = signal.SIGUSR1
"""What orders it to kill everything."""

NOT_STARTED = 128
"""What it ends with if the command cannot be started."""

_PR_SET_PDEATHSIG = 1
_AWAITED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, KILL}


def main(arguments: list[str]) -> int:
    """Runs a command; returns what to end with.

    Args:
        arguments: The file of `drivetrain_core.processes`, the folder of what that
            imports, the number of the parent, and the command.
    """
    parent, command = int(arguments[2]), arguments[3:]
    sys.path.append(arguments[1])
    family = _family(arguments[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    # Not to be killed but told, so that what it has started does not outlive it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(KILL), 0, 0, 0)
    if os.getppid() != parent:
        return NOT_STARTED
    family.adopt_orphans()
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(command, own, family)
    while True:
        number = signal.sigwait(_AWAITED)
        if number == KILL:
            return _kill_all(family, pid)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        elif (code := _reap(pid)) is not None:
            _kill_all(family, pid)
            return code


def _family(path: str) -> ModuleType:
    """Returns the module of parents and children, without the package around it."""
    spec = importlib.util.spec_from_file_location("processes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _become(command: list[str], parent: int, family: ModuleType) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    family.end_with_parent(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _reap(main_pid: int) -> int | None:
    """Lets go of what has ended; returns the status of the command if it has."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main_pid:
            ended = os.waitstatus_to_exitcode(status)
            code = 128 - ended if ended < 0 else ended


def _kill_all(family: ModuleType, main_pid: int) -> int:
    """Kills all descendants; returns what the command ended with."""
    code = None
    while found := family.children():
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(pid, 0)
                if pid == main_pid:
                    ended = os.waitstatus_to_exitcode(status)
                    code = 128 - ended if ended < 0 else ended
    return 128 + signal.SIGKILL if code is None else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
