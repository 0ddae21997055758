"""One trace under several allocators, as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core.tables import aligned
from drivetrain_memory._limits import CHUNK_BYTES, MOST_BYTES, require_capacity
from drivetrain_memory._replay import (
    MODELS,
    ample_bytes,
    largest_batch,
    replay,
    smallest_capacity,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_memory.trace._format import Trace

_GIB = 2**30
_TIGHT = 1.05
_DEVICE_BYTES = 80 * _GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How one allocator fares with one trace.

    Args:
        trace: Whose.
        allocator: One of `MODELS`.
        smallest: The smallest device on which it finishes, over the live peak.
        utilisation: The live peak over what is reserved at the peak, where there is four
            times the memory, or 64 MiB more if that is more; ours with a headroom of 2%.
        finishes: Whether it finishes on 1.05 times the live peak.
        remapped_bytes: Memory that moved there, or was given back and taken again.
        flushes: Times that all that was cached went back there.
        stream_waits: Times that a stream waited for another there.
        batch: The largest batch on the device that was given; None where the trace does
            not say what depends on its batch.
    """

    trace: str
    allocator: str
    smallest: float
    utilisation: float
    finishes: bool
    remapped_bytes: int
    flushes: int
    stream_waits: int
    batch: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return asdict(self)


def compare(
    trace: Trace,
    allocators: str | Iterable[str] = MODELS,
    *,
    device_bytes: int = _DEVICE_BYTES,
) -> list[Comparison]:
    """Plays a trace to allocators.

    Args:
        trace: What was asked for.
        allocators: One or some of `MODELS`.
        device_bytes: The device on which the largest batch is looked for.

    Raises:
        MemoryUseError: As `replay` and `smallest_capacity`.

    Example:
        >>> from drivetrain_memory.trace import pattern
        >>> ours, stock = compare(pattern("checkerboard-6"), ["ours", "native"])
        >>> ours.smallest < 1.01 < stock.smallest
        True
    """
    require_capacity(device_bytes)
    live, most = trace.peak_live_bytes, ample_bytes(trace)
    least = min(max(int(_TIGHT * live), CHUNK_BYTES), MOST_BYTES)
    names = [allocators] if isinstance(allocators, str) else allocators
    found = []
    for name in names:
        headroom = 0.02 if name == "ours" else None
        ample = replay(trace, name, capacity_bytes=most, headroom=headroom)
        tight = replay(trace, name, capacity_bytes=least)
        found.append(
            Comparison(
                trace=trace.name,
                allocator=name,
                smallest=smallest_capacity(trace, name) / live,
                utilisation=ample.peak_live_bytes / max(ample.peak_reserved_bytes, 1),
                finishes=tight.finished,
                remapped_bytes=tight.remapped_bytes,
                flushes=tight.flushes,
                stream_waits=tight.stream_waits,
                batch=largest_batch(trace, name, capacity_bytes=device_bytes)
                if trace.scales_with_batch
                else None,
            )
        )
    return found


def table(rows: Sequence[Comparison]) -> str:
    """Returns comparisons as text for people.

    Those of other allocators come from models of them, and say so.
    """
    head = (
        "TRACE",
        "ALLOCATOR",
        "SMALLEST",
        "BATCH",
        "USED",
        "AT 1.05x",
        "MOVED",
        "FLUSHES",
        "WAITS",
    )
    cells = [head]
    for row in rows:
        name = row.allocator if row.allocator == "ours" else f"{row.allocator} (model)"
        cells.append(
            (
                row.trace,
                name,
                f"{row.smallest:.3f}x",
                "-" if row.batch is None else str(row.batch),
                f"{100 * row.utilisation:.1f}%",
                "finishes" if row.finishes else "fails",
                f"{row.remapped_bytes / _GIB:.2f} GiB",
                str(row.flushes),
                str(row.stream_waits),
            )
        )
    return "\n".join(aligned(cells))
