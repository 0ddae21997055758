"""A process that has imported torch, and forks one measurement after the other.

Run as `python -m drivetrain_health.checks._measure_server DESCRIPTOR`. On the descriptor, a
socket of packets, comes `fork` with a channel and a file for output, which is answered with
the number of the process; then `end`, which kills it and whatever it has started, and is
answered with its exit code, or `wait` and seconds, for which it may end by itself. It adopts
what its forks leave behind, so that it finds it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from drivetrain_core.processes import adopt_orphans, children, end_with_parent
from drivetrain_health.checks._checks import CHECKS
from drivetrain_health.checks._parent_store import ParentStore
from drivetrain_health.checks._task import CheckFailedError, NotHereError, Task
from drivetrain_health.checks._want import want_of

_MOST_BYTES = 64
# The first that the kernel takes when memory runs out.
_EXPENDABLE = "1000"


def serve(descriptor: int) -> None:
    """Serves until the other end is closed; in a fork, makes one measurement instead.

    Args:
        descriptor: A socket of packets.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    control = socket.socket(fileno=descriptor)
    gc.collect()
    gc.freeze()
    # Bindings would report what stays uncollected at the end as leaked.
    atexit.register(gc.unfreeze)
    control.send(b"ready")
    pid = 0
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
        if pid and data != b"fork":
            word, _, patience_s = data.partition(b" ")
            code = _end(pid, patience_s=float(patience_s) if word == b"wait" else 0.0)
            pid = 0
            if data:
                control.send(str(code).encode())
        if not data:
            return
        if data == b"fork":
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                control.close()
                _measure(server, *descriptors)
            # Here as well: whoever comes first, the group is there to be killed.
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            for given in descriptors:
                os.close(given)
            control.send(str(pid).encode())


def _end(pid: int, *, patience_s: float = 0.0) -> int:
    """Kills a fork with all that it has started; returns how it has ended."""
    descriptor = os.pidfd_open(pid)
    select.select([descriptor], [], [], patience_s)
    os.close(descriptor)
    # Not reaped before, so that the group is its own until it is killed.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    # What has left the group was adopted when its parent died.
    while left := children():
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one, 0)
    return os.waitstatus_to_exitcode(status)


def _measure(server: int, channel: int, output: int) -> NoReturn:
    """Makes the measurement that the channel asks for, tells of it, and ends."""
    os.setpgid(0, 0)
    end_with_parent(server)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    line = socket.socket(fileno=channel).makefile("rw", encoding="utf-8")

    def tell(**message: Any) -> None:
        line.write(json.dumps(message) + "\n")
        line.flush()

    request = json.loads(line.readline())
    check = CHECKS[request.pop("check")]
    _limit(request.pop("memory_bytes"))
    store = ParentStore(line) if check.is_paired else None
    task = Task(note=lambda text: tell(doing=text), store=store, **request)
    torch.set_num_threads(task.num_threads)
    home = import_module(f"drivetrain_health.checks.{check.home}")
    # Any other error ends this process with a traceback, of which the caller tells.
    try:
        found = home.measure(task)
    except NotHereError as error:
        tell(skipped=str(error))
    except CheckFailedError as error:
        if want_of(error):
            tell(not_made=str(error))
        else:
            tell(failed=str(error))
    except (MemoryError, OSError, RuntimeError) as error:
        if not (want := want_of(error)):
            raise
        tell(not_made=want)
    else:
        tell(found=found._asdict())
    # Threads of libraries, and connections to others, are of no concern any more.
    os._exit(0)


def _limit(memory_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        # A fork begins with all that its parent has, which may be more than that.
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limit = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A container may forbid it, and then the kernel chooses by size.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_EXPENDABLE)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
