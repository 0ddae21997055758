"""Makes this allocator PyTorch's, for a whole program or for a part of one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drivetrain_memory._errors import DeviceError, MemoryUseError
from drivetrain_memory._limits import (
    CHUNK_BYTES,
    MOST_BYTES,
    require_headroom,
    require_integer,
)
from drivetrain_memory._native import (
    CUDA_LIBRARY,
    extension,
    library_path,
    num_cuda_devices,
)
from drivetrain_memory._pluggable import require_pluggable
from drivetrain_memory._share import share_tensors
from drivetrain_memory._torch_functions import replace_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALLOCATE, _FREE = "drivetrain_memory_torch_allocate", "drivetrain_memory_torch_free"
# Setters of PyTorch's pluggable allocator, and what they are given. Without
# `record_stream`, memory that another stream still uses would have a next tenant.
_HOOKS = {
    "set_record_stream_fn": "record_stream",
    "set_reset_fn": "reset",
    "set_memory_fraction_fn": "limit",
    "set_base_alloc_fn": "base",
    "set_begin_allocate_to_pool": "begin_pool",
    "set_end_allocate_to_pool_fn": "end_pool",
    "set_release_pool": "release_pool",
}

_state: dict[str, Any] = {}


def is_enabled() -> bool:
    """Returns whether this allocator is PyTorch's."""
    return "allocator" in _state


def enable(
    *,
    headroom: float | None = None,
    capacity_bytes: int | None = None,
    peers: bool = False,
    cuda_library: str = CUDA_LIBRARY,
) -> None:
    """Makes this allocator PyTorch's for all CUDA devices, until the process ends.

    Call it before anything is put on a GPU. PyTorch's functions that ask the allocator
    (`torch.cuda.memory_allocated`, `memory_stats`, `memory_summary`, the snapshot) are
    answered by this package from then on, and its memory pools have memory from here; the
    trees of CUDA graphs of `torch.compile(mode="reduce-overhead")` are refused.

    Args:
        headroom: By what part more than the live peak is reserved before scattered
            memory is joined instead, at least 0; None for as much as there is, which
            needs the fewest calls to the driver.
        capacity_bytes: The most that is reserved of each device, at least the 2 MiB of a
            chunk; None for all of it.
        peers: Whether GPUs of the same process may read and write each other's memory,
            as copies between them do.
        cuda_library: The CUDA driver's library.

    Raises:
        MemoryUseError: It is enabled already, CUDA is in use already, something is on
            that needs PyTorch's own allocator, or an argument makes no sense.
        DeviceError: This PyTorch has no CUDA, there is no driver, or a device cannot map
            memory.
    """
    import torch

    if is_enabled():
        message = "drivetrain_memory.enable() was called before; once is for good"
        raise MemoryUseError(message)
    require_headroom(headroom)
    if capacity_bytes is not None:
        require_integer("capacity_bytes", capacity_bytes, CHUNK_BYTES, MOST_BYTES)
    require_pluggable()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        message = (
            "CUDA is in use already: call drivetrain_memory.enable() before the first "
            "tensor is put on a GPU"
        )
        raise MemoryUseError(message)
    if torch.backends.cudnn.benchmark:
        message = (
            "torch.backends.cudnn.benchmark asks PyTorch's own allocator for its cache; "
            "turn it off"
        )
        raise MemoryUseError(message)
    if num_cuda_devices(cuda_library) == 0:
        message = "the CUDA driver shows no device"
        raise DeviceError(message)
    extension().configure(
        capacity=capacity_bytes or 0,
        headroom=-1.0 if headroom is None else headroom,
        peers=peers,
        library=cuda_library,
    )
    allocator = _pluggable()
    torch.cuda.memory.change_current_allocator(allocator)
    _state["allocator"] = allocator
    replace_functions()
    share_tensors(cuda_library)


@contextmanager
def pool(device: int | None = None) -> Iterator[Any]:
    """Lets this thread's CUDA allocations come from this allocator, inside the block.

    PyTorch's allocator stays the current one and takes whole segments from here, so that
    its statistics work, and what lies within a segment is not joined. What other threads
    allocate, as `backward` does, is not affected.

    Args:
        device: Which device's allocations; None for the current one.

    Yields:
        The `torch.cuda.MemPool`, which can be used again by `torch.cuda.use_mem_pool`.

    Raises:
        MemoryUseError: `enable` was called: everything comes from here already.
        DeviceError: This PyTorch has no CUDA.
    """
    import torch

    if is_enabled():
        message = "everything comes from this allocator already, by enable()"
        raise MemoryUseError(message)
    require_pluggable()
    mem_pool = torch.cuda.MemPool(_pluggable().allocator())
    with torch.cuda.use_mem_pool(mem_pool, device):
        yield mem_pool


def _pluggable() -> Any:
    """Returns an allocator of PyTorch's with all hooks that it accepts.

    Raises:
        DeviceError: It accepts no `record_stream`.
    """
    import torch

    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(library_path()), _ALLOCATE, _FREE
    )
    inner = allocator.allocator()  # type: ignore[no-untyped-call]
    addresses = extension().hooks()
    for setter, name in _HOOKS.items():
        if hasattr(inner, setter):
            getattr(inner, setter)(addresses[name])
        elif name == "record_stream":
            message = (
                f"PyTorch {torch.__version__} tells its allocators nothing of other "
                "streams, which would corrupt memory"
            )
            raise DeviceError(message)
    return allocator
