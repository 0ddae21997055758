"""Memory statistics of `torch.sim`, from `torch.accelerator`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_simulated_accelerator._devices import DeviceLike, index_of

if TYPE_CHECKING:
    from collections import OrderedDict


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """Returns all statistics of a device; none before it is used."""
    return torch.accelerator.memory_stats(index_of(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that tensors have."""
    return int(torch.accelerator.memory_allocated(index_of(device)))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the most bytes that tensors have had."""
    return int(torch.accelerator.max_memory_allocated(index_of(device)))


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes that the allocator has, for tensors and for later ones."""
    return int(torch.accelerator.memory_reserved(index_of(device)))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the most bytes that the allocator has had."""
    return int(torch.accelerator.max_memory_reserved(index_of(device)))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Makes the peaks what they are now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Makes the sums zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Gives back the memory that no tensor has."""
    torch.accelerator.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the free and the total bytes of a device."""
    free, total = torch.accelerator.get_memory_info(index_of(device))
    return free, total
