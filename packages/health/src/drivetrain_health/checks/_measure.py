"""One measurement, in a process of its own: what it is asked, does and tells.

The process is forked by core's server of processes, which has imported torch. It is handed
a channel, over which come one request and the replies to what it asks of a store; it tells
what it is doing, and how it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from drivetrain_health.checks._checks import CHECKS
from drivetrain_health.checks._parent_store import ParentStore
from drivetrain_health.checks._task import CheckFailedError, NotHereError, Task
from drivetrain_health.checks._want import want_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# The first that the kernel takes when memory runs out.
_EXPENDABLE = "1000"


def main(arguments: Sequence[str]) -> NoReturn:
    """Makes the measurement that the channel asks for, tells of it, and ends.

    Args:
        arguments: The number of the channel, and of who made this process.
    """
    line = socket.socket(fileno=int(arguments[0])).makefile("rw", encoding="utf-8")

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
    except (NotHereError, CheckFailedError) as error:
        how = "skipped" if isinstance(error, NotHereError) else "failed"
        tell(**{"not_made" if want_of(error) else how: str(error)})
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
    main(sys.argv[1:])
