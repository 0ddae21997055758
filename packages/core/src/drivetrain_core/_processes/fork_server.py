"""A process that has imported what takes seconds, and from which others are forked at once.

Run as `python -m drivetrain_core._processes.fork_server DESCRIPTOR MODULE...`; the modules are what it
imports. On the descriptor, a socket of packets, come requests, each as descriptors: a file
of JSON, the standard input, the output, a line on which the server tells the number of the
process and later its exit code, and, for some, a channel that the process is handed. When
the other end of the line is shut, the group of the process is killed; only then is its
number free again. A fork that could not use the accelerator, because something that was
imported has started it in the server, becomes a program that is started anew.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from importlib import import_module
from typing import Any

from drivetrain_core.processes import end_with_parent, has_lost_accelerator

MARKER = "DRIVETRAIN_TRIAL"
"""The environment variable that marks a process, and whatever it starts."""

NO_MARK = "0" * 32
"""The mark of the server, over which each process that it forks writes its own."""

_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 5


class _Server:
    """Forks processes and tells of their ends, until the caller is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines: dict[int, socket.socket] = {}
        self._told: set[int] = set()
        self._ending: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._wake_end, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._wake_end.setblocking(False)
        self._selector.register(self._wake_end, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> tuple[dict[str, Any], int | None] | None:
        """Returns None when the caller is gone; in a fork, its request and its channel."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    data, descriptors, _, _ = socket.recv_fds(
                        self._control, _MOST_BYTES, _MOST_DESCRIPTORS
                    )
                    if not data:
                        for pid in list(self._lines):
                            self._end(pid)
                        while self._lines:
                            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                            self._tell_of_ends()
                        return None
                    asked, stdin, output, line, *rest = descriptors
                    _import_more(asked)
                    if self._fork(stdin, output, line, [asked, *rest]):
                        return _read(asked), rest[0] if rest else None
                elif key.fileobj is self._wake_end:
                    self._wake_end.recv(_MOST_BYTES)
                    self._tell_of_ends()
                else:
                    self._end(key.data)

    def _fork(self, stdin: int, output: int, line: int, rest: list[int]) -> bool:
        """Returns True in the new process."""
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            end_with_parent(server)
            for descriptor, standard in ((stdin, 0), (output, 1), (output, 2)):
                os.dup2(descriptor, standard)
            for descriptor in (stdin, output, line):
                os.close(descriptor)
            self._forget()
            return True
        # Here as well: whoever comes first, the group is there when it is to be killed.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        for descriptor in (stdin, output, *rest):
            os.close(descriptor)
        told = socket.socket(fileno=line)
        self._lines[pid] = told
        self._selector.register(told, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):
            told.send(str(pid).encode())
        return False

    def _forget(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for one in (self._control, self._wake, self._wake_end, *self._lines.values()):
            one.close()

    def _tell_of_ends(self) -> None:
        for pid in self._lines.keys() - self._told:
            # Not reaped yet, so that its process group stays its own until it is killed.
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            info = os.waitid(os.P_PID, pid, how)
            if info is not None:
                exited = info.si_code == os.CLD_EXITED
                code = info.si_status if exited else -info.si_status
                self._told.add(pid)
                # Nobody listens any more if the caller is gone.
                with contextlib.suppress(OSError):
                    self._lines[pid].send(str(code).encode())
        for pid in self._ending & self._told:
            os.waitpid(pid, 0)
            self._ending.discard(pid)
            self._told.discard(pid)
            self._lines.pop(pid).close()

    def _end(self, pid: int) -> None:
        """Kills a group; one that the kernel does not let go of keeps nobody waiting."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if pid not in self._ending:
            self._selector.unregister(self._lines[pid])
            self._ending.add(pid)
        self._tell_of_ends()


def _read(descriptor: int) -> dict[str, Any]:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return dict(json.load(file))


def _import_more(descriptor: int) -> None:
    """Imports what a request wants of the server, which the forks after it have as well."""
    wanted = _read(os.dup(descriptor))["more"]
    missing = [name for name in wanted if name not in sys.modules]
    for name in missing:
        # A fork that needs it raises the error.
        with contextlib.suppress(Exception):
            import_module(name)
    if missing:
        _keep()


def _keep() -> None:
    """Leaves what was imported out of collections, which would copy it in each fork.

    At its end a process gives it back (`main`): bindings whose objects nobody collects
    then report each of them as leaked on the user's standard error.
    """
    gc.collect()
    gc.freeze()


def _mark(marker: str) -> None:
    """Writes a mark over the server's, where the kernel shows a process's environment.

    It shows the memory that the environment lay in when the program was started, so
    that a change in `os.environ` would not be seen.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(MARKER.encode())
    if place and ctypes.string_at(place) == NO_MARK.encode() and len(marker) == 32:
        ctypes.memmove(place, marker.encode(), len(marker))


def _become(request: dict[str, Any]) -> None:
    """Makes a fork what a program started with the request's environment would be."""
    _mark(request["env"].get(MARKER, ""))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["directory"])
    sys.path[:] = request["path"]
    sys.argv[:] = [request["module"], *request["arguments"]]
    # Python draws anew in a fork by itself, as what is imported later does; this would not.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def main() -> int:
    """Serves until the caller is gone; in a fork, runs the `main` that is asked for."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # Handlers run in the order opposite to that of registration: this one last.
    atexit.register(gc.unfreeze)
    for name in sys.argv[2:]:
        import_module(name)
    _keep()
    asked = _Server(control).serve()
    if asked is None:
        return 0
    request, channel = asked
    _become(request)
    arguments = list(request["arguments"])
    if channel is not None:
        arguments += [str(channel), str(os.getppid())]
    if has_lost_accelerator():
        if channel is not None:
            os.set_inheritable(channel, True)
        command = [sys.executable, "-P", "-m", request["module"], *arguments]
        os.execve(sys.executable, command, request["env"])
    code: int = import_module(request["module"]).main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
