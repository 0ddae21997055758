"""The module `torch.sim`: what torch and programs ask of a device, in torch's names."""

from __future__ import annotations

from typing import Any

from drivetrain_simulated_accelerator import _native
from drivetrain_simulated_accelerator._devices import (
    _is_in_bad_fork,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from drivetrain_simulated_accelerator._graphs import (
    Graph,
    graph,
    is_current_stream_capturing,
)
from drivetrain_simulated_accelerator._memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from drivetrain_simulated_accelerator._random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from drivetrain_simulated_accelerator._streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "Event",
    "Graph",
    "Stream",
    "StreamContext",
    "_is_in_bad_fork",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    # Activation checkpointing restores random states only where `_initialized` is true.
    if name == "_initialized":
        return _native.is_initialized()
    if name == "default_generators":
        count = _native.device_count()
        return tuple(_native.default_generator(index) for index in range(count))
    message = f"module 'torch.sim' has no attribute {name!r}"
    raise AttributeError(message)
