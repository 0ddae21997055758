"""Whether a model of PyTorch's allocator does what a real one was seen to do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from drivetrain_memory._errors import TraceError
from drivetrain_memory._limits import MOST_BYTES
from drivetrain_memory._replay import segment_events
from drivetrain_memory.trace._format import Operation
from drivetrain_memory.trace._snapshot import (
    from_snapshot,
    load_snapshot,
    recorded_segments,
)

if TYPE_CHECKING:
    import os

_Segments = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """A model beside the allocator that it is a model of.

    Args:
        model: One of `MODELS`.
        recorded: How often the real allocator took or gave back memory.
        same: How many of those, from the first on, the model did alike.
        played: How often the model took or gave back memory.
        difference: The first that differs, in words; empty if none does.
    """

    model: str
    recorded: int
    same: int
    played: int
    difference: str = ""

    @property
    def holds(self) -> bool:
        """Whether the model did all that was recorded, and nothing else."""
        return not self.difference


def validate(path: str | os.PathLike[str], device: int = 0) -> Validation:
    """Replays a snapshot, and compares what is taken of the device with what was taken.

    Args:
        path: A file of `torch.cuda.memory._dump_snapshot`, whose history began before the
            first allocation, and without a call of `empty_cache`, which a snapshot does
            not show.
        device: Whose history.

    Raises:
        TraceError: It is no snapshot, or its history begins too late.
    """
    snapshot = load_snapshot(path)
    settings = snapshot.get("allocator_settings") or {}
    if not isinstance(settings, dict):
        because = "it is not as a snapshot is: its allocator_settings are no mapping"
        raise TraceError(path, because)
    model = "native"
    if settings.get("expandable_segments"):
        model = "expandable"
    recorded = recorded_segments(path, device)
    if not recorded:
        raise TraceError(path, "its history has no segment: it began too late")
    trace = from_snapshot(path, device)
    if trace.events["operation"][0] != Operation.STEP:
        raise TraceError(path, "blocks lived before its history began")
    # What failed there exceeded this; what succeeded did not.
    capacity = _peak(recorded)
    if not 0 < capacity <= MOST_BYTES:
        because = f"it is not as a snapshot is: its segments have {capacity} bytes"
        raise TraceError(path, because)
    played = segment_events(trace, model, capacity_bytes=capacity)
    theirs, ours = _in_order(recorded), _in_order(played)
    same = 0
    while same < min(len(theirs), len(ours)) and theirs[same] == ours[same]:
        same += 1
    difference = ""
    if same < max(len(theirs), len(ours)):
        difference = (
            f"number {same + 1}: recorded {_described(theirs, same)}, "
            f"by the model {_described(ours, same)}"
        )
    return Validation(
        model=model,
        recorded=len(recorded),
        same=same,
        played=len(played),
        difference=difference,
    )


def _peak(segments: _Segments) -> int:
    held = most = 0
    for size, _ in segments:
        held += size
        most = max(most, held)
    return most


def _described(segments: _Segments, index: int) -> str:
    if index >= len(segments):
        return "nothing"
    size, stream = segments[index]
    what = "taken" if size > 0 else "given back"
    return f"{abs(size)} bytes {what} on stream {stream}"


def _in_order(segments: _Segments) -> _Segments:
    """Returns segments; those that are given back one after the other, by their size.

    Their order follows from addresses, which are the device's.
    """
    found: _Segments = []
    for _, run in groupby(segments, key=lambda one: one[0] > 0):
        part = list(run)
        found += part if part[0][0] > 0 else sorted(part)
    return found
