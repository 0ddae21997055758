"""Measurements in processes of their own, which are killed when their time is up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import DistributedError
from drivetrain_core.extending import ForkedProcess
from drivetrain_core.processes import describe_exit
from drivetrain_health.checks._answer_store import answer_store
from drivetrain_health.checks._checks import CHECKS
from drivetrain_health.checks._task import Found

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.distributed_c10d import Store

    from drivetrain_health.checks._check_config import CheckConfig

_MODULE = "drivetrain_health.checks._measure"
_MOST_BYTES = 1 << 16
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


def measure_apart(
    check: str,
    config: CheckConfig,
    *,
    limit_s: float,
    rank: int = 0,
    num_nodes: int = 1,
    store: Store | None = None,
) -> BenchResult:
    """Makes a measurement and returns how it has ended, after the limit at the latest.

    The first one takes the seconds in which torch is imported, beside its limit.

    Args:
        check: Its name.
        config: What is measured, and for how long.
        limit_s: After how long it is killed.
        rank: Of this node in its group.
        num_nodes: Of the group.
        store: Where the group meets; needed by a check that takes several nodes.

    Raises:
        DistributedError: No process can be started for it.
    """
    limit_s = min(limit_s, config.limit_s * CHECKS[check].patience)
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as output:
        with theirs:
            child = _start(theirs, output)
        request = {
            "check": check,
            "measure_s": config.measure_s,
            "limit_s": limit_s,
            "num_threads": config.num_threads,
            "folder": config.folder,
            "address": config.address,
            "rank": rank,
            "num_nodes": num_nodes,
            "memory_bytes": None if CHECKS[check].uses_gpu else config.memory_bytes,
        }
        end_s = time.monotonic() + limit_s
        result, doing = _hear(ours, request, end_s, store)
        code = None
        if result is None and time.monotonic() < end_s:
            with contextlib.suppress(TimeoutError):
                code = child.wait(_EXIT_S)
        child.kill()
        try:
            child.reap(_END_S)
        except TimeoutError:
            doing += f"; it cannot be killed, for {_END_S:g} s now"
        if result is not None:
            return result
        if code is None:
            return BenchResult(failed=f"no result within {limit_s:.3g} s{doing}")
        said = f"{doing}{_last_line(output)}"
        if code == -signal.SIGKILL:
            # Its limit has not killed it. It is the first that the kernel takes.
            why = "from outside, as the kernel does when memory is used up"
            return BenchResult(
                not_made=f"its process {describe_exit(code)} {why}{said}"
            )
        return BenchResult(failed=f"its process {describe_exit(code)}{said}")


def _start(channel: socket.socket, output: IO[bytes]) -> ForkedProcess:
    try:
        child = ForkedProcess(
            _MODULE,
            [],
            env=os.environ,
            output=output.fileno(),
            channel=channel,
            imported=("torch", _MODULE),
        )
    except OSError as error:
        message = f"no process can be forked for a measurement: {error}"
        raise DistributedError(message) from error
    if not child.pid:
        child.reap()
        message = f"what forks measurements {describe_exit(child.wait())} as it started"
        raise DistributedError(message)
    return child


def _hear(
    channel: socket.socket,
    request: Mapping[str, Any],
    end_s: float,
    store: Store | None,
) -> tuple[BenchResult | None, str]:
    """Returns how a measurement has ended by its own word, and what it did last."""
    _tell(channel, request)
    doing = ""
    for message in _messages(channel, end_s):
        if "found" in message:
            return BenchResult(found=Found(**message["found"])), doing
        if message.keys() & {"skipped", "failed", "not_made"}:
            return BenchResult(**message), doing
        if "doing" in message:
            doing = f", while {message['doing']}"
        elif "store" in message and store is not None:
            left_s = max(0.0, end_s - time.monotonic())
            _tell(channel, answer_store(store, message, left_s))
    return None, doing


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
