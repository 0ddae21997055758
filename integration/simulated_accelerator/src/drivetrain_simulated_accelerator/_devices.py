"""Devices of `torch.sim`: how many, which one, what they are."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

import torch

from drivetrain_simulated_accelerator import _native
from drivetrain_simulated_accelerator._load import loaded_settings

DeviceLike = torch.device | str | int | None

NAME = "simulated accelerator"


class DeviceProperties(NamedTuple):
    """Properties of a device.

    Args:
        name: The name of its kind.
        major: The first number of its capability.
        minor: The second one.
        total_memory: Its memory in bytes.
        multi_processor_count: How many processors it has.
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def index_of(where: DeviceLike) -> int:
    """Returns the index of a device; of the current one where none is named."""
    if where is None:
        return _native.current_device()
    if isinstance(where, int):
        index = where
    else:
        named = torch.device(where)
        if named.type != "sim":
            message = f"expected a device of type sim, not {named}"
            raise ValueError(message)
        # A device without an index has none, whatever its type says.
        index = _native.current_device() if named.index is None else named.index  # type: ignore[redundant-expr]
    _native.check_index(index)
    return index


def is_available() -> bool:
    """Returns whether there is a device."""
    return _native.device_count() > 0


def is_initialized() -> bool:
    """Returns whether a device has been used in this process."""
    return _native.is_initialized()


def init() -> None:
    """Initializes the current device, which its first use does as well."""
    _native.initialize(_native.current_device())


def device_count() -> int:
    """Returns how many devices there are."""
    return _native.device_count()


def current_device() -> int:
    """Returns the index of the current device."""
    return _native.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes a device the current one of this thread."""
    _native.set_device(index_of(device))


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all streams of a device."""
    _native.synchronize(index_of(device))


class device:  # noqa: N801 - torch's name
    """Makes a device the current one for a while; None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        """Takes the device by its index or its name."""
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        """Changes the current device."""
        self.prev_idx = _native.exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Changes it back."""
        _native.exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801 - torch's name
    """Makes the device of a tensor the current one for a while."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Takes the tensor; one of another kind of device changes nothing."""
        super().__init__(tensor.device if tensor.device.type == "sim" else None)


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the name of a device's kind."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the capability of a device, as CUDA numbers it."""
    found = get_device_properties(device)
    return found.major, found.minor


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns the properties of a device."""
    index_of(device)
    settings = loaded_settings()
    memory_bytes = 0 if settings is None else settings.memory_bytes
    return DeviceProperties(NAME, 1, 0, memory_bytes, 1)


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Returns whether a device can read another's memory."""
    return index_of(device) != index_of(peer_device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the devices compute in bfloat16."""
    settings = loaded_settings()
    return settings is None or settings.bf16


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types that autocast may use."""
    bf16 = [torch.bfloat16] if is_bf16_supported() else []
    return [torch.float16, *bf16]


def _is_in_bad_fork() -> bool:
    """Returns whether this process was forked off one that has used a device."""
    return _native.is_in_bad_fork()
