"""Copies from the device and the CPU into shared memory, where a save begins."""

from __future__ import annotations

import logging
import weakref
from array import array
from functools import partial
from typing import TYPE_CHECKING

import torch

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._devices import can_overlap
from drivetrain_core.accelerators import accelerator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from drivetrain_checkpoint._arena import Arena
    from drivetrain_checkpoint._layout.safetensors_layout import Slot
    from drivetrain_checkpoint._save.save_plan import SavePlan
    from drivetrain_core.accelerators import Accelerator

logger = logging.getLogger(__name__)


class DeviceLink:
    """What devices need to copy into memory of the host at full speed, beside their work.

    The memory is registered with their driver once, and given back when this is closed or
    nobody holds it any more; a driver that refuses costs speed, not correctness.

    Args:
        device_type: The type of the devices.
        address: Where the memory begins.
        size_bytes: How long it is.
        owner: What keeps the memory mapped.
    """

    def __init__(
        self, device_type: str, address: int, size_bytes: int, owner: object
    ) -> None:
        """Registers the memory."""
        self._owner = owner
        self._streams: dict[torch.device, torch.Stream] = {}
        accelerator = accelerator_of(device_type)
        refused = accelerator.register_host_memory(address, size_bytes)
        self._release: weakref.finalize[..., DeviceLink] | None = None
        if refused:
            logger.warning(
                "%s bytes of shared memory are not page-locked (%s): copies from the "
                "device are slower and do not overlap",
                f"{size_bytes:,}",
                refused,
            )
            return
        self._release = weakref.finalize(
            self, _unregister, accelerator, self._streams, address
        )
        # A process that ends gives everything back, and the driver may be gone before.
        self._release.atexit = False

    def begin(
        self, copies: Mapping[torch.device, Callable[[], None]]
    ) -> list[torch.Event]:
        """Queues copies behind what their devices do now, and returns when they end.

        Args:
            copies: What copies from each device.
        """
        events = []
        for device, copy in copies.items():
            if device not in self._streams:
                self._streams[device] = torch.Stream(device)
            stream = self._streams[device]
            stream.wait_stream(torch.accelerator.current_stream(device))
            with stream:
                copy()
                event = torch.Event(device)
                event.record(stream)
            events.append(event)
        return events

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
    here: list[tuple[Tensor, Slot]] = []
    there: dict[torch.device, list[tuple[Tensor, Slot]]] = {}
    for block, slot in plan.others:
        is_there = link is not None and can_overlap(block.device)
        pairs = there.setdefault(block.device, []) if is_there else here
        pairs.append((block, slot))

    def copy(pairs: list[tuple[Tensor, Slot]], *, non_blocking: bool) -> None:
        for block, slot in pairs:
            raw = view[slot.start : slot.start + slot.size_bytes]
            target = torch.frombuffer(raw, dtype=torch.uint8)
            target = target.view(block.dtype).view(block.shape)
            target.copy_(block, non_blocking=non_blocking)

    events = []
    if link is not None:
        events = link.begin(
            {
                device: partial(copy, there[device], non_blocking=True)
                for device in there
            }
        )

    def end() -> None:
        targets = array("Q", [image_address + offset for offset in plan.offsets])
        _native.copy(plan.sources, targets, plan.sizes, num_threads)
        copy(here, non_blocking=False)
        for event in events:
            event.synchronize()

    return end


def _unregister(
    accelerator: Accelerator, streams: dict[torch.device, torch.Stream], address: int
) -> None:
    for stream in streams.values():
        stream.synchronize()
    accelerator.unregister_host_memory(address)
