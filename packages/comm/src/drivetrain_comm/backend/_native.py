"""The native engine: one thread that moves and reduces, called through ctypes.

The library is built with the package and has no link to Python or torch.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from drivetrain_core import DistributedError
from drivetrain_core.native_library import find_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_comm.algorithms._steps import Step

# Signals are handled between two waits.
_TURN_S = 0.5
_FILE = "drivetrain_comm.so"
_PREFIX = "drivetrain_comm_v1_"


class _Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char * 512),)

    def __str__(self) -> str:
        return bytes(self.data).decode(errors="replace")


class Piece(ctypes.Structure):
    """Some bytes of a vector.

    Attributes:
        data: Their address.
        size: How many.
    """

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_uint64))


class Call(ctypes.Structure):
    """What is asked of the engine; see `Request` in `collective.hpp`."""

    _fields_ = (
        ("group", ctypes.c_uint64),
        ("program", ctypes.c_void_p),
        ("plan", ctypes.c_uint32),
        ("type", ctypes.c_int32),
        ("operation", ctypes.c_int32),
        ("num_channels", ctypes.c_uint32),
        ("segment_bytes", ctypes.c_uint64),
        ("factor", ctypes.c_double),
        ("timeout_s", ctypes.c_double),
        ("pieces", ctypes.POINTER(Piece)),
        ("num_pieces", ctypes.c_uint64),
    )


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Returns the library, or None and the reason."""
    file = find_library("drivetrain_comm", _FILE)
    if file is None:
        return None, "the package was installed without a C++ compiler"
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        return None, f"its library does not load: {error}"
    for name in ("start", "make_program", "submit"):
        getattr(library, f"{_PREFIX}{name}").restype = ctypes.c_void_p
    getattr(library, f"{_PREFIX}ended_at_s").restype = ctypes.c_double
    getattr(library, f"{_PREFIX}add_group").restype = ctypes.c_uint64
    return library, None


def missing_because() -> str | None:
    """Returns why there is no engine, or None if there is."""
    return _load()[1]


def _function(name: str) -> ctypes._NamedFuncPointer:
    library, reason = _load()
    if library is None:
        message = f"drivetrain-comm has no native engine here: {reason}"
        raise DistributedError(message)
    function: ctypes._NamedFuncPointer = getattr(library, f"{_PREFIX}{name}")
    return function


class Program:
    """Steps of one rank, ready for the engine.

    Args:
        steps: What the rank does.
        num_chunks: Into how many chunks the vector is cut.
        num_ranks: The size of the group.

    Raises:
        DistributedError: A step names a rank or a chunk that there is not.
    """

    def __init__(self, steps: Sequence[Step], num_chunks: int, num_ranks: int) -> None:
        """Hands the steps over."""
        flat = (ctypes.c_int32 * (3 * len(steps)))()
        flat[:] = [number for step in steps for number in step]
        error = _Text()
        # These are at hand at the interpreter's end, when modules are not.
        self._owned: ctypes.c_void_p | None = None
        self._free = _function("free_program")
        self.handle: int | None = _function("make_program")(
            flat,
            ctypes.c_uint64(len(steps)),
            num_chunks,
            num_ranks,
            ctypes.byref(error),
        )
        if str(error):
            raise DistributedError(str(error))
        self._owned = ctypes.c_void_p(self.handle)

    def __del__(self) -> None:
        """Lets go of the steps; collectives that use them keep them."""
        if self._owned is not None:
            self._free(self._owned)


class Ticket:
    """A collective that was handed to the engine. Safe to use from any thread."""

    def __init__(self, handle: int) -> None:
        """Takes over what the engine returned."""
        self._handle = ctypes.c_void_p(handle)
        self._wait = _function("wait")
        self._ended_at_s = _function("ended_at_s")
        self._free = _function("free_ticket")

    def wait(self, timeout_s: float) -> str | None:
        """Waits for the end, without the GIL.

        Returns:
            Why it failed, an empty string if it did not, or None if it has not ended.
        """
        error = _Text()
        seconds = ctypes.c_double(timeout_s)
        return (
            str(error)
            if self._wait(self._handle, seconds, ctypes.byref(error))
            else None
        )

    def finish(self) -> None:
        """Waits for the end, and lets signals through meanwhile.

        Raises:
            DistributedError: It failed on some rank.
        """
        error = None
        while error is None:
            error = self.wait(_TURN_S)
        if error:
            raise DistributedError(error)

    def ended_at_s(self) -> float:
        """When it ended, on the clock of `time.monotonic`."""
        return float(self._ended_at_s(self._handle))

    def __del__(self) -> None:
        """Lets go of the ticket; the collective goes on."""
        self._free(self._handle)


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
        self.host = host
        self.local_name = f"drivetrain-comm-{secrets.token_hex(16)}"
        self.process = os.getpid()
        port, error = ctypes.c_uint16(), _Text()
        self._lock = threading.RLock()
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p(
            _function("start")(
                host.encode(),
                self.local_name.encode(),
                ctypes.byref(port),
                ctypes.byref(error),
            )
        )
        if str(error):
            message = f"cannot listen for peers: {error}"
            raise DistributedError(message)
        self.port = port.value

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
        with self._use() as handle:
            number: int = _function("add_group")(
                handle, token, rank, world_size, buffer_bytes
            )
        return number

    def set_address(
        self, group: int, peer: int, host: str, port: int, local_name: str
    ) -> None:
        """Tells where a peer is; a local name if it is on this host."""
        with self._use() as handle:
            _function("set_address")(
                handle,
                ctypes.c_uint64(group),
                peer,
                host.encode(),
                ctypes.c_uint16(port),
                local_name.encode(),
            )

    def submit(self, call: Call) -> Ticket:
        """Hands a collective over; its memory must live until the ticket's end.

        Raises:
            DistributedError: The engine has ended, or memory is exhausted.
        """
        error = _Text()
        with self._use() as handle:
            made = _function("submit")(handle, ctypes.byref(call), ctypes.byref(error))
        if str(error):
            raise DistributedError(str(error))
        return Ticket(made)

    def fail_group(self, group: int, why: str) -> None:
        """Ends all collectives of a group with an error, on all its ranks."""
        with suppress(DistributedError), self._use() as handle:
            _function("fail_group")(handle, ctypes.c_uint64(group), why.encode())

    def remove_group(self, group: int) -> None:
        """Forgets a group and closes its connections; then its memory is free."""
        with suppress(DistributedError), self._use() as handle:
            _function("remove_group")(handle, ctypes.c_uint64(group))

    def stop(self) -> None:
        """Ends the thread; what is called after it does nothing, or raises."""
        with suppress(DistributedError), self._use() as handle:
            self._handle = None
            _function("stop")(handle)

    @contextmanager
    def _use(self) -> Iterator[ctypes.c_void_p]:
        """Keeps the engine while it is used.

        In the child of a fork there is none, and its locks may be held for ever.
        """
        if self.process != os.getpid():
            message = "the engine belongs to the process before a fork"
            raise DistributedError(message)
        with self._lock:
            if self._handle is None:
                message = "the engine has ended, as the interpreter does"
                raise DistributedError(message)
            yield self._handle


_lock = threading.Lock()
_engines: dict[str, Engine] = {}


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
