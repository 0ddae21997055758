"""Control of the device: delays, faults, and what it has done.

Example:
    with control.delays(op_us=5000):
        ...  # a wait that is missing now shows
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from drivetrain_simulated_accelerator._errors import SimulatedAcceleratorError
from drivetrain_simulated_accelerator._load import is_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = [
    "autocast_ops",
    "counters",
    "delays",
    "is_lost",
    "lose",
    "op_names",
    "ops_with_composites",
    "pinned_reuse_waits",
    "restore",
]


def _native() -> ModuleType:
    """Returns the native library; raises before the device is loaded."""
    if not is_loaded():
        message = "the simulated accelerator is not loaded in this process: call load()"
        raise SimulatedAcceleratorError(message)
    from drivetrain_simulated_accelerator import _native

    return _native


@contextmanager
def delays(
    *,
    op_us: int | None = None,
    copy_us: int | None = None,
    collective_us: int | None = None,
    collective_us_per_mib: int | None = None,
) -> Iterator[None]:
    """Makes the device slower in this process for a while.

    What is queued takes the delay of the time when it runs, so synchronize before the
    end.

    Args:
        op_us: How long each op takes in addition, in microseconds; None changes nothing.
        copy_us: Likewise for a copy between host and device, or two devices.
        collective_us: Likewise for a collective.
        collective_us_per_mib: Likewise for each MiB of its tensors.
    """
    native = _native()
    before = native.get_delays()
    wanted = (op_us, copy_us, collective_us, collective_us_per_mib)
    now = (b if w is None else w for b, w in zip(before, wanted, strict=True))
    native.set_delays(*now)
    try:
        yield
    finally:
        native.set_delays(*before)


def lose(index: int) -> None:
    """Makes a device fail for good: calls raise `torch.AcceleratorError`."""
    native = _native()
    native.check_index(index)
    native.lose(index)


def is_lost(index: int) -> bool:
    """Returns whether a device is lost."""
    native = _native()
    native.check_index(index)
    return bool(native.is_lost(index))


def restore(index: int) -> None:
    """Makes a device work again that is lost, or has an error of an op."""
    native = _native()
    native.check_index(index)
    native.restore(index)


def counters() -> dict[str, int]:
    """Returns what all devices of this process have done so far, by what it is."""
    return dict(_native().counters())


def op_names() -> dict[str, int]:
    """Returns the ops that have run in this process, with their overloads: how often."""
    return dict(_native().op_counts())


def ops_with_composites() -> list[str]:
    """Returns the ops that have a kernel here because a composite one would be taken."""
    return sorted(_native().ops_with_composites())


def autocast_ops() -> list[str]:
    """Returns the ops whose arguments autocast casts on the device."""
    return sorted(_native().autocast_ops())


@contextmanager
def pinned_reuse_waits(waits: bool) -> Iterator[None]:
    """Sets for a while whether freed pinned memory waits for copies that read it.

    A device that does not wait is wrong: a test that a program can notice it.
    """
    native = _native()
    native.set_pinned_reuse_waits(waits)
    try:
        yield
    finally:
        native.set_pinned_reuse_waits(True)
