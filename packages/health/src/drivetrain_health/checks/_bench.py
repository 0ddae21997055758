"""Measurements in processes of their own, which are killed when their time is up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import DistributedError
from drivetrain_core.processes import describe_exit, has_lost_accelerator
from drivetrain_health.checks._answer_store import answer_store
from drivetrain_health.checks._checks import CHECKS
from drivetrain_health.checks._fork import Fork, may_fork
from drivetrain_health.checks._task import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from torch.distributed.distributed_c10d import Store

    from drivetrain_health.checks._check_config import CheckConfig

_MODULE = "drivetrain_health.checks._measure_server"
_MOST_BYTES = 1 << 16
# torch is imported meanwhile, from a disk that may be busy with that on all nodes.
_START_S = 120.0
# A process that was killed is gone at once, unless the kernel holds it.
_END_S = 5.0
# A process that has raised needs seconds for its last words where others compute.
_EXIT_S = 20.0


class BenchResult(NamedTuple):
    """How a measurement has ended.

    Attributes:
        found: What it has found; None if it has not.
        skipped: Why there is nothing to measure; empty if there is.
        not_made: Why it could not be made, which says nothing of the node; empty if not.
        failed: Why it has failed; empty if it has not.
    """

    found: Found | None = None
    skipped: str = ""
    failed: str = ""
    not_made: str = ""


class Bench:
    """Makes measurements, one at a time; used from one thread, as a context manager.

    Args:
        config: What is measured, and for how long.
    """

    def __init__(self, config: CheckConfig) -> None:
        self._config = config
        self._server: subprocess.Popen[bytes] | Fork | None = None
        self._control: socket.socket | None = None

    def measure(
        self,
        check: str,
        *,
        limit_s: float,
        rank: int = 0,
        num_nodes: int = 1,
        store: Store | None = None,
    ) -> BenchResult:
        """Makes a measurement and returns how it has ended, after the limit at the latest.

        Args:
            check: Its name.
            limit_s: After how long it is killed.
            rank: Of this node in its group.
            num_nodes: Of the group.
            store: Where the group meets; needed by a check that takes several nodes.

        Raises:
            DistributedError: No process can be started for it.
        """
        limit_s = min(limit_s, self._config.limit_s)
        ours, theirs = socket.socketpair()
        with ours, tempfile.TemporaryFile() as output:
            with theirs:
                self._fork(theirs, output)
            end_s = time.monotonic() + limit_s
            request = {
                "check": check,
                "measure_s": self._config.measure_s,
                "limit_s": limit_s,
                "num_threads": self._config.num_threads,
                "folder": self._config.folder,
                "address": self._config.address,
                "rank": rank,
                "num_nodes": num_nodes,
                "memory_bytes": None
                if CHECKS[check].uses_gpu
                else self._config.memory_bytes,
            }
            _tell(ours, request)
            doing = ""
            for message in _messages(ours, end_s):
                if "found" in message:
                    self._end()
                    return BenchResult(found=Found(**message["found"]))
                if message.keys() & {"skipped", "failed", "not_made"}:
                    self._end()
                    return BenchResult(**message)
                if "doing" in message:
                    doing = f", while {message['doing']}"
                elif "store" in message and store is not None:
                    left_s = max(0.0, end_s - time.monotonic())
                    reply = answer_store(store, message, left_s)
                    _tell(ours, reply)
            is_late = time.monotonic() >= end_s
            code = self._end() if is_late else self._end(_EXIT_S)
            if code is None:
                doing += f"; it cannot be killed, for {_END_S:g} s now"
            if is_late or code is None:
                return BenchResult(failed=f"no result within {limit_s:.3g} s{doing}")
            said = f"{doing}{_last_line(output)}"
            if code == -signal.SIGKILL:
                # Its limit has not killed it. It is the first that the kernel takes.
                why = "from outside, as the kernel does when memory is used up"
                return BenchResult(
                    not_made=f"its process {describe_exit(code)} {why}{said}"
                )
            return BenchResult(failed=f"its process {describe_exit(code)}{said}")

    def _fork(self, channel: socket.socket, output: IO[bytes]) -> None:
        """Has a process forked, by another server if the one that was there is gone."""
        if self._control is not None and self._server is not None:
            self._control.settimeout(_END_S)
            try:
                self._ask(channel, output)
            except OSError:
                self.close()
            else:
                return
        self._start()
        try:
            self._ask(channel, output)
        except OSError as error:
            message = f"no process can be forked for a measurement: {error}"
            raise DistributedError(message) from error

    def _ask(self, channel: socket.socket, output: IO[bytes]) -> None:
        assert self._control is not None
        descriptors = [channel.fileno(), output.fileno()]
        socket.send_fds(self._control, [b"fork"], descriptors)
        if not self._control.recv(_MOST_BYTES):
            message = "the server of measurements has ended"
            raise ConnectionError(message)

    def _start(self) -> None:
        # It takes two seconds of a processor to import torch again.
        if may_fork() and self._greets(_fork_server):
            return
        if not self._greets(_new_server):
            message = (
                f"the server of measurements did not start within {_START_S:g} s: run "
                f"{sys.executable} -m {_MODULE} to see why"
            )
            raise DistributedError(message)

    def _greets(self, start: Callable[[int], subprocess.Popen[bytes] | Fork]) -> bool:
        """Starts a server; returns whether it is there, and has closed it if it is not."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = start(theirs.fileno())
        self._control = ours
        ours.settimeout(_START_S)
        try:
            greeting = ours.recv(_MOST_BYTES)
        except TimeoutError:
            greeting = b""
        if greeting:
            ours.settimeout(_END_S)
        else:
            self.close()
        return bool(greeting)

    def _end(self, patience_s: float | None = None) -> int | None:
        """Kills the measurement with all that it has started; returns its exit code.

        It has some seconds to end by itself, if it is to end.

        It is None if the server is gone, or waits for a process that the kernel does not
        let go of; then there will be another server.
        """
        assert self._control is not None
        try:
            words = "end" if patience_s is None else f"wait {patience_s:g}"
            self._control.settimeout(_END_S + (patience_s or 0.0))
            self._control.send(words.encode())
            return int(self._control.recv(_MOST_BYTES))
        except (OSError, ValueError):
            self.close()
            return None

    def start(self) -> None:
        """Starts what takes seconds, if it has not been started.

        Raises:
            DistributedError: It does not start.
        """
        if self._server is None:
            self._start()

    def close(self) -> None:
        """Ends what is under way."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            try:
                self._server.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fork_server(descriptor: int) -> Fork:
    def run() -> None:
        # A new process can use what a fork of this one has lost.
        if not has_lost_accelerator():
            import_module(_MODULE).serve(descriptor)

    return Fork(run, descriptor)


def _new_server(descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(descriptor)],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        start_new_session=True,
    )


def _tell(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends a message to a process; that it has ended is what reading says."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.sendall(json.dumps(message).encode() + b"\n")


def _messages(channel: socket.socket, end_s: float) -> Any:
    """Yields what a measurement says, until it ends or its time is up."""
    buffer = b""
    while (left_s := end_s - time.monotonic()) > 0:
        if not select.select([channel], [], [], left_s)[0]:
            return
        try:
            data = channel.recv(_MOST_BYTES)
        except ConnectionResetError:
            return
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for one in lines:
            yield json.loads(one)


def _last_line(output: IO[bytes]) -> str:
    """Returns what a process has said last."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MOST_BYTES))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
