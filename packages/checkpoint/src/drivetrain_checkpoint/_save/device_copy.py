"""Copies from the device and the CPU into shared memory, where a save begins."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import weakref
from array import array
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._arena import Arena
    from drivetrain_checkpoint._save.save_plan import SavePlan

logger = logging.getLogger(__name__)


class DeviceLink:
    """What a device needs to copy into an arena at full speed, beside its work.

    The arena is registered with CUDA once, and given back when this is closed or nobody
    holds it any more; a driver that refuses costs speed, not correctness.

    Args:
        arena: The arena.
        device: A CUDA device.
    """

    def __init__(self, arena: Arena, device: torch.device) -> None:
        """Registers the arena and makes a stream."""
        self._arena = arena
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        code = _cudart().cudaHostRegister(arena.address, arena.size_bytes, 0)
        self._release: weakref.finalize[..., DeviceLink] | None = None
        if int(code) == 0:
            self._release = weakref.finalize(
                self, _unregister, self._stream, arena.address
            )
            # A process that ends gives everything back, and CUDA may be gone before.
            self._release.atexit = False
        else:
            _forget_error()
            logger.warning(
                "CUDA does not register %s bytes of shared memory (error %s): copies "
                "from the device are slower and do not overlap",
                f"{arena.size_bytes:,}",
                code,
            )

    @property
    def is_registered(self) -> bool:
        """Whether copies run at full speed, beside other work."""
        return self._release is not None and self._release.alive

    def begin(self, copy: Callable[[], None]) -> torch.cuda.Event:
        """Queues copies behind what the device does now, and returns when they end."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            copy()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return event

    def close(self) -> None:
        """Gives the memory back to the system's own care."""
        if self._release is not None:
            self._release()


def begin_copy(
    plan: SavePlan,
    arena: Arena,
    image_address: int,
    num_threads: int,
    link: DeviceLink | None,
) -> Callable[[], None]:
    """Begins to copy a state, and returns what ends it.

    What a device holds is under way when this returns; the copy of CPU tensors is made
    by the call that ends it, on whatever thread that is.

    Args:
        plan: What goes where.
        arena: The memory.
        image_address: Where the image begins in it, in this process.
        num_threads: How many threads copy.
        link: The way from the device; None if all is on the CPU.
    """
    base = image_address - arena.address
    view = arena.view(base, plan.image.size_bytes)
    view[: len(plan.image.header)] = plan.image.header
    here = [(b, s) for b, s in plan.others if b.device.type != "cuda" or link is None]
    there = [(b, s) for b, s in plan.others if b.device.type == "cuda" and link]

    def copy(pairs: object, *, non_blocking: bool) -> None:
        for block, slot in pairs:  # type: ignore[attr-defined]
            raw = view[slot.start : slot.start + slot.size_bytes]
            target = torch.frombuffer(raw, dtype=torch.uint8)
            target = target.view(block.dtype).view(block.shape)
            target.copy_(block, non_blocking=non_blocking)

    event = None
    if there and link is not None:
        event = link.begin(lambda: copy(there, non_blocking=True))

    def end() -> None:
        targets = array("Q", [image_address + offset for offset in plan.offsets])
        _native.copy(plan.sources, targets, plan.sizes, num_threads)
        copy(here, non_blocking=False)
        if event is not None:
            event.synchronize()

    return end


def _unregister(stream: torch.cuda.Stream, address: int) -> None:
    stream.synchronize()
    if int(_cudart().cudaHostUnregister(address)):
        _forget_error()


def _forget_error() -> None:
    """Clears the error of a call, which the next launch of a kernel would raise again."""
    name = f"libcudart.so.{str(torch.version.cuda).split('.', 1)[0]}"
    # One that is linked into torch itself cannot be asked.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(name).cudaGetLastError()


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
