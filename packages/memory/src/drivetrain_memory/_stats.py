"""Figures of an allocator, in this package's words and in PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._native import of_device
from drivetrain_memory._pluggable import require_pluggable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_memory._native import Inspector

_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """What an allocator has, and what it has done since the process began.

    Args:
        live_bytes: What tensors have.
        peak_live_bytes: The most that they had at a time.
        active_bytes: That, and what is freed while other streams or processes still
            use it.
        peak_active_bytes: The most of it at a time.
        asleep_bytes: What tensors have that sleep, which is none of the others.
        reserved_bytes: What is taken of the device.
        peak_reserved_bytes: The most of it at a time.
        allocations: Requests that were served.
        frees: Blocks that came back.
        misses: Requests for which memory had to come or to move.
        out_of_memory: Requests that were refused.
        created: Chunks that were taken of the device.
        destroyed: Chunks that went back.
        mapped: Mappings of a chunk that were made.
        unmapped: Mappings that were undone.
        map_calls: Ranges that were made accessible.
        remapped: Chunks that moved to a place where they had not been.
        returned: Chunks that came back to where they had been, without a driver's call.
        stolen: Chunks that came from another stream's memory.
        stream_waits: Times that a stream was made to wait for another.
        host_waits: Times that the host waited.
    """

    live_bytes: int
    peak_live_bytes: int
    active_bytes: int
    peak_active_bytes: int
    asleep_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    allocations: int
    frees: int
    misses: int
    out_of_memory: int
    created: int
    destroyed: int
    mapped: int
    unmapped: int
    map_calls: int
    remapped: int
    returned: int
    stolen: int
    stream_waits: int
    host_waits: int

    @property
    def utilisation(self) -> float:
        """The peak of what was live over the peak of what was reserved."""
        if self.peak_reserved_bytes == 0:
            return 1.0
        return self.peak_live_bytes / self.peak_reserved_bytes


def inspector(device: int | None = None) -> Inspector | None:
    """Returns the allocator that PyTorch uses for a device; None before it did."""
    if device is None:
        import torch

        require_pluggable()
        device = torch.cuda.current_device()
    return of_device(device)


def used_inspector(device: int | None = None) -> Inspector:
    """Returns the allocator that PyTorch uses for a device.

    Raises:
        DeviceError: No number is given, and this PyTorch has no CUDA.
        MemoryUseError: Nothing was allocated from here on that device.
    """
    found = inspector(device)
    if found is None:
        message = "nothing was allocated from drivetrain-memory on this device yet"
        raise MemoryUseError(message)
    return found


def stats(device: int | None = None) -> Stats:
    """Returns the figures of a device's allocator.

    Args:
        device: Its number; None for the current one.

    Raises:
        DeviceError: No number is given, and this PyTorch has no CUDA.
        MemoryUseError: Nothing was allocated from here on that device.
    """
    return Stats(**used_inspector(device).counters().as_dict())


def torch_stats(
    found: Inspector | None, since: Mapping[str, int] = _NOTHING
) -> dict[str, int]:
    """Returns the figures under the names of `torch.cuda.memory_stats`.

    What is not counted here has no name in it: a zero would be an answer. There is one
    kind of pool, so that PyTorch's small and large one are not told apart.

    Args:
        found: The allocator; None before it was used.
        since: The counters when PyTorch's `reset_accumulated_memory_stats` was called.
    """
    counters = found.counters().as_dict() if found is not None else {}

    def of(name: str) -> int:
        return counters.get(name, 0)

    def new(name: str) -> int:
        return of(name) - since.get(name, 0)

    stats: dict[str, int] = {}
    for metric, name in (
        ("allocated_bytes", "live_bytes"),
        ("requested_bytes", "live_bytes"),
        ("active_bytes", "active_bytes"),
        ("reserved_bytes", "reserved_bytes"),
    ):
        stats[f"{metric}.all.current"] = of(name)
        stats[f"{metric}.all.peak"] = of(f"peak_{name}")
    for metric, came, went in (
        ("allocation", "allocations", "frees"),
        ("segment", "created", "destroyed"),
    ):
        stats[f"{metric}.all.current"] = of(came) - of(went)
        stats[f"{metric}.all.allocated"] = new(came)
        stats[f"{metric}.all.freed"] = new(went)
    return stats | {
        "num_ooms": new("out_of_memory"),
        "num_device_alloc": new("created"),
        "num_device_free": new("destroyed"),
        "max_split_size": -1,
    }
