"""What stands in the place of CUDA's functions: those of one simulated device.

Its streams are numbers of the trace, all that is waited for is done, and of its memory it
knows what the trace holds: its cache keeps nothing.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import torch

from drivetrain_memory._errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_memory.trace._recorder import Recorder
    from drivetrain_memory.trace._simulated_cuda import Values

DEVICE = torch.device("cuda", 0)
_PROPERTIES = SimpleNamespace(
    name="a simulated device",
    major=9,
    minor=0,
    total_memory=80 * 2**30,
    multi_processor_count=132,
)


def always(answer: Any) -> Callable[..., Any]:
    """Returns a function that has one answer, whatever it is asked."""
    return lambda *_, **__: answer


class Event:
    """An event of a simulated device: all is done when it is asked."""

    record = wait = synchronize = always(None)
    query, elapsed_time = always(True), always(1.0)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Has nothing to do."""


class Stream:
    """A stream of a simulated device, of one recording's."""

    numbers: Iterator[int]
    device = DEVICE
    wait_stream = wait_event = synchronize = always(None)
    query, is_capturing = always(True), always(False)

    def __init__(
        self, device: Any = None, *_: Any, number: int | None = None, **__: Any
    ) -> None:
        """Takes the next number of the recording."""
        require_first(device)
        self.number = next(self.numbers) if number is None else number
        self._entered = ExitStack()

    def __eq__(self, other: object) -> bool:
        """Returns whether another is the same stream."""
        return isinstance(other, Stream) and self.number == other.number

    def __hash__(self) -> int:
        """Returns the same number for the same stream."""
        return self.number

    def record_event(self, event: Event | None = None) -> Event:
        """Returns an event."""
        return event or Event()

    def __enter__(self) -> Self:
        """What is made inside belongs to it."""
        self._entered.enter_context(torch.cuda.stream(self))  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        """What is made from now on belongs to the stream of before."""
        self._entered.close()


class _Guard(ExitStack):
    """Lets a program choose the device that it has."""

    def __init__(self, device: Any) -> None:
        """Changes nothing."""
        super().__init__()
        require_first(device)


def cuda_functions(
    recorder: Recorder, values: Values
) -> list[tuple[Any, dict[str, Any]]]:
    """Returns what stands in the place of the functions of CUDA and of accelerators.

    Args:
        recorder: Of whose streams and memory they speak.
        values: It says in which thread the device is there.
    """
    # PyTorch's own streams come out of a pool of 32, one after the other, and again.
    numbers = itertools.cycle(range(1, 33))
    stream_type = type("Stream", (Stream,), {"numbers": numbers})
    nothing, since = always(None), 0

    def current(*_: Any) -> Any:
        return stream_type(number=recorder.current_stream)

    def set_stream(stream: Any) -> None:
        recorder.current_stream = (stream or current()).number

    def live_bytes() -> list[int]:
        return [0, *recorder.trace().live_bytes().tolist()]

    def reset_peak(*_: Any, **__: Any) -> None:
        nonlocal since
        since = len(live_bytes()) - 1

    def memory_stats(device: Any = None) -> dict[str, int]:
        require_first(device)
        live = live_bytes()
        peak = max(live[since:], default=live[-1])
        return {
            f"{what}_bytes.all.{when}": size
            for what in ("allocated", "reserved")
            for when, size in (("current", live[-1]), ("peak", peak))
        }

    def memory_info(*_: Any) -> tuple[int, int]:
        total = _PROPERTIES.total_memory
        return max(0, total - live_bytes()[-1]), total

    memory = {
        "memory_stats": memory_stats,
        "reset_peak_memory_stats": reset_peak,
        "empty_cache": nothing,
    }
    common = {
        **memory,
        "is_available": always(True),
        "device_count": always(1),
        "current_stream": current,
        "set_stream": set_stream,
        "synchronize": nothing,
    }
    return [
        (
            torch.cuda,
            {
                **common,
                "_lazy_init": values.require_thread,
                "current_device": always(0),
                "get_device_properties": always(_PROPERTIES),
                "mem_get_info": memory_info,
                "memory_summary": always(""),
                "Stream": stream_type,
                "ExternalStream": refused("a library's own stream", "make one inside"),
                "Event": Event,
                "device": _Guard,
                "default_stream": always(stream_type(number=0)),
                "CUDAGraph": refused("a CUDA graph", "run its steps without one"),
                "MemPool": refused("a pool of memory", "allocate outside of it"),
                "get_rng_state": always(torch.zeros(16, dtype=torch.uint8)),
                "set_rng_state": nothing,
                "set_device": require_first,
            },
        ),
        (torch, {"Stream": stream_type, "Event": Event}),
        (torch.cuda.memory, memory),
        (torch.cuda.nvtx, {"range_push": nothing, "range_pop": nothing}),
        (
            torch.accelerator,
            {
                **common,
                "current_accelerator": always(torch.device(DEVICE.type)),
                "current_device_index": always(0),
            },
        ),
        (torch.accelerator.memory, memory),
    ]


def require_first(device: Any) -> None:
    """Refuses any device but the one that is simulated."""
    index = device if isinstance(device, int) else device and torch.device(device).index
    if (index or 0) > 0:
        what = f"the device {device} beside {DEVICE}"
        refused(what, "record what each device does by itself")()
