"""The protocol of a kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from drivetrain_core.accelerators.facts import AcceleratorFacts


@runtime_checkable
class Accelerator(Protocol):
    """The devices of one type in this process, as far as torch has no generic way to ask.

    An index is that of a device. All methods may be called from any thread; they raise
    what torch raises for a device that is lost. The contract suite is
    `drivetrain_testing.check_accelerator`.
    """

    type: str
    """The torch device type."""

    def device_count(self) -> int:
        """Returns how many devices there are; asking starts none."""

    def is_initialized(self) -> bool:
        """Whether this process uses one already; asking starts none."""

    def facts(self, index: int = 0) -> AcceleratorFacts:
        """Returns what a device is and can do.

        Raises:
            DeviceError: There is no such device.
        """

    def version(self) -> str:
        """Returns the vendor's libraries that results depend on; may be empty."""

    def driver(self) -> str:
        """Returns the version of the driver, without starting a device; may be empty."""

    def synchronize(self, index: int | None = None) -> None:
        """Waits until a device, or the current one, has done all that is queued."""

    def memory(self, index: int = 0) -> tuple[int, int] | None:
        """Returns free and total bytes of a device; None where that is not known."""

    def peak_memory(self, index: int = 0) -> int | None:
        """Returns the most bytes in use since the last reset; None where not known."""

    def reset_peak_memory(self, index: int = 0) -> None:
        """Begins a new peak, where there is one."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error says that a device had no memory left."""

    def is_capturing(self) -> bool:
        """Whether the current stream records a graph in place of running."""

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Whether a device reads the memory of another one directly."""

    def rng_states(self) -> list[torch.Tensor]:
        """Returns the states of the devices' random number generators, by index."""

    def set_rng_states(self, states: Sequence[torch.Tensor]) -> None:
        """Sets the generators of as many devices as there are states for."""

    def register_host_memory(self, address: int, size_bytes: int) -> str:
        """Page-locks memory that is not torch's, so that copies run beside other work.

        Returns:
            Why it is not; nothing if it is.
        """

    def unregister_host_memory(self, address: int) -> None:
        """Gives memory back that was registered, at its first address."""
