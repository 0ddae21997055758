"""Lets memory sleep: it goes back to the device, and comes again below its addresses."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from drivetrain_memory._enable import is_enabled
from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._native import extension
from drivetrain_memory._stats import used_inspector

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def tag(name: str) -> Iterator[None]:
    """Lets what this thread allocates inside sleep and wake by a name.

    It has chunks of its own: nothing else lies in them. What a `backward` allocates
    comes from another thread and has no tag.

    Args:
        name: Which; the same name may be used again.

    Raises:
        MemoryUseError: `enable` was not called before, or the name is empty, has what
            cannot be printed, or is no text.
    """
    before = extension().set_tag(_number_of(name, may_be_new=True))
    try:
        yield
    finally:
        extension().set_tag(before)


def sleep(
    name: str | None = None, *, keep: bool = True, device: int | None = None
) -> int:
    """Gives the physical memory of a tag back to the device.

    Tensors keep their addresses, so that graphs that were captured with them hold after
    `wake`; until then nobody may use them. They may be freed. The host waits until
    nothing is under way on the device.

    Args:
        name: Which tag; None for what has none.
        keep: Whether tensors have the same contents after `wake`: they are copied to
            page-locked memory of the host meanwhile. Else what they have is undefined.
        device: The number of the device; None for the current one.

    Returns:
        The bytes that the device has back.

    Raises:
        MemoryUseError: It sleeps already, there is no such tag, nothing was allocated on
            the device yet, a graph is being captured, other processes have some of it, or
            `enable` was not called before.
        DeviceError: The host has too little page-locked memory, or the driver refuses;
            where the message says that it sleeps, `wake` brings back all that it had.

    Example:
        >>> import drivetrain_memory
        >>> def serve_beside(train, engine):
        ...     with drivetrain_memory.tag("cache"):
        ...         cache = engine.make_cache()
        ...     drivetrain_memory.sleep("cache", keep=False)
        ...     train()
        ...     drivetrain_memory.wake("cache")
        ...     cache.zero_()
    """
    number = _number(name)
    return used_inspector(device).sleep(number, keeps=keep)


def wake(name: str | None = None, *, device: int | None = None) -> None:
    """Brings the memory of a tag back, below the same addresses.

    Args:
        name: Which tag; None for what has none.
        device: The number of the device; None for the current one.

    Raises:
        MemoryUseError: It does not sleep, there is no such tag, a graph is being
            captured, or `enable` was not called before.
        DeviceMemoryError: There is too little memory; it sleeps on, with all it had.
        DeviceError: The driver refuses; it sleeps on, with all it had.
    """
    number = _number(name)
    used_inspector(device).wake(number)


def is_asleep(name: str | None = None, *, device: int | None = None) -> bool:
    """Returns whether the memory of a tag sleeps.

    Args:
        name: Which tag; None for what has none.
        device: The number of the device; None for the current one.

    Raises:
        MemoryUseError: There is no such tag, nothing was allocated on the device yet, or
            `enable` was not called before.
    """
    number = _number(name)
    return used_inspector(device).is_asleep(number)


def _number(name: str | None) -> int:
    _require_enabled()
    return 0 if name is None else _number_of(name, may_be_new=False)


def _number_of(name: object, *, may_be_new: bool) -> int:
    _require_enabled()
    if not (isinstance(name, str) and name and name.isprintable()):
        message = f"a tag has a name that can be printed, and not {name!r}"
        raise MemoryUseError(message)
    return int(extension().tag(name, may_be_new=may_be_new))


def _require_enabled() -> None:
    if not is_enabled():
        message = "memory sleeps under drivetrain_memory.enable() alone: call it first"
        raise MemoryUseError(message)
