"""Processes for tests on the device: children with settings of their own, and ranks.

They are forked off a server that has imported torch without a device, so that one more
process costs a fraction of a second. A function runs in a child by its file and name: it
must be at the top level of its file.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_simulated_accelerator._load import VARIABLE, load
from drivetrain_simulated_accelerator._settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

__all__ = ["Ended", "run_child", "run_ranks", "start_server", "stop_server"]

_PRELOADED = ["torch", "torch.distributed", "torch.distributed.fsdp"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child process ended.

    Args:
        exit_code: Its exit code; minus the number of the signal that ended it.
        result: What the function returned; None if it raised or did not return.
        error: The traceback of what it raised; empty if it returned.
    """

    exit_code: int | None
    result: Any
    error: str


def start_server() -> None:
    """Starts the server that children are forked off, without a device in it."""
    stop_server()
    before = os.environ.pop(VARIABLE, None)
    try:
        multiprocessing.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()
    finally:
        if before is not None:
            os.environ[VARIABLE] = before


def stop_server() -> None:
    """Stops the server, if it runs."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def run_child(
    function: Callable[..., Any],
    *arguments: Any,
    settings: Settings | None = None,
    loaded: bool = True,
    timeout_s: float = 60.0,
) -> Ended:
    """Runs a function in a child process with the device, and waits for its end.

    Args:
        function: The function.
        arguments: What it is called with.
        settings: The device's settings; the defaults if there are none.
        loaded: Whether the device is loaded before; without it the environment does
            not ask for the device either.
        timeout_s: After how long the child is killed.
    """
    chosen = (settings or Settings()) if loaded else None
    children = [_Child(_run_alone, function, arguments, chosen)]
    return _wait(children, timeout_s)[0]


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    settings: Settings | None = None,
    backend: str = "cpu:gloo,sim:simccl",
    collective_timeout_s: float = 60.0,
    timeout_s: float = 120.0,
) -> list[Ended]:
    """Runs a function in each rank of a process group, and waits for their ends.

    Args:
        function: The function; the rank is its first argument.
        world_size: How many ranks there are.
        arguments: Its further arguments.
        settings: The device's settings; the defaults if there are none.
        backend: The backend of the process group.
        collective_timeout_s: After how long a collective fails.
        timeout_s: After how long the ranks are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        group = (backend, f"file://{folder}/store", world_size, collective_timeout_s)
        children = [
            _Child(_run_rank, function, arguments, settings or Settings(), rank, *group)
            for rank in range(world_size)
        ]
        return _wait(children, timeout_s)


class _Child:
    """A child process and the pipe that its result comes through."""

    def __init__(
        self,
        how: Callable[..., Any],
        function: Callable[..., Any],
        arguments: Sequence[Any],
        settings: Settings | None,
        *more: Any,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        self.receiver, sender = context.Pipe(duplex=False)
        file = sys.modules[function.__module__].__file__
        text = None if settings is None else settings.to_text()
        what = (str(file), function.__name__, tuple(arguments), text)
        self.process = context.Process(target=_run, args=(sender, how, what, more))
        self.process.start()
        sender.close()

    def wait(self, timeout_s: float) -> Ended:
        """Waits for the end; kills the process after a while."""
        result, error = None, "the process said nothing"
        try:
            if self.receiver.poll(timeout_s):
                result, error = self.receiver.recv()
        except EOFError:
            error = "the process ended without a word"
        self.process.join(10.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            error = f"the process was killed: it did not end in time. {error}"
        ended = Ended(self.process.exitcode, result, error)
        self.receiver.close()
        self.process.close()
        return ended


def _wait(children: list[_Child], timeout_s: float) -> list[Ended]:
    """Returns how each child ended."""
    return [child.wait(timeout_s) for child in children]


def _run(
    sender: Connection,
    how: Callable[..., Any],
    what: tuple[str, str, tuple[Any, ...], str | None],
    more: tuple[Any, ...],
) -> None:
    """Runs the function in the child, and sends what it returns or raises."""
    faulthandler.enable()
    file, name, arguments, settings = what
    os.environ.pop(VARIABLE, None)
    try:
        if settings is not None:
            os.environ[VARIABLE] = settings
            load()
        found = how(_function_of(file, name), arguments, *more)
    except BaseException:  # noqa: BLE001 - the parent tells
        sender.send((None, traceback.format_exc()))
    else:
        sender.send((found, ""))
    sender.close()


def _function_of(file: str, name: str) -> Callable[..., Any]:
    """Returns a function of a file, which is imported under a name of its own."""
    spec = spec_from_file_location(f"_in_child_{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)
    return function


def _run_alone(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Runs the function of a child without ranks."""
    return function(*arguments)


def _run_rank(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    backend: str,
    address: str,
    world_size: int,
    timeout_s: float,
) -> Any:
    """Runs the function of a rank, in a process group."""
    import torch
    import torch.distributed as dist

    # Sums over threads differ in the last bits.
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    dist.init_process_group(
        backend,
        init_method=address,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        return function(rank, *arguments)
    finally:
        dist.destroy_process_group()
