"""The native allocator, which the extension module has."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from drivetrain_core.native_library import find_library, load_extension
from drivetrain_memory._errors import DeviceError
from drivetrain_memory._limits import MOST_NUMBER, require_integer

if TYPE_CHECKING:
    from pathlib import Path

    from drivetrain_memory import _extension
    from drivetrain_memory._extension import (
        BlockInfo,
        Counters,
        Driver,
        HistoryEntry,
        Shared,
    )

    _missing: str | None
else:
    _extension, _missing = load_extension("drivetrain_memory._extension")

CUDA_LIBRARY = "libcuda.so.1"
"""The CUDA driver's library, as the system's loader finds it."""


def extension() -> Any:
    """Returns the extension module.

    Raises:
        DeviceError: The package was installed without it.
    """
    if _missing is not None:
        message = f"drivetrain-memory has no allocator: {_missing}; install it again"
        raise DeviceError(message)
    return _extension


@functools.cache
def library_path() -> Path:
    """Returns the file of the library that PyTorch loads.

    Raises:
        DeviceError: The package was installed without it.
    """
    file = find_library("drivetrain_memory", "drivetrain_memory.so")
    if file is None:
        message = (
            "drivetrain-memory was installed without its library; install it again"
        )
        raise DeviceError(message)
    return file


def null_driver(total: int, chunk: int) -> Driver:
    """Returns a device of `total` bytes that is book-keeping alone."""
    made: Driver = extension().NullDriver(total, chunk)
    return made


def host_driver(total: int, chunk: int, *, delay_us: int = 0, seed: int = 0) -> Driver:
    """Returns a device of `total` bytes that is memory of this machine."""
    made: Driver = extension().HostDriver(total, chunk, delay_us, seed)
    return made


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
    made: Driver = extension().CudaDriver(device, peers, library)
    return made


def num_cuda_devices(library: str = CUDA_LIBRARY) -> int:
    """Returns how many CUDA devices there are, without a context on any.

    Raises:
        DeviceError: There is no driver, or a device cannot map memory.
    """
    return int(extension().CudaDriver.count(library))


class Inspector:
    """What can be seen of an allocator.

    Args:
        native: The native allocator, which outlives this.
    """

    def __init__(self, native: _extension.Allocator) -> None:
        """Takes the native allocator."""
        self._native = native

    def counters(self) -> Counters:
        """Returns what it has done so far."""
        return self._native.counters()

    def reset_peaks(self) -> None:
        """Lets the peaks begin anew with what there is."""
        self._native.reset_peaks()

    def blocks(self) -> list[BlockInfo]:
        """Returns every block that is not a hole."""
        return self._native.blocks()

    def share(self, at: int) -> Shared:
        """Lets one more process have the block around an address; returns how."""
        return self._native.share(at)

    def sleep(self, tag: int, *, keeps: bool) -> int:
        """Gives the physical memory of a tag back; returns how many bytes."""
        return self._native.sleep(tag, keeps)

    def wake(self, tag: int) -> None:
        """Brings the memory of a tag back, below the same addresses."""
        self._native.wake(tag)

    def is_asleep(self, tag: int) -> bool:
        """Returns whether the memory of a tag sleeps."""
        return self._native.is_asleep(tag)

    def keep_history(self, most: int) -> None:
        """Keeps the last entries of what happens from now on; none for 0."""
        require_integer("a number of entries", most, 0, MOST_NUMBER)
        self._native.keep_history(most)

    def history(self) -> list[HistoryEntry]:
        """Returns what happened last, the oldest first."""
        return self._native.history()


def of_device(device: int) -> Inspector | None:
    """Returns the allocator that PyTorch uses for a device; None before it did."""
    native = extension().of_device(device)
    return None if native is None else Inspector(native)


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
        super().__init__(extension().Allocator(driver, capacity, headroom, mapped))

    def allocate(self, size: int, stream: int = 0, graph: int = 0, tag: int = 0) -> int:
        """Returns the address of `size` bytes for work on a stream."""
        require_integer("a size", size, 0, MOST_NUMBER)
        require_integer("a stream", stream, 0, MOST_NUMBER)
        require_integer("a graph", graph, 0, MOST_NUMBER)
        return self._native.allocate(size, stream, graph, tag)

    def free(self, at: int) -> None:
        """Frees what was allocated at an address."""
        require_integer("an address", at, 0, MOST_NUMBER)
        self._native.free(at)

    def record_stream(self, at: int, stream: int) -> None:
        """Says that another stream uses the memory too."""
        require_integer("an address", at, 0, MOST_NUMBER)
        require_integer("a stream", stream, 0, MOST_NUMBER)
        self._native.record_stream(at, stream)

    def release_graph(self, graph: int) -> None:
        """Makes the memory of a graph everybody's again."""
        self._native.release_graph(graph)

    def trim(self) -> None:
        """Gives back to the device what no block lives on."""
        self._native.trim()

    def limit(self, capacity: int) -> None:
        """Reserves no more than this from now on, nor than was given at first."""
        require_integer("a limit", capacity, 0, MOST_NUMBER)
        self._native.limit(capacity)
