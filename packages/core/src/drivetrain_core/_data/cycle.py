"""Repeats a loader without end, and says clearly when there is nothing to repeat."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from drivetrain_core._data.batch import tensors_of
from drivetrain_core._errors import DataExhaustedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GUARD_BATCHES = 14
_MIN_GUARD_BATCHES = 3
_GUARD_BYTES, _GUARD_S = 256 << 20, 5.0


def cycle(data: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches of `data`, from the start again when they end.

    Raises:
        DataExhaustedError: `data` is empty, or an iterator that can be read once.

    Example:
        >>> from itertools import islice
        >>> list(islice(cycle([1, 2]), 5))
        [1, 2, 1, 2, 1]
    """
    for epoch in itertools.count():
        empty = True
        for batch in data:
            empty = False
            yield batch
        if empty:
            raise DataExhaustedError(_message(data, epoch))


def guard_batches(data: Iterable[Any], most: int = _GUARD_BATCHES) -> list[Any]:
    """Returns the batches that trials are held to: 14, or fewer if large or slow to get.

    Args:
        data: Yields them.
        most: How many to get at most; it is read no further.

    Raises:
        DataExhaustedError: There is none.
    """
    found: list[Any] = []
    size, begin = 0, time.monotonic()
    for batch in data:
        found.append(batch)
        size += sum(t.numel() * t.element_size() for t in tensors_of(batch))
        costs = size > _GUARD_BYTES or time.monotonic() - begin > _GUARD_S
        enough = costs and len(found) >= _MIN_GUARD_BATCHES
        if enough or len(found) == most:
            break
    if not found:
        raise DataExhaustedError(_message(data, 0))
    return found


def _message(data: Iterable[Any], epoch: int) -> str:
    kind = getattr(data, "kind", type(data).__name__)
    if epoch == 0:
        return (
            f"the data ({kind}) yields no batch; if it was read before, pass an "
            "iterable that starts again, such as a DataLoader or a list"
        )
    return (
        f"the data ({kind}) can be read only once and ended after its first pass; "
        "pass an iterable that starts again, such as a DataLoader or a list"
    )
