"""PyTorch's memory pools, with memory of this allocator."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drivetrain_memory._errors import MemoryUseError

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemPool:
    """Stands for `torch.cuda.MemPool` when this allocator is PyTorch's.

    What is allocated inside `torch.cuda.use_mem_pool(pool)` has chunks of its own, which
    serve nothing else as long as the pool lives.

    Args:
        allocator: None: a pool with an allocator of its own needs PyTorch's.
        use_on_oom: False: what is free in a pool serves nobody else.
        no_split: False: chunks hold several tensors.

    Raises:
        MemoryUseError: Something else is asked for.
    """

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        """Makes it; it has no memory yet."""
        import torch

        if allocator is not None or use_on_oom or no_split:
            message = (
                "torch.cuda.MemPool with an allocator, use_on_oom or no_split needs "
                "PyTorch's own allocator, and drivetrain_memory.enable() has replaced it; "
                "leave these out, or use drivetrain_memory.pool() instead of enable()"
            )
            raise MemoryUseError(message)
        self._id = torch.cuda.graph_pool_handle()
        self._devices: set[int] = set()
        self._users = 1

    @property
    def allocator(self) -> None:
        """The pool has none of its own."""

    @property
    def id(self) -> tuple[int, int]:
        """As graphs take it: `torch.cuda.graph(..., pool=pool.id)`."""
        return self._id

    def use_count(self) -> int:
        """Returns how many use it: itself, and each `use_mem_pool` that it is in."""
        return self._users

    def snapshot(self, include_traces: bool = True) -> Any:
        """Returns the segments of this pool."""
        import torch

        del include_traces
        return torch.cuda.memory_snapshot(self._id)  # type: ignore[no-untyped-call]

    @contextmanager
    def used_on(self, device: int) -> Iterator[None]:
        """What this thread allocates on a device inside comes from the pool."""
        import torch

        begin = torch._C._cuda_beginAllocateCurrentThreadToPool
        end, release = torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool
        if device not in self._devices:
            # A user that stays until the pool is gone.
            begin(device, self._id)
            end(device, self._id)
            self._devices.add(device)
        begin(device, self._id)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            end(device, self._id)
            release(device, self._id)

    def __del__(self) -> None:
        """Lets its memory serve everybody; tensors that live keep theirs."""
        # At the end of the process nothing of PyTorch's is sure to be there.
        with contextlib.suppress(Exception):
            import torch

            for device in self._devices:
                torch._C._cuda_releasePool(device, self._id)
