"""A process that has imported torch, and from which workers are forked in milliseconds.

Run as `python -m drivetrain_elastic._agent._fork_server DESCRIPTOR MODULE...`. On the
descriptor, a socket of packets, come requests: a file with JSON, and the worker's standard
output and error. A worker is the child of a child that ends at once, so that it becomes a child
of the agent, which is a subreaper: it outlives this process, and dies with the agent.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import signal
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from drivetrain_core.processes import end_with_parent, has_lost_accelerator
from drivetrain_health.diagnosis import install_error_record, write_error_record

_MOST_BYTES = 16
_OF_THE_AGENT = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_ADOPTION_S = 10.0


def main() -> None:
    """Serves until the other end is closed; in a worker, runs its program instead."""
    # A terminal's interrupt is for the agent, and so is what schedulers say to all processes:
    # workers that do not handle it go on.
    for number in (signal.SIGINT, *_OF_THE_AGENT):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        import_module(name)
        _require_sound_forks(name)
    gc.collect()
    gc.freeze()
    # Bindings would report what stays uncollected at the end as leaked.
    atexit.register(gc.unfreeze)
    control.send(b"{}")
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 3)
        if not data:
            return
        with os.fdopen(descriptors.pop(0), "rb") as file:
            file.seek(0)
            request = json.load(file)
        pid = _fork()
        if pid == 0:
            control.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"pid": pid}).encode())
    _become_worker(request, descriptors)
    _run(request)


def _require_sound_forks(name: str) -> None:
    """Ends this process if its forks cannot use the accelerator, after an import."""
    pid = os.fork()
    if pid == 0:
        os._exit(has_lost_accelerator())
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(
            f"{name} cannot be imported before workers are forked: it starts the "
            "accelerator, as torch.cuda.is_available() does, which forks could not use "
            "then. Leave it out of --preload, or have it ask in a function"
        )


def _fork() -> int:
    """Returns 0 in a grandchild, and its number here."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        pid = os.fork()
        if pid:
            os.write(write_end, str(pid).encode())
            os._exit(0)
        os.close(write_end)
        return 0
    os.close(write_end)
    with os.fdopen(read_end) as reader:
        pid = int(reader.read())
    os.waitpid(child, 0)
    return pid


def _become_worker(request: dict[str, Any], descriptors: list[int]) -> None:
    # Of a session of its own: the agent signals it together with its own children.
    os.setsid()
    end_s = time.monotonic() + _ADOPTION_S
    while os.getppid() != request["agent"]:
        if time.monotonic() > end_s:
            os._exit(1)
        time.sleep(0.0005)
    end_with_parent(request["agent"])
    for descriptor, standard in zip(descriptors, (1, 2), strict=False):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    path = os.environ.get("DRIVETRAIN_ELASTIC_ERROR_FILE")
    if path:
        install_error_record(path)
    random.seed()
    # Where it is not imported yet, it draws anew as it is.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def _run(request: dict[str, Any]) -> None:
    """Runs the program as Python would."""
    try:
        _run_program(request)
    except SystemExit as end:
        # `sys.exit("no license")` is an error with a text, and `sys.excepthook` is not called.
        path = os.environ.get("DRIVETRAIN_ELASTIC_ERROR_FILE")
        if path and end.code is not None and not isinstance(end.code, int):
            with contextlib.suppress(Exception):  # the text is still to be shown
                write_error_record(path, end)
        raise


def _run_program(request: dict[str, Any]) -> None:
    sys.argv = list(request["program"])
    target = sys.argv[0]
    if request["is_module"]:
        sys.path[0] = request["folder"]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(target).resolve().parent)
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
