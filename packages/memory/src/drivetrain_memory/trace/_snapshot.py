"""Traces from the files that PyTorch's `torch.cuda.memory._dump_snapshot` writes."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_memory._errors import MemoryUseError, TraceError
from drivetrain_memory._limits import MOST_BYTES, require_integer
from drivetrain_memory.trace._format import Builder

if TYPE_CHECKING:
    import os

    from drivetrain_memory.trace._format import Trace

_SEGMENTS = {
    "segment_alloc": 1,
    "segment_map": 1,
    "segment_free": -1,
    "segment_unmap": -1,
}

_MOST_STREAMS = 256
_ODD = (KeyError, TypeError, AttributeError, MemoryUseError)


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings alone: a snapshot runs no code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        message = f"it holds {module}.{name}, and a snapshot holds plain values alone"
        raise pickle.UnpicklingError(message)


def load_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a snapshot file.

    Raises:
        TraceError: It is none, or holds more than plain values.
    """
    try:
        found = _PlainUnpickler(io.BytesIO(Path(path).read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError) as error:
        raise TraceError(path, f"it is no snapshot: {error}") from None
    except (AttributeError, TypeError, MemoryError, OverflowError) as error:
        raise TraceError(path, f"it is damaged: {error}") from None
    if not isinstance(found, dict) or not {"segments", "device_traces"} <= set(found):
        raise TraceError(
            path, "it has no segments and device_traces, as a snapshot has"
        )
    return found


def from_snapshot(path: str | os.PathLike[str], device: int = 0) -> Trace:
    """Returns what a snapshot says that a program asked of PyTorch's allocator.

    What was allocated before the history began is allocated first. A block that other
    streams still used is free when they were done with it.

    Args:
        path: A file of `torch.cuda.memory._dump_snapshot`, recorded with
            `torch.cuda.memory._record_memory_history`.
        device: Whose history.

    Raises:
        TraceError: It is no snapshot, or has no history of that device.
    """
    snapshot = load_snapshot(path)
    history = _history_of(path, snapshot, device)
    try:
        before = _live_before(history, snapshot["segments"], device)
        return _Replayer(Path(path).stem).trace(before, history)
    except _ODD as error:
        raise _odd(path, error) from None


def recorded_segments(
    path: str | os.PathLike[str], device: int = 0
) -> list[tuple[int, int]]:
    """Returns the memory that PyTorch's allocator took of the device, in its order.

    Args:
        path: As `from_snapshot`.
        device: Whose history.

    Returns:
        Bytes and stream of each segment; negative where it was given back. Streams have
        the numbers that they have in the trace.

    Raises:
        TraceError: As `from_snapshot`.
    """
    history = _history_of(path, load_snapshot(path), device)
    streams: dict[int, int] = {}
    found = []
    try:
        for entry in history:
            sign = _SEGMENTS.get(entry["action"], 0)
            if sign:
                number = streams.setdefault(entry["stream"], len(streams))
                found.append((sign * entry["size"], number))
    except _ODD as error:
        raise _odd(path, error) from None
    return found


def _history_of(
    path: str | os.PathLike[str], snapshot: dict[str, Any], device: int
) -> list[dict[str, Any]]:
    traces = snapshot["device_traces"]
    try:
        if not 0 <= device < len(traces) or not traces[device]:
            raise TraceError(path, f"it has no history of device {device}")
        history = [entry for entry in traces[device] if "addr" in entry]
        for entry in history:
            _require_size(entry["size"])
    except _ODD as error:
        raise _odd(path, error) from None
    return history


def _require_size(size: object) -> None:
    require_integer("a size", size, 0, MOST_BYTES)


def _odd(path: str | os.PathLike[str], error: Exception) -> TraceError:
    kind = "" if isinstance(error, MemoryUseError) else f"{type(error).__name__} "
    return TraceError(path, f"it is not as a snapshot is: {kind}{error}")


def _live_before(
    history: list[dict[str, Any]], segments: list[dict[str, Any]], device: int
) -> dict[int, tuple[int, int]]:
    """Returns address, size and stream of what was live when the history began."""
    found: dict[int, tuple[int, int]] = {}
    seen: set[int] = set()
    for entry in history:
        if entry["action"] == "alloc":
            seen.add(entry["addr"])
        elif entry["action"] == "free_requested" and entry["addr"] not in seen:
            found[entry["addr"]] = (entry["size"], entry["stream"])
            seen.add(entry["addr"])
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            _require_size(block["size"])
            address = block.get("address", at)
            at = address + block["size"]
            lives = block["state"] == "active_allocated"
            if segment["device"] == device and lives and address not in seen:
                size = block.get("requested_size", block["size"])
                _require_size(size)
                found[address] = (size, segment["stream"])
    return found


class _Replayer:
    """Writes the events of a history."""

    def __init__(self, name: str) -> None:
        """Begins with no event."""
        self._builder = Builder(name)
        self._live: dict[int, int] = {}
        self._streams: dict[int, int] = {}

    def trace(
        self, before: dict[int, tuple[int, int]], history: list[dict[str, Any]]
    ) -> Trace:
        """Returns what was live before, and all that the history holds."""
        for address, (size, stream) in before.items():
            self._allocate(address, size, stream)
        self._builder.step()
        for entry in history:
            if entry["action"] == "alloc":
                self._allocate(entry["addr"], entry["size"], entry["stream"])
            elif entry["action"] == "free_completed":
                name = self._live.pop(entry["addr"], None)
                if name is not None:
                    self._builder.free(name)
        return self._builder.trace()

    def _allocate(self, address: int, size: int, stream: int) -> None:
        number = self._streams.setdefault(stream, len(self._streams))
        self._live[address] = self._builder.allocate(size, number % _MOST_STREAMS)
