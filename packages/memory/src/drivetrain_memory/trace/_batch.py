"""What in a trace depends on the batch, found from two recordings."""

from __future__ import annotations

import numpy as np

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory._limits import require_integer
from drivetrain_memory.trace._format import MOST_BATCH, Operation, Trace

# Of the ratio of the batches: what is routed at random is not quite proportional.
_TOLERANCE = 0.1


def scalable(first: Trace, batch: int, second: Trace, other: int) -> Trace:
    """Returns the first of two recordings, with what depends on the batch marked.

    `Trace.at_batch` gives the trace of any batch then, without recording it.

    Args:
        first: One recording.
        batch: Its batch.
        second: The same program with another batch.
        other: The batch of that.

    Raises:
        MemoryUseError: The batches are the same, none or no whole numbers, the programs do not ask for the
            same blocks in the same order, or a block is neither of one size nor
            proportional to the batch.

    Example:
        >>> from drivetrain_memory.trace import Builder
        >>> def recorded(batch):
        ...     builder = Builder("two blocks")
        ...     weights, activations = builder.allocate(4096), builder.allocate(512 * batch)
        ...     return builder.trace()
        >>> trace = scalable(recorded(2), 2, recorded(3), 3)
        >>> trace.at_batch(10).peak_live_bytes
        9216
    """
    for one in (batch, other):
        require_integer("a batch", one, 0, MOST_BATCH)
    if min(batch, other) < 1 or batch == other:
        message = f"two batches of at least 1 are needed, not {batch} and {other}"
        raise MemoryUseError(message)
    _require_same_program(first, second)
    ratio = other / batch
    sizes = first.events["size"].astype(np.float64)
    others = second.events["size"].astype(np.float64)
    seen = np.divide(others, sizes, out=np.ones_like(sizes), where=sizes > 0)
    # A block that is there with one batch alone is not the program's other size of it.
    seen[(sizes == 0) != (others == 0)] = np.inf
    scales = np.abs(seen - ratio) < np.abs(seen - 1)
    expected = np.where(scales, ratio, 1.0)
    odd = np.flatnonzero(np.abs(seen - expected) > _TOLERANCE * abs(ratio - 1))
    if len(odd):
        at = odd[0]
        message = (
            f"event {at} asks for {first.events['size'][at]} bytes with a batch of "
            f"{batch} and for {second.events['size'][at]} with {other}, which is neither "
            "of one size nor proportional"
        )
        raise MemoryUseError(message)
    events = first.events.copy()
    events["scales"] = scales & (events["operation"] == Operation.ALLOCATE)
    return Trace(name=first.name, events=events, batch=batch)


def _require_same_program(first: Trace, second: Trace) -> None:
    fields = ["operation", "stream", "id"]
    count = min(len(first.events), len(second.events))
    differs = first.events[fields][:count] != second.events[fields][:count]
    at = int(np.argmax(np.append(differs, True)))
    if at < max(len(first.events), len(second.events)):
        message = (
            "the recordings are not of one program: they have "
            f"{len(first.events)} and {len(second.events)} events, and differ from event "
            f"{at} on"
        )
        raise MemoryUseError(message)
