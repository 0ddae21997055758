"""Processes of a trial: one a rank, watched, never left behind.

A trial may hang, crash, or eat all memory. Each rank is therefore a process in a group of
its own, which dies with this one, carries a marker in its environment by which strays are
found, and talks over a socket pair, so that what the user's program prints cannot be
mistaken for an answer. Ranks are forked from a process that has imported torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

import psutil

from drivetrain_core.extending import MARKER, ForkedProcess, NewProcess
from drivetrain_search.process.partial_libraries import (
    inductor_folder,
    remove_partial_libraries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from drivetrain_core.extending import ChildProcess

# What a rank of any kind needs, and takes seconds to import.
_IMPORTED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "drivetrain_core._build",
    "drivetrain_search.process.payload",
    "drivetrain_search.process.trajectory",
)

_DUMP_WAIT_S = 0.7
_KILL_WAIT_S = 5.0
_TAIL_BYTES = 6000


class RankFailure(Exception):  # noqa: N818
    """A rank of a trial ended, or did not answer in time.

    Args:
        kind: `exit` or `timeout`.
        rank: Which rank.
        exit_code: Its exit code; negative for a signal; None when it was running.
        log: The end of what it printed, with its stacks after a time-out.
    """

    def __init__(self, kind: str, rank: int, exit_code: int | None, log: str) -> None:
        """Keeps the parts."""
        super().__init__(f"rank {rank}: {kind}, exit code {exit_code}")
        self.kind = kind
        self.rank = rank
        self.exit_code = exit_code
        self.log = log


class Processes:
    """The ranks of one trial.

    Use it as a context: leaving it, however that happens, kills every process.

    Args:
        module: The module that each rank runs as a script.
        spec: The path of the trial's description, its first argument.
        world_size: Number of ranks.
        folder: A private folder for logs.
        env: Variables added to this process's environment.
        forked: Whether ranks are forked from a process that has imported torch.
    """

    def __init__(
        self,
        module: str,
        spec: Path,
        world_size: int,
        folder: Path,
        env: Mapping[str, str],
        *,
        forked: bool = True,
    ) -> None:
        """Starts every rank."""
        self.marker = uuid.uuid4().hex
        self._forked = forked
        self._started_s = time.time()
        self._compiled = inductor_folder({**os.environ, **env})
        self._children: list[ChildProcess] = []
        self._sockets: list[socket.socket] = []
        self._buffers = [b""] * world_size
        self._logs = [folder / f"rank{rank}.log" for rank in range(world_size)]
        try:
            for rank in range(world_size):
                self._start(module, spec, rank, env)
        except BaseException:
            self.kill()
            raise

    def _start(
        self, module: str, spec: Path, rank: int, env: Mapping[str, str]
    ) -> None:
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        with self._logs[rank].open("wb") as log, theirs:
            arguments = [str(spec), str(rank)]
            full = {**os.environ, **env, **self._place(rank), MARKER: self.marker}
            child: ChildProcess
            if self._forked:
                child = ForkedProcess(
                    module,
                    arguments,
                    env=full,
                    output=log.fileno(),
                    channel=theirs,
                    imported=_IMPORTED,
                )
            else:
                child = NewProcess(
                    module, arguments, env=full, output=log.fileno(), channel=theirs
                )
        self._children.append(child)

    def _place(self, rank: int) -> dict[str, str]:
        """Returns what `torchrun` would set, in place of this process's own rank."""
        size = len(self._buffers)
        if size == 1:
            return {}
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
        }

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills every process that is left."""
        self.kill()

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message to every rank; a rank that is gone is found by receive."""
        line = json.dumps(message).encode() + b"\n"
        for ours in self._sockets:
            with contextlib.suppress(OSError):
                ours.sendall(line)

    def receive(
        self,
        deadline: float | Callable[[], float],
        told: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Returns one answer of every rank.

        Returns early, with that message alone, when a rank reports a failure: its
        peers would only wait for it.

        Args:
            deadline: When to give up, in the seconds of `time.monotonic`; a function
                where what ranks tell on their way may put it off.
            told: Called with each message that tells how far a rank is, and is no answer.

        Raises:
            RankFailure: A rank ended or the deadline passed; the log is in it.
        """
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(self._sockets):
            end = deadline if isinstance(deadline, int | float) else deadline()
            ready = self._wait(set(range(len(self._sockets))) - set(answers), end)
            if not ready:
                raise self._late(min(set(range(len(self._sockets))) - set(answers)))
            for rank in ready:
                message = self._read(rank)
                if message is None:
                    continue
                if message.get("event") == "failed":
                    return [message]
                if message.get("event") == "pass":
                    if told is not None:
                        told(message)
                    continue
                answers[rank] = message
        return [answers[rank] for rank in sorted(answers)]

    def _wait(self, ranks: set[int], deadline: float) -> list[int]:
        buffered = [rank for rank in ranks if b"\n" in self._buffers[rank]]
        if buffered:
            return buffered
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self._sockets[rank], selectors.EVENT_READ, rank)
            left = max(0.0, deadline - time.monotonic())
            return [key.data for key, _ in selector.select(left)]

    def _read(self, rank: int) -> dict[str, Any] | None:
        if b"\n" not in self._buffers[rank]:
            try:
                received = self._sockets[rank].recv(1 << 20)
            except OSError:
                received = b""
            if not received:
                raise self._ended(rank)
            self._buffers[rank] += received
        line, newline, rest = self._buffers[rank].partition(b"\n")
        if not newline:
            return None
        self._buffers[rank] = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def _ended(self, rank: int) -> RankFailure:
        try:
            code = self._children[rank].wait(_KILL_WAIT_S)
        except TimeoutError:
            code = None
        return RankFailure("exit", rank, code, self.log(rank))

    def _late(self, rank: int) -> RankFailure:
        """Asks every rank for its stacks, and returns what the late one was doing."""
        for child in self._children:
            if child.pid:
                with contextlib.suppress(OSError):
                    os.kill(child.pid, signal.SIGUSR1)
        time.sleep(_DUMP_WAIT_S)
        return RankFailure("timeout", rank, None, self.log(rank))

    def log(self, rank: int) -> str:
        """Returns the end of what a rank printed."""
        try:
            with self._logs[rank].open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """Kills every rank and whatever it started. Safe to call again.

        A compiler that was killed meanwhile leaves nothing half-written.
        """
        children, self._children = self._children, []
        by_themselves = all(_has_exited(child) for child in children)
        for child in children:
            child.kill()
        strays = sweep(self.marker)
        for child in children:
            child.reap()
        if strays or not by_themselves:
            remove_partial_libraries(self._compiled, self._started_s)
        for ours in self._sockets:
            ours.close()
        self._sockets.clear()


def _has_exited(child: ChildProcess) -> bool:
    """Returns whether a process has ended, and not by a signal."""
    try:
        return child.wait(0.0) >= 0
    except (TimeoutError, OSError):
        return False


def meeting_place() -> dict[str, str]:
    """Returns what `torchrun` would set for ranks of this machine to meet.

    A script that runs again in a trial joins by it, apart from the job that searches.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The agent's store belongs to the job.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def sweep(marker: str) -> list[int]:
    """Kills every process that carries a marker, and returns their ids.

    It finds what left the session of its rank, such as a server that a program
    started as a daemon.
    """
    killed = []
    for process in psutil.process_iter(["pid"]):
        if process.pid == os.getpid():
            continue
        try:
            marked = process.environ().get(MARKER) == marker
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                killed.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return killed
