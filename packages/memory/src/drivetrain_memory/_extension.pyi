"""
The allocator, its devices, and models of other allocators.
"""
from __future__ import annotations
import collections.abc
import typing
import typing_extensions
__all__: list[str] = ['Allocator', 'BlockInfo', 'Counters', 'CudaDriver', 'Driver', 'HistoryEntry', 'HostDriver', 'NullDriver', 'OpenedStorage', 'Replayed', 'Shared', 'configure', 'hooks', 'keep_history', 'of_device', 'replay', 'set_tag', 'tag', 'take_once']
class Driver:
    """
    A device; ended with the object.
    """
class NullDriver(Driver):
    """
    Book-keeping alone.
    """
    def __init__(self, total: typing.SupportsInt | typing.SupportsIndex, chunk: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class HostDriver(Driver):
    """
    Memory of this machine.
    """
    def __init__(self, total: typing.SupportsInt | typing.SupportsIndex, chunk: typing.SupportsInt | typing.SupportsIndex, delay_us: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class CudaDriver(Driver):
    """
    A CUDA device.
    """
    @staticmethod
    def count(library: str) -> int:
        """
        How many there are, all of which can map memory.
        """
    def __init__(self, device: typing.SupportsInt | typing.SupportsIndex, peers: bool, library: str) -> None:
        ...
class OpenedStorage:
    """
    Bytes of another process.
    """
    def __init__(self, driver: CudaDriver, pid: typing.SupportsInt | typing.SupportsIndex, chunks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], lease: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], offset: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]:
        ...
class Shared:
    """
    What another process needs to have a block too.
    """
    @property
    def chunks(self) -> list[int]:
        ...
    @property
    def lease(self) -> tuple[int, int]:
        ...
    @property
    def offset(self) -> int:
        ...
class Counters:
    """
    What an allocator has done so far.
    """
    def as_dict(self) -> dict[str, int]:
        """
        Returns the counters by name.
        """
    @property
    def active_bytes(self) -> int:
        ...
    @property
    def allocations(self) -> int:
        ...
    @property
    def asleep_bytes(self) -> int:
        ...
    @property
    def created(self) -> int:
        ...
    @property
    def destroyed(self) -> int:
        ...
    @property
    def frees(self) -> int:
        ...
    @property
    def host_waits(self) -> int:
        ...
    @property
    def live_bytes(self) -> int:
        ...
    @property
    def map_calls(self) -> int:
        ...
    @property
    def mapped(self) -> int:
        ...
    @property
    def misses(self) -> int:
        ...
    @property
    def out_of_memory(self) -> int:
        ...
    @property
    def peak_active_bytes(self) -> int:
        ...
    @property
    def peak_live_bytes(self) -> int:
        ...
    @property
    def peak_reserved_bytes(self) -> int:
        ...
    @property
    def remapped(self) -> int:
        ...
    @property
    def reserved_bytes(self) -> int:
        ...
    @property
    def returned(self) -> int:
        ...
    @property
    def stolen(self) -> int:
        ...
    @property
    def stream_waits(self) -> int:
        ...
    @property
    def unmapped(self) -> int:
        ...
class BlockInfo:
    """
    A block of the address space.
    """
    @property
    def at(self) -> int:
        ...
    @property
    def extent_at(self) -> int:
        ...
    @property
    def graph(self) -> int:
        ...
    @property
    def kind(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def stream(self) -> int:
        ...
class HistoryEntry:
    """
    What happened once.
    """
    @property
    def action(self) -> int:
        ...
    @property
    def at(self) -> int:
        ...
    @property
    def graph(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def stream(self) -> int:
        ...
    @property
    def time_us(self) -> int:
        ...
class Allocator:
    """
    One device. Safe to use from any thread.
    """
    def __init__(self, driver: Driver, capacity: typing.SupportsInt | typing.SupportsIndex, headroom: typing.SupportsFloat | typing.SupportsIndex, mapped: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def allocate(self, size: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex, graph: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
        ...
    def blocks(self) -> list[BlockInfo]:
        ...
    def counters(self) -> Counters:
        ...
    def free(self, at: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def history(self) -> list[HistoryEntry]:
        ...
    def is_asleep(self, tag: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def keep_history(self, most: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def limit(self, capacity: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def record_stream(self, at: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def release_graph(self, graph: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def reset_peaks(self) -> None:
        ...
    def share(self, at: typing.SupportsInt | typing.SupportsIndex) -> Shared:
        ...
    def sleep(self, tag: typing.SupportsInt | typing.SupportsIndex, keeps: bool) -> int:
        ...
    def trim(self) -> None:
        ...
    def wake(self, tag: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class Replayed:
    """
    How an allocator fared with a trace.
    """
    @property
    def calls_by_step(self) -> list[int]:
        ...
    @property
    def driver_calls(self) -> int:
        ...
    @property
    def flushes(self) -> int:
        ...
    @property
    def peak_live_bytes(self) -> int:
        ...
    @property
    def peak_reserved_bytes(self) -> int:
        ...
    @property
    def remapped_bytes(self) -> int:
        ...
    @property
    def segment_events(self) -> list[tuple[int, int]]:
        ...
    @property
    def served(self) -> int:
        ...
    @property
    def stream_waits(self) -> int:
        ...
def configure(capacity: typing.SupportsInt | typing.SupportsIndex, headroom: typing.SupportsFloat | typing.SupportsIndex, peers: bool, library: str) -> None:
    """
    Says how the hooks make their allocators.
    """
def hooks() -> dict[str, int]:
    """
    Returns the addresses of what PyTorch calls, by name.
    """
def keep_history(most: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Every allocator that the hooks use, or will, keeps so many entries.
    """
def of_device(device: typing.SupportsInt | typing.SupportsIndex) -> Allocator:
    """
    Returns the allocator that the hooks use for a device; None before they did.
    """
def replay(events: typing_extensions.Buffer, model: typing.SupportsInt | typing.SupportsIndex, capacity: typing.SupportsInt | typing.SupportsIndex, chunk: typing.SupportsInt | typing.SupportsIndex, headroom: typing.SupportsFloat | typing.SupportsIndex) -> Replayed:
    """
    Plays a trace to an allocator of its own: 0 for this project's, 1 for PyTorch's, 2 for its expandable segments, 3 for GMLake's.
    """
def set_tag(tag: typing.SupportsInt | typing.SupportsIndex) -> int:
    ...
def tag(name: str, may_be_new: bool) -> int:
    """
    The number of a tag by its name.
    """
def take_once(pid: typing.SupportsInt | typing.SupportsIndex, lease: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    Says that what was sent has come, where the memory is here already.
    """
