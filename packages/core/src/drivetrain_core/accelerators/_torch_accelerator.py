"""Any device that torch knows, asked by what its module has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._errors import DeviceError
from drivetrain_core.accelerators.facts import AcceleratorFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
_FLOATS = ("bfloat16", "float16", "float32", "float64")


class TorchAccelerator:
    """The devices of a type, as `Accelerator` says; a vendor's overrides what it knows.

    Args:
        type: The torch device type.

    Example:
        >>> TorchAccelerator("xpu").device_count() >= 0
        True
    """

    def __init__(self, type: str) -> None:
        """Asks nothing yet."""
        self.type = type

    def device_count(self) -> int:
        """Returns how many devices there are; 0 where torch has no module for them."""
        count = self._function("device_count")
        return int(count()) if count and self._ask("is_available") else 0

    def is_initialized(self) -> bool:
        """Whether this process uses one already."""
        return bool(self._ask("is_initialized"))

    def facts(self, index: int = 0) -> AcceleratorFacts:
        """Returns what the module of the device tells."""
        self._require(index)
        properties = self._ask("get_device_properties", index)
        memory_bytes = getattr(properties, "total_memory", None)
        if memory_bytes is None:
            memory_bytes = (self.memory(index) or (0, 0))[1]
        # Of a device from outside of torch a program is traced, and nothing is compiled.
        is_outside = torch._C._get_privateuse1_backend_name() == self.type
        return AcceleratorFacts(
            type=self.type,
            name=str(self._ask("get_device_name", index) or self.type),
            memory_bytes=int(memory_bytes),
            num_processors=int(getattr(properties, "multi_processor_count", 0)),
            dtypes=self._dtypes(),
            streams=self._function("Stream") is not None,
            event_timing=self._function("Event") is not None,
            graphs=self._function("is_current_stream_capturing") is not None,
            pinned_memory=True,
            collectives=self._collectives(),
            compiler="aot_eager" if is_outside else "inductor",
        )

    def version(self) -> str:
        """Returns nothing: a vendor's own knows."""
        return ""

    def driver(self) -> str:
        """Returns nothing: a vendor's own knows."""
        return ""

    def synchronize(self, index: int | None = None) -> None:
        """Waits for a device."""
        self._ask("synchronize", *(() if index is None else (index,)))

    def memory(self, index: int = 0) -> tuple[int, int] | None:
        """Returns free and total bytes of a device."""
        found = self._ask("mem_get_info", index, generic="get_memory_info")
        return None if found is None else (int(found[0]), int(found[1]))

    def peak_memory(self, index: int = 0) -> int | None:
        """Returns the most bytes that torch's allocator had in use."""
        found = self._ask("max_memory_allocated", index)
        return None if found is None else int(found)

    def reset_peak_memory(self, index: int = 0) -> None:
        """Begins a new peak."""
        self._ask("reset_peak_memory_stats", index)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether it is torch's error for that, or a vendor's that says so."""
        said = str(error).lower() if isinstance(error, RuntimeError) else ""
        return isinstance(error, torch.OutOfMemoryError) or any(
            words in said for words in _OUT_OF_MEMORY
        )

    def is_capturing(self) -> bool:
        """Whether the current stream records a graph."""
        return bool(self._ask("is_current_stream_capturing"))

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Whether a device reads the memory of another one directly."""
        return bool(self._ask("can_device_access_peer", index, peer))

    def rng_states(self) -> list[torch.Tensor]:
        """Returns the states of the generators."""
        return [self._ask("get_rng_state", i) for i in range(self.device_count())]

    def set_rng_states(self, states: Sequence[torch.Tensor]) -> None:
        """Sets the generators."""
        for index, state in enumerate(states[: self.device_count()]):
            self._ask("set_rng_state", state, index)

    def register_host_memory(self, address: int, size_bytes: int) -> str:
        """Says that torch has no way to do so."""
        del address, size_bytes
        return f"torch registers no memory for {self.type}"

    def unregister_host_memory(self, address: int) -> None:
        """Does nothing: there was none."""

    def _require(self, index: int) -> None:
        count = self.device_count()
        if not 0 <= index < count:
            message = f"there is no device {self.type}:{index}: torch finds {count}"
            raise DeviceError(message)

    def _dtypes(self) -> tuple[str, ...]:
        no_bf16 = self._ask("is_bf16_supported") is False
        return _FLOATS[1:] if no_bf16 else _FLOATS

    def _collectives(self) -> str | None:
        if not torch.distributed.is_available():
            return None
        known: dict[str, str] = torch.distributed.Backend.default_device_backend_map
        found = known.get(self.type)
        # Torch's stand-in that sends nothing claims devices that no backend serves.
        return None if found == "fake" else found

    def _function(self, name: str) -> Any:
        try:
            return getattr(torch.get_device_module(self.type), name, None)
        except RuntimeError:
            return None

    def _ask(self, name: str, *arguments: Any, generic: str = "") -> Any:
        """Calls a function of the device's module, else the generic one; None without."""
        own = self._function(name)
        if own is not None:
            return own(*arguments)
        ask = getattr(torch.accelerator, generic or name, None)
        current = torch.accelerator.current_accelerator()
        if ask is None or current is None or current.type != self.type:
            return None
        try:
            return ask(*arguments)
        except torch.AcceleratorError:
            raise
        # What torch asserts of the allocators of some vendors.
        except RuntimeError:
            return None
