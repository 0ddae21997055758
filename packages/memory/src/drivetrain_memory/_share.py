"""Tensors of this allocator in the queues and pipes of `torch.multiprocessing`."""

from __future__ import annotations

import functools
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._native import cuda_driver, extension, of_device

_driver = functools.cache(cuda_driver)


def share_tensors(library: str) -> None:
    """Lets other processes have this one's tensors, as PyTorch does with its own.

    Args:
        library: The CUDA driver's library, for who takes them.
    """
    import torch
    from torch.multiprocessing import reductions

    def share_storage(storage: Any) -> tuple[Any, ...]:
        device, size = storage.device.index, storage.nbytes()
        if size == 0:
            return device, None, 0, 0, None, 0, None, False
        # Queues send from a thread of their own, which has other current streams.
        torch.cuda.synchronize(device)
        if (found := of_device(device)) is None:
            message = "memory of another process is not shared again: clone() it"
            raise MemoryUseError(message)
        shared = found.share(storage.data_ptr())
        place = library, os.getpid(), shared.lease, tuple(shared.chunks)
        return device, place, size, shared.offset, place[1:3], 0, None, False

    def reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
        function, arguments = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        if not tensor.is_cuda:
            return function, arguments
        return _rebuild, (function, arguments)

    torch.UntypedStorage._share_cuda_ = share_storage  # type: ignore[method-assign]
    kinds: Any = (torch.Tensor, torch.nn.Parameter, *torch._tensor_classes)
    for kind in kinds:
        ForkingPickler.register(kind, reduced)


def _rebuild(function: Any, arguments: tuple[Any, ...]) -> Any:
    _take_tensors()
    return function(*arguments)


@functools.cache
def _take_tensors() -> None:
    """Lets PyTorch open what `share_tensors` describes, in a process of any allocator."""
    import torch

    storages: Any = torch.UntypedStorage
    open_own, end_own = storages._new_shared_cuda, storages._release_ipc_counter_cuda

    def open_storage(
        device: int, place: Any, size: int, offset: int, *rest: Any
    ) -> Any:
        if not isinstance(place, tuple):
            return open_own(device, place, size, offset, *rest)
        library, pid, lease, chunks = place
        driver = _driver(device, library=library)
        opened = extension().OpenedStorage(driver, pid, chunks, lease, offset, size)
        on = torch.device("cuda", device)
        storage = torch.as_tensor(opened, device=on).untyped_storage()
        if storage.data_ptr() != opened.__cuda_array_interface__["data"][0]:
            # PyTorch would have made a copy.
            message = f"cuda:{device} is another GPU here: see CUDA_VISIBLE_DEVICES"
            raise MemoryUseError(message)
        return storage

    def end_message(counter: Any, *rest: Any, **options: Any) -> None:
        # The storage is here already, by a message before.
        if isinstance(counter, tuple):
            extension().take_once(*counter)
        else:
            end_own(counter, *rest, **options)

    storages._new_shared_cuda = staticmethod(open_storage)
    storages._release_ipc_counter_cuda = staticmethod(end_message)
