"""Stager for DCP's asynchronous saves, which copies to memory that is used again."""

from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._arguments import amount
from drivetrain_checkpoint._devices import can_overlap
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._save.device_copy import DeviceLink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

_ALIGN_BYTES = 64


class Stager(AsyncStager):
    """Stages for `torch.distributed.checkpoint.async_save`, with two generations.

    When `async_save` returns, the state may be changed. A save that follows before an
    earlier one has ended is copied to the other generation, and a third one waits: what
    is still being read is never written over. The memory is shared memory, and is made
    with the first two saves; the copies after them touch no new pages.

    Not thread-safe: one thread stages, and any may read what was staged.

    Args:
        timeout_s: How long to wait for a generation that an earlier save still needs.

    Example:
        >>> stager = Stager()
        >>> state = {"weight": torch.ones(2), "seen": [3]}
        >>> staged = stager.stage(state)
        >>> state["weight"].zero_(), state["seen"].append(4)
        (tensor([0., 0.]), None)
        >>> staged
        {'weight': tensor([1., 1.]), 'seen': [3]}
        >>> stager.close()
    """

    _synchronize_after_execute = False

    def __init__(self, *, timeout_s: float = 600.0) -> None:
        self._timeout_s = amount("timeout_s", timeout_s)
        self._generations = [_Generation(), _Generation()]

    def stage(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a copy of a state, on the CPU; it is valid as long as it is held.

        Raises:
            StorageError: The two saves before this one have not ended in time.
            TypeError: The state holds a tensor that is not dense.
            MemoryError: The machine has no memory for a copy.
        """
        leaves, tree = tree_flatten(dict(state_dict))
        sources = [_local(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        places, size_bytes = _places(sources)
        generation = self._free()
        view = generation.hand_out(size_bytes)
        for source in sources:
            if can_overlap(source.device):
                generation.register(source.device.type)
        devices = set()
        copies = []
        for source, at in zip(sources, places, strict=True):
            num_bytes = source.numel() * source.itemsize
            if num_bytes:
                raw = torch.frombuffer(view[at : at + num_bytes], dtype=torch.uint8)
                target = raw.view(source.dtype).view(source.shape)
            else:
                target = torch.empty(source.shape, dtype=source.dtype)
            target.copy_(source, non_blocking=True)
            devices.add(source.device)
            copies.append(target)
        for device in devices:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        left = iter(copies)
        staged: dict[str, Any] = tree_unflatten([_copy(x, left) for x in leaves], tree)
        return staged

    def close(self) -> None:
        """Gives the memory back, as soon as nobody reads it any more."""
        self._generations = [_Generation(), _Generation()]

    def _free(self) -> _Generation:
        """Returns the generation that is not in use, waiting for it if it must."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = 0.001
        while True:
            for generation in self._generations:
                if not generation.is_used:
                    # The other one is taken first the next time.
                    self._generations.sort(key=lambda one: one is generation)
                    return generation
            if time.monotonic() > deadline:
                message = (
                    "two earlier saves are still being written after "
                    f"{self._timeout_s:g} s, or what was staged for them is held on to"
                )
                raise StorageError(message)
            gc.collect()  # a save that failed leaves cycles, which hold on to it
            time.sleep(pause_s)
            pause_s = min(0.05, 2 * pause_s)


class _Generation:
    """Memory for one copy of a state."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._lease: weakref.ref[Any] | None = None
        self._link: DeviceLink | None = None

    @property
    def is_used(self) -> bool:
        """Whether a tensor still lies in the memory that was handed out."""
        return self._lease is not None and self._lease() is not None

    def hand_out(self, size_bytes: int) -> memoryview:
        """Returns as much memory; it is in use until the last view of it has gone."""
        if self._memory is None or len(self._memory) < size_bytes:
            self._link = None  # what is registered is given back before it is unmapped
            self._memory = mmap.mmap(-1, max(mmap.PAGESIZE, size_bytes))
            _native.populate(self._memory)
        # An array of ctypes, since neither a mapping nor a view of it says who holds it.
        lease = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        self._lease = weakref.ref(lease)
        return memoryview(lease).cast("B")

    def register(self, device_type: str) -> None:
        """Lets devices copy to the memory at full speed."""
        if self._link is None and self._memory is not None:
            memory = self._memory
            address = _native.address_of(memory)
            self._link = DeviceLink(device_type, address, len(memory), memory)


def _local(tensor: Tensor) -> Tensor:
    """Returns a tensor as this rank holds it."""
    local = tensor.detach()
    local = local.to_local() if isinstance(local, DTensor) else local
    if local.layout is not torch.strided or type(tensor).__name__ == "ShardedTensor":
        message = f"a {type(tensor).__name__} of {local.layout} cannot be staged"
        raise TypeError(message)
    return local


def _copy(leaf: Any, copies: Iterator[Tensor]) -> Any:
    """Returns the next copy in place of a tensor, and a copy of anything else."""
    if isinstance(leaf, DTensor):
        return DTensor.from_local(
            next(copies),
            leaf.device_mesh,
            leaf.placements,
            run_check=False,
            shape=leaf.shape,
            stride=leaf.stride(),
        )
    return next(copies) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def _places(tensors: list[Tensor]) -> tuple[list[int], int]:
    """Returns where tensors go, and how much memory they need."""
    places, at = [], 0
    for tensor in tensors:
        places.append(at)
        at += -(-tensor.numel() * tensor.itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
    return places, at
