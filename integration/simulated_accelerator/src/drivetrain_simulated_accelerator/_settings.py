"""Settings of the device, and their text form in the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from drivetrain_simulated_accelerator._errors import SimulatedAcceleratorSettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEVICES = 16
_MIN_MEMORY_BYTES = 1 << 20
_DELAYS = (
    "op_delay_us",
    "copy_delay_us",
    "collective_delay_us",
    "collective_us_per_mib",
)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_FLAGS = {
    **dict.fromkeys(("yes", "on", "true", "1"), True),
    **dict.fromkeys(("no", "off", "false", "0"), False),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the simulated devices of a process have, and how long they take.

    Args:
        devices: How many there are, 1 to 16.
        memory_bytes: The memory of each, 1 MiB or more.
        bf16: Whether they compute in bfloat16.
        streams: Whether there are streams beside the default one.
        event_timing: Whether events can tell the time.
        pinned_memory: Whether host memory can be pinned.
        graphs: Whether work can be captured and replayed.
        readable: Whether the host may read device memory, to debug.
        poison: Whether memory that nothing has written yet is filled with NaN.
        op_delay_us: How long each op takes in addition, in microseconds.
        copy_delay_us: Likewise for a copy between host and device, or two devices.
        collective_delay_us: Likewise for a collective.
        collective_us_per_mib: Likewise for each MiB of its tensors, in microseconds.

    Raises:
        SimulatedAcceleratorSettingsError: A value is out of its range.

    Example:
        >>> Settings.from_text("devices=4,memory=256MiB,bf16=no").memory_bytes
        268435456
        >>> Settings.from_text("1") == Settings()
        True
    """

    devices: int = 2
    memory_bytes: int = 1 << 30
    bf16: bool = True
    streams: bool = True
    event_timing: bool = True
    pinned_memory: bool = True
    graphs: bool = True
    readable: bool = False
    poison: bool = True
    op_delay_us: int = 0
    copy_delay_us: int = 0
    collective_delay_us: int = 0
    collective_us_per_mib: int = 0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        _check("devices", self.devices, 1, MAX_DEVICES)
        _check("memory_bytes", self.memory_bytes, _MIN_MEMORY_BYTES, 1 << 42)
        for name in _DELAYS:
            _check(name, getattr(self, name), 0, 3_600_000_000)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the settings that a text names: `devices=4,memory=1GiB,bf16=no`.

        Args:
            text: Parts `key=value` with commas between them. What is not named has its
                default; `1` and the empty text name nothing.

        Raises:
            SimulatedAcceleratorSettingsError: A key is not known or comes twice, or a
                value is not valid.
        """
        values: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            if part == "1":
                continue
            key, equals, value = map(str.strip, part.partition("="))
            if key not in _READERS or not equals:
                known = ", ".join(_READERS)
                message = f"{part!r} is no setting; `key=value` is, of the keys {known}"
                raise SimulatedAcceleratorSettingsError(message)
            name = "memory_bytes" if key == "memory" else key
            if name in values:
                message = f"the setting {key} is given twice in {text!r}"
                raise SimulatedAcceleratorSettingsError(message)
            values[name] = _READERS[key](key, value)
        return cls(**values)

    def to_text(self) -> str:
        """Returns a text that names all settings, for the environment of a child."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            key = "memory" if field.name == "memory_bytes" else field.name
            text = ("no", "yes")[value] if isinstance(value, bool) else str(value)
            parts.append(f"{key}={text}")
        return ",".join(parts)


def _check(name: str, value: object, low: int, high: int) -> None:
    """Raises unless a value is a whole number of a range."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        message = f"{name} is a whole number from {low} to {high}, not {value!r}"
        raise SimulatedAcceleratorSettingsError(message)


def _read_number(key: str, value: str) -> int:
    """Returns a whole number."""
    if not value.isascii() or not value.isdigit():
        message = f"{key} is a whole number, not {value!r}"
        raise SimulatedAcceleratorSettingsError(message)
    return int(value)


def _read_bytes(key: str, value: str) -> int:
    """Returns a number of bytes, which may have a unit."""
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", value)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(filter(None, _UNITS))
        message = f"{key} is a number of bytes or of {units}, not {value!r}"
        raise SimulatedAcceleratorSettingsError(message)
    return int(match[1]) * _UNITS[match[2]]


def _read_flag(key: str, value: str) -> bool:
    """Returns a yes or no."""
    if value.lower() not in _FLAGS:
        message = f"{key} is one of {', '.join(_FLAGS)}, not {value!r}"
        raise SimulatedAcceleratorSettingsError(message)
    return _FLAGS[value.lower()]


_READERS: dict[str, Callable[[str, str], int]] = {
    "devices": _read_number,
    "memory": _read_bytes,
    "bf16": _read_flag,
    "streams": _read_flag,
    "event_timing": _read_flag,
    "pinned_memory": _read_flag,
    "graphs": _read_flag,
    "readable": _read_flag,
    "poison": _read_flag,
    **dict.fromkeys(_DELAYS, _read_number),
}
