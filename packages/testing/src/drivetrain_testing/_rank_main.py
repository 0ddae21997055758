"""The program of one rank that `run_ranks` starts: `python -m` this, with its folder.

The folder is private to the user (mode 0700) and was written by the parent, which is
why what lies in it may be unpickled.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

_C10D = "torch.distributed.distributed_c10d"
_kept: list[object] = []


def main(argv: list[str]) -> int:
    """Calls the function in the folder, and leaves its result or error there.

    Args:
        argv: The private folder of this run; the rank is in the environment.

    Returns:
        The exit code: 0 if there is a result, 1 if there is an error.
    """
    folder, rank = Path(argv[0]), int(os.environ["RANK"])
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        function, args, process_group, timeout_s = pickle.loads(
            (folder / "call").read_bytes()
        )
        _provide_module(function)
        _keep_groups(is_wanted=process_group)
        if process_group:
            _init_process_group(timedelta(seconds=timeout_s))
        result = cloudpickle.dumps(function(*args))
    # Whatever it is, the parent raises it; this process is at its end.
    except BaseException:  # noqa: BLE001
        report = f"{time.monotonic()}\n{traceback.format_exc()}"
        _write(folder / f"error-{rank}", report.encode())
        return 1
    if rank == 0:
        ours = [name for name in list(sys.modules) if name.startswith("drivetrain_")]
        _write(folder / "modules", "\n".join(ours).encode())
    _write(folder / f"result-{rank}", result)
    if process_group:
        _wait_for_others()
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads may abort a process that ends while they still run.
    os._exit(0)


def _keep_groups(*, is_wanted: bool) -> None:
    """Keeps the process groups that torch knows of from now on to the end of the process.

    One that is freed as its last collective ends can hang: its destructor holds Python's
    lock and waits for its thread, which waits for the lock to free the collective.

    Args:
        is_wanted: Whether to import torch for it, which takes seconds.
    """
    if is_wanted:
        import_module(_C10D)
    c10d: Any = sys.modules.get(_C10D)
    if c10d is not None:
        make = c10d._new_process_group_helper

        @functools.wraps(make)
        def make_and_keep(*args: object, **kwargs: object) -> object:
            made = make(*args, **kwargs)
            _kept.append(made)
            return made

        c10d._new_process_group_helper = make_and_keep


def _init_process_group(timeout: timedelta) -> None:
    # Imported here: importing torch takes seconds, and not every function needs it.
    from drivetrain_core.services import TorchProcessGroupFactory, init_process_group

    init_process_group(TorchProcessGroupFactory("gloo"), timeout=timeout)


def _wait_for_others() -> None:
    """Keeps the connections open until every rank has its result."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


def _provide_module(function: Any) -> None:
    """Makes the module of a function that came by value, which torch.compile may import."""
    name = getattr(function, "__module__", None) or "__main__"
    if name not in sys.modules and hasattr(function, "__globals__"):
        sys.modules[name] = module = ModuleType(name)
        vars(module).update(function.__globals__)


def _leave_with_parent() -> None:
    """Waits for the pipe to the parent to close, which is when the parent dies."""
    os.read(0, 1)  # not `sys.stdin`, whose lock would be held at the end
    os.killpg(0, signal.SIGKILL)


def _write(path: Path, content: bytes) -> None:
    """Writes a file that the parent sees whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
