"""Streams and events of `torch.sim`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from drivetrain_simulated_accelerator import _native
from drivetrain_simulated_accelerator._devices import DeviceLike, index_of
from drivetrain_simulated_accelerator._load import loaded_settings

if TYPE_CHECKING:
    from types import TracebackType


class Event(torch.Event):
    """A mark in a stream.

    Args:
        enable_timing: Whether it can tell the time to another one.
        blocking: Without effect: a wait never spins.
        interprocess: Not supported.

    Raises:
        RuntimeError: The device has no event timing, and it is asked for.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> Self:
        """Makes an event that is not recorded yet."""
        settings = loaded_settings()
        if enable_timing and settings is not None and not settings.event_timing:
            message = (
                "this simulated device has no events with enable_timing=True: its "
                "setting event_timing is off"
            )
            raise RuntimeError(message)
        if interprocess:
            message = "events of a simulated device are not shared between processes"
            raise NotImplementedError(message)
        return super().__new__(
            cls, device="sim", enable_timing=enable_timing, blocking=blocking
        )

    def record(self, stream: torch.Stream | None = None) -> Self:  # type: ignore[override]
        """Records the event in a stream, the current one by default; returns it."""
        super().record(current_stream() if stream is None else stream)
        return self

    def elapsed_time(self, other: torch.Event) -> float:
        """Returns the milliseconds from this event to a later one."""
        return _native.elapsed_ms(self.event_id, other.event_id)


class Stream(torch.Stream):
    """A stream: a queue of work and the thread that runs it.

    On a device without streams it is the default one.

    Args:
        device: The device; the current one by default.
        priority: Kept, and without effect.
        kwargs: What names a stream that there is: `stream_id`, `device_index` and
            `device_type`.
    """

    def __new__(
        cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any
    ) -> Self:
        """Makes a stream, or takes one that there is."""
        if kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        where = torch.device("sim", index_of(device))
        return super().__new__(cls, device=where, priority=priority)

    @classmethod
    def of(cls, stream: torch.Stream) -> Self:
        """Returns a stream of torch's general kind as one of this kind."""
        return cls(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, a new one by default, and returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event


def current_stream(device: DeviceLike = None) -> Stream:
    """Returns the current stream of a device."""
    return Stream.of(torch.accelerator.current_stream(index_of(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream of a device that is there from the start."""
    index = index_of(device)
    kind = torch.accelerator.current_stream(index).device_type
    return Stream(stream_id=0, device_index=index, device_type=kind)


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one of its device, and that device the current one."""
    torch.accelerator.set_stream(stream)


class StreamContext:
    """Makes a stream the current one for a while; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        """Takes the stream."""
        self.stream = stream
        self._device = -1
        self._before: list[torch.Stream] = []

    def __enter__(self) -> None:
        """Changes the current stream and the current device."""
        if self.stream is None:
            return
        self._device = _native.current_device()
        self._before.append(torch.accelerator.current_stream(self.stream.device))
        torch.accelerator.set_stream(self.stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Changes both back."""
        if self.stream is None:
            return
        torch.accelerator.set_stream(self._before.pop())
        _native.exchange_device(self._device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Makes a stream the current one for a while."""
    return StreamContext(stream)
