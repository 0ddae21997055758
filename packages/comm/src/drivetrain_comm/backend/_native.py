"""The native engine of this process: one thread that moves and reduces."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from drivetrain_core import DistributedError
from drivetrain_core.native_library import load_extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_comm.algorithms._steps import Step
    from drivetrain_comm.backend import _extension
    from drivetrain_comm.backend._extension import Program, Ticket

    _missing: str | None
else:
    _extension, _missing = load_extension("drivetrain_comm.backend._extension")


def missing_because() -> str | None:
    """Returns why there is no engine, or None if there is."""
    return _missing


def make_program(steps: Sequence[Step], num_chunks: int, num_ranks: int) -> Program:
    """Returns the steps of one rank, ready for the engine.

    Args:
        steps: What the rank does.
        num_chunks: Into how many chunks the vector is cut.
        num_ranks: The size of the group.

    Raises:
        DistributedError: A step names a rank or a chunk that there is not.
    """
    _require()
    return _extension.Program(steps, num_chunks, num_ranks)


def _require() -> None:
    if _missing is not None:
        message = f"drivetrain-comm has no native engine here: {_missing}"
        raise DistributedError(message)


class Engine:
    """The engine of this process.

    Args:
        host: The numeric address at which peers on other hosts can reach this process.

    Attributes:
        host: That address.
        port: The port there.
        local_name: How peers on this host reach it.

    Raises:
        DistributedError: It cannot listen there.
    """

    def __init__(self, host: str) -> None:
        """Starts the thread."""
        _require()
        self.host = host
        self.local_name = f"drivetrain-comm-{secrets.token_hex(16)}"
        self.process = os.getpid()
        self._lock = threading.RLock()
        try:
            self._engine: _extension.Engine | None = _extension.Engine(
                host, self.local_name
            )
        except DistributedError as error:
            message = f"cannot listen for peers: {error}"
            raise DistributedError(message) from error
        self.port = self._engine.port

    def add_group(
        self, token: bytes, rank: int, world_size: int, buffer_bytes: int
    ) -> int:
        """Returns the number of a new group.

        Args:
            token: 16 bytes that its ranks share and nobody else knows.
            rank: This process's.
            world_size: The number of ranks.
            buffer_bytes: Of each socket; 0 leaves it to the kernel.

        Raises:
            DistributedError: The engine has ended.
        """
        with self._use() as engine:
            return engine.add_group(token, rank, world_size, buffer_bytes)

    def set_address(
        self, group: int, peer: int, host: str, port: int, local_name: str
    ) -> None:
        """Tells where a peer is; a local name if it is on this host."""
        with self._use() as engine:
            engine.set_address(group, peer, host, port, local_name)

    def submit(
        self,
        group: int,
        program: Program,
        plan: int,
        pieces: Sequence[tuple[int, int]],
        *,
        type: int,
        operation: int,
        factor: float,
        num_channels: int,
        segment_bytes: int,
        timeout_s: float,
    ) -> Ticket:
        """Hands a collective over; `Request` in `collective.hpp` says what each means.

        Args:
            group: Its number.
            program: The steps of this rank.
            plan: A digest of the steps of all ranks.
            pieces: Address and size of each part of the vector, which must live until
                the ticket's end.
            type: Of its elements.
            operation: What REDUCE does.
            factor: What a finished sum is multiplied with.
            num_channels: Connections to each peer.
            segment_bytes: How much travels at once.
            timeout_s: After how many seconds the group fails.

        Raises:
            DistributedError: The engine has ended, or memory is exhausted.
        """
        with self._use() as engine:
            request = (group, program, plan, pieces, type, operation, factor)
            return engine.submit(*request, num_channels, segment_bytes, timeout_s)

    def fail_group(self, group: int, why: str) -> None:
        """Ends all collectives of a group with an error, on all its ranks."""
        with suppress(DistributedError), self._use() as engine:
            engine.fail_group(group, why)

    def remove_group(self, group: int) -> None:
        """Forgets a group and closes its connections; then its memory is free."""
        with suppress(DistributedError), self._use() as engine:
            engine.remove_group(group)

    def stop(self) -> None:
        """Ends the thread; what is called after it does nothing, or raises."""
        with suppress(DistributedError), self._use() as engine:
            self._engine = None
            engine.stop()

    @contextmanager
    def _use(self) -> Iterator[_extension.Engine]:
        """Keeps the engine while it is used.

        In the child of a fork there is none, and its locks may be held for ever.
        """
        if self.process != os.getpid():
            message = "the engine belongs to the process before a fork"
            raise DistributedError(message)
        with self._lock:
            if self._engine is None:
                message = "the engine has ended, as the interpreter does"
                raise DistributedError(message)
            yield self._engine


_lock = threading.Lock()
_engines: dict[str, Engine] = {}
after_stop: list[Callable[[], object]] = []
"""What is called at the interpreter's end, once no collective can be under way."""


def engine(host: str) -> Engine:
    """Returns this process's engine that listens at an address; starts it if needed."""
    with _lock:
        found = _engines.get(host)
        # A thread does not survive a fork: the child starts one of its own.
        if found is None or found.process != os.getpid():
            found = _engines[host] = Engine(host)
        return found


@atexit.register
def _stop() -> None:
    with _lock:
        for one in _engines.values():
            if one.process == os.getpid():
                one.stop()
        _engines.clear()
    for call in after_stop:
        call()
