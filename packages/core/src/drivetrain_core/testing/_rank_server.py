"""A process that has imported torch, and from which ranks are forked in milliseconds.

Run as `python -m drivetrain_core.testing._rank_server DESCRIPTOR`. On the descriptor, a
socket of packets, come requests as JSON with three descriptors: the rank's standard input,
its output, and a socket on which the server tells the exit code. When the other end of that
socket is shut, the rank's process group is killed; only then is its number free again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["main"]

_MOST_BYTES = 1 << 20
# What takes seconds to import, and most functions need: DDP and optimizers import the
# second of them when they are first used.
_PRELOADED = ("torch.distributed.fsdp", "torch._dynamo", "drivetrain_core.services")


class _Server:
    """Forks ranks and tells of their ends, until the caller is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines: dict[int, socket.socket] = {}
        self._told: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._wake_end, wake = socket.socketpair()
        wake.setblocking(False)
        self._wake_end.setblocking(False)
        self._wake = wake
        self._selector.register(self._wake_end, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> dict[str, Any] | None:
        """Returns None when the caller is gone; in a rank, what it is to do."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    data, descriptors, _, _ = socket.recv_fds(
                        self._control, _MOST_BYTES, 3
                    )
                    if not data:
                        for pid in list(self._lines):
                            self._end(pid)
                        return None
                    if self._fork(*descriptors):
                        return dict(json.loads(data))
                elif key.fileobj is self._wake_end:
                    self._wake_end.recv(_MOST_BYTES)
                    self._tell_of_ends()
                else:
                    self._end(key.data)

    def _fork(self, stdin: int, output: int, line: int) -> bool:
        """Returns True in the new process."""
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            for descriptor, standard in ((stdin, 0), (output, 1), (output, 2)):
                os.dup2(descriptor, standard)
            for descriptor in (stdin, output, line):
                os.close(descriptor)
            self._forget()
            return True
        # Here as well: whoever comes first, the group is there when it is to be killed.
        os.setpgid(pid, pid)
        os.close(stdin)
        os.close(output)
        self._lines[pid] = socket.socket(fileno=line)
        self._selector.register(self._lines[pid], selectors.EVENT_READ, pid)
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

    def _end(self, pid: int) -> None:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._told.discard(pid)
        line = self._lines.pop(pid)
        self._selector.unregister(line)
        line.close()


def main() -> None:
    """Serves until the caller is gone; in a rank, does what the rank is to do instead."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in _PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    request = _Server(control).serve()
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["directory"])
    sys.path[:] = request["path"]
    rank_main = import_module("drivetrain_core.testing._rank_main")
    sys.exit(rank_main.main(Path(request["folder"]), int(os.environ["RANK"])))


if __name__ == "__main__":
    main()
