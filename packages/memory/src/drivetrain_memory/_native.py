"""The native allocator, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from drivetrain_core.native_library import find_library
from drivetrain_memory._errors import DeviceError, DeviceMemoryError, MemoryUseError
from drivetrain_memory._limits import MOST_NUMBER, require_integer

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "drivetrain_memory.so"
_PREFIX = "drivetrain_memory_v1_"
_HOOKS = "drivetrain_memory_torch_"
CUDA_LIBRARY = "libcuda.so.1"
"""The CUDA driver's library, as the system's loader finds it."""

_Entry = TypeVar("_Entry", bound=ctypes.Structure)
_FAILURES = {
    1: DeviceError,
    2: DeviceMemoryError,
    3: MemoryUseError,
    4: DeviceError,
}


class _Problem(ctypes.Structure):
    _fields_ = (("failure", ctypes.c_int32), ("text", ctypes.c_char * 2044))

    def check(self) -> None:
        if self.failure:
            raise _FAILURES[self.failure](self.text.decode(errors="replace"))


class Counters(ctypes.Structure):
    """What an allocator has done so far; see `counters.hpp`."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "allocations",
            "frees",
            "misses",
            "out_of_memory",
            "created",
            "destroyed",
            "mapped",
            "unmapped",
            "map_calls",
            "remapped",
            "returned",
            "stolen",
            "stream_waits",
            "host_waits",
            "live_bytes",
            "peak_live_bytes",
            "active_bytes",
            "peak_active_bytes",
            "reserved_bytes",
            "peak_reserved_bytes",
        )
    )

    def as_dict(self) -> dict[str, int]:
        """Returns the counters by name."""
        return {name: int(getattr(self, name)) for name, *_ in self._fields_}


class BlockInfo(ctypes.Structure):
    """A block of the address space; see `library.cpp`."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("at", "size", "stream", "graph", "extent_at", "kind")
    )


class HistoryEntry(ctypes.Structure):
    """What happened once; see `history.hpp`."""

    _fields_ = (
        ("action", ctypes.c_uint32),
        ("graph", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("at", "size", "stream", "time_us")),
    )


@functools.cache
def library_path() -> Path:
    """Returns the file of the library.

    Raises:
        DeviceError: The package was installed without it.
    """
    file = find_library("drivetrain_memory", _FILE)
    if file is None:
        message = (
            "drivetrain-memory was installed without its library; install it again"
        )
        raise DeviceError(message)
    return file


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    for name in ("null_driver", "host_driver", "cuda_driver", "allocator", "of_device"):
        getattr(library, f"{_PREFIX}{name}").restype = ctypes.c_void_p
    for name in ("allocate", "history", "blocks"):
        getattr(library, f"{_PREFIX}{name}").restype = ctypes.c_uint64
    return library


def hook(name: str) -> int:
    """Returns the address of a function that PyTorch calls."""
    function = getattr(_library(), f"{_HOOKS}{name}")
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the library that may fail.

    Raises:
        DeviceError: The device refuses what should work.
        DeviceMemoryError: A request does not fit.
        MemoryUseError: The allocator refuses such a use.
    """
    problem = _Problem()
    answer = getattr(_library(), f"{_PREFIX}{name}")(*arguments, ctypes.byref(problem))
    problem.check()
    return answer


def _plain(name: str, *arguments: Any) -> None:
    getattr(_library(), f"{_PREFIX}{name}")(*arguments)


class Driver:
    """A device; ended with the object."""

    def __init__(self, handle: int) -> None:
        """Takes over a native driver."""
        self.handle = ctypes.c_void_p(handle)
        self._end = getattr(_library(), f"{_PREFIX}end_driver")

    def __del__(self) -> None:
        """Ends it."""
        self._end(self.handle)


def null_driver(total: int, chunk: int) -> Driver:
    """Returns a device of `total` bytes that is book-keeping alone."""
    sizes = ctypes.c_uint64(total), ctypes.c_uint64(chunk)
    return Driver(call("null_driver", *sizes))


def host_driver(total: int, chunk: int, *, delay_us: int = 0, seed: int = 0) -> Driver:
    """Returns a device of `total` bytes that is memory of this machine."""
    sizes = ctypes.c_uint64(total), ctypes.c_uint64(chunk)
    streams = ctypes.c_uint32(delay_us), ctypes.c_uint64(seed)
    return Driver(call("host_driver", *sizes, *streams))


def cuda_driver(
    device: int, *, peers: bool = False, library: str = CUDA_LIBRARY
) -> Driver:
    """Returns a CUDA device.

    Args:
        device: Its number.
        peers: Whether other devices that can reach this one may use its memory.
        library: The driver's library.

    Raises:
        DeviceError: There is no such device, or it cannot map memory.
    """
    return Driver(
        call("cuda_driver", ctypes.c_int32(device), int(peers), library.encode())
    )


def num_cuda_devices(library: str = CUDA_LIBRARY) -> int:
    """Returns how many CUDA devices there are, without a context on any.

    Raises:
        DeviceError: There is no driver, or a device cannot map memory.
    """
    return int(call("cuda_devices", library.encode()))


def configure_hooks(
    *, capacity: int, headroom: float, peers: bool, library: str
) -> None:
    """Says how the functions that PyTorch calls make their allocators.

    Raises:
        MemoryUseError: They did so already.
    """
    call(
        "configure",
        ctypes.c_uint64(capacity),
        ctypes.c_double(headroom),
        int(peers),
        library.encode(),
    )


class Inspector:
    """What can be seen of an allocator.

    Args:
        handle: The native allocator, which outlives this.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        """Takes the native allocator."""
        self._handle = handle

    def counters(self) -> Counters:
        """Returns what it has done so far."""
        counters = Counters()
        _plain("counters", self._handle, ctypes.byref(counters))
        return counters

    def reset_peaks(self) -> None:
        """Lets the peaks begin anew with what there is."""
        _plain("reset_peaks", self._handle)

    def blocks(self) -> list[BlockInfo]:
        """Returns every block that is not a hole."""
        return self._all("blocks", BlockInfo)

    def keep_history(self, most: int) -> None:
        """Keeps the last entries of what happens from now on; none for 0."""
        require_integer("a number of entries", most, 0, MOST_NUMBER)
        call("keep_history", self._handle, ctypes.c_uint64(most))

    def history(self) -> list[HistoryEntry]:
        """Returns what happened last, the oldest first."""
        return self._all("history", HistoryEntry)

    def _all(self, name: str, kind: type[_Entry]) -> list[_Entry]:
        room = 0
        while True:
            found = (kind * room)()
            count = call(name, self._handle, found, ctypes.c_uint64(room))
            if count <= room:
                return list(found[:count])
            # Some more, for what other threads do meanwhile.
            room = count + count // 8 + 16


def of_device(device: int) -> Inspector | None:
    """Returns the allocator that PyTorch uses for a device; None before it did."""
    handle = getattr(_library(), f"{_PREFIX}of_device")(ctypes.c_int32(device))
    return None if handle is None else Inspector(ctypes.c_void_p(handle))


class NativeAllocator(Inspector):
    """An allocator of one device. Safe to use from any thread.

    Args:
        driver: The device.
        capacity: The most that is reserved, in bytes; 0 for all that there is.
        headroom: By what part more than the live peak is reserved before free memory is
            joined instead; negative for as much as there is.
        mapped: The most that may be mapped, counting each address; 0 for what is usual.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        capacity: int = 0,
        headroom: float = 0.02,
        mapped: int = 0,
    ) -> None:
        """Makes it; nothing is reserved yet."""
        self._driver = driver
        self._end: Any = None
        handle = call(
            "allocator",
            driver.handle,
            ctypes.c_uint64(capacity),
            ctypes.c_double(headroom),
            ctypes.c_uint64(mapped),
        )
        super().__init__(ctypes.c_void_p(handle))
        self._end = getattr(_library(), f"{_PREFIX}end_allocator")

    def __del__(self) -> None:
        """Ends it, and all of its memory."""
        if self._end is not None:
            self._end(self._handle)

    def allocate(self, size: int, stream: int = 0, graph: int = 0) -> int:
        """Returns the address of `size` bytes for work on a stream."""
        require_integer("a size", size, 0, MOST_NUMBER)
        require_integer("a stream", stream, 0, MOST_NUMBER)
        require_integer("a graph", graph, 0, MOST_NUMBER)
        numbers = (ctypes.c_uint64(n) for n in (size, stream, graph))
        return int(call("allocate", self._handle, *numbers))

    def free(self, at: int) -> None:
        """Frees what was allocated at an address."""
        require_integer("an address", at, 0, MOST_NUMBER)
        call("free", self._handle, ctypes.c_uint64(at))

    def record_stream(self, at: int, stream: int) -> None:
        """Says that another stream uses the memory too."""
        require_integer("an address", at, 0, MOST_NUMBER)
        require_integer("a stream", stream, 0, MOST_NUMBER)
        numbers = ctypes.c_uint64(at), ctypes.c_uint64(stream)
        call("record_stream", self._handle, *numbers)

    def release_graph(self, graph: int) -> None:
        """Makes the memory of a graph everybody's again."""
        call("release_graph", self._handle, ctypes.c_uint64(graph))

    def trim(self) -> None:
        """Gives back to the device what no block lives on."""
        call("trim", self._handle)

    def limit(self, capacity: int) -> None:
        """Reserves no more than this from now on, nor than was given at first."""
        require_integer("a limit", capacity, 0, MOST_NUMBER)
        call("limit", self._handle, ctypes.c_uint64(capacity))
