"""Trainer registry: which process saves which rank of a node, and which have ended."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_checkpoint._peers.connection import Connection

_TAKE_OVER_S = 3.0
_COME_S = 10.0
"""How long a daemon that has taken the place of another waits for a rank to come."""
_CREDENTIALS = struct.Struct("3i")


class TrainerRegistry:
    """The trainers of this node's ranks, by the connections that they talk on.

    Thread-safe: all methods take the lock themselves.

    Attributes:
        ranks_here: The ranks that this node has in the current run; None before the
            first.
        run: The current run of the job; empty before the first.
    """

    def __init__(self) -> None:
        """Knows no trainer yet."""
        self.ranks_here: set[int] | None = None
        self.run = ""
        self._began_at = 0.0
        self._ended: set[int] = set()
        self._trainers: dict[int, Connection] = {}
        self._lock = threading.Condition()

    def begin(self, run: str, ranks: Iterable[int]) -> bool:
        """Takes note of the run of the job; returns whether it is another than before."""
        with self._lock:
            self.ranks_here = set(ranks)
            is_new = run != self.run
            if is_new:
                self.run, self._ended = run, set()
                self._began_at = time.monotonic()
            return is_new

    def register(self, connection: Connection, rank: int, url: str) -> None:
        """Makes a trainer the one that saves a rank.

        Args:
            connection: The trainer's.
            rank: The rank.
            url: Where the job's checkpoints go.

        Raises:
            ValueError: Another process does.
        """
        with self._lock:
            deadline = time.monotonic() + _TAKE_OVER_S
            while (owner := self._trainers.get(rank)) is not None:
                theirs, ours = _pid_of(owner), _pid_of(connection)
                if theirs == ours or not _is_alive(theirs):
                    break
                # A trainer that was killed is noticed soon.
                if not self._lock.wait(max(0.0, deadline - time.monotonic())):
                    message = (
                        f"process {theirs} saves rank {rank} of this job to "
                        f"{url}: two jobs of one name at a time. Give one of "
                        "them another name (job=...)"
                    )
                    raise ValueError(message)
            self._trainers[rank] = connection
            self._ended.discard(rank)

    def saves(self, connection: Connection, rank: int) -> bool:
        """Returns whether a trainer is the one that saves a rank."""
        with self._lock:
            return self._trainers.get(rank) is connection

    def check(self, connection: Connection, rank: int) -> None:
        """Raises if another trainer has become the one that saves a rank.

        Raises:
            ValueError: It has.
        """
        with self._lock:
            owner = self._trainers.get(rank)
        if owner is not None and owner is not connection:
            message = (
                f"another Checkpointer of process {_pid_of(owner)} has taken this job "
                "over; use one for each job"
            )
            raise ValueError(message)

    def unregister(self, connection: Connection) -> list[int]:
        """Takes note that a trainer has gone; returns the ranks that it saved."""
        with self._lock:
            mine = [r for r, owner in self._trainers.items() if owner is connection]
            for rank in mine:
                del self._trainers[rank]
                self._ended.add(rank)
            self._lock.notify_all()
        return mine

    def gone_ranks(self) -> list[int]:
        """Returns the ranks whose trainer is gone, which nobody has taken note of yet."""
        with self._lock:
            return [r for r, owner in self._trainers.items() if owner.is_hung_up()]

    def ended_ranks(self, run: str) -> set[int]:
        """Returns the ranks of this node that publish nothing more in a run.

        Those are the ranks whose trainer is gone, or is that of another run, or has not
        come to this daemon: it may wait for a rank that waits for memory here.
        """
        with self._lock:
            here = self.ranks_here or set()
            if run != self.run:
                return set(here)
            is_late = time.monotonic() - self._began_at > _COME_S
            return here - self._trainers.keys() if is_late else here & self._ended


def _is_alive(pid: int) -> bool:
    if pid < 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _pid_of(connection: Connection) -> int:
    """Returns the process at the other end; -1 if it has just hung up."""
    try:
        options = connection.socket.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
    except OSError:
        return -1
    pid: int = _CREDENTIALS.unpack(options)[0]
    return pid
