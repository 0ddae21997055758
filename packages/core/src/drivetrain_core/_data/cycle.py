"""Repeats a loader without end, and says clearly when there is nothing to repeat."""

from __future__ import annotations

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
    epoch = 0
    while True:
        empty = True
        for batch in data:
            empty = False
            yield batch
        if empty:
            raise DataExhaustedError(_message(data, epoch))
        epoch += 1


def first_batches(data: Iterable[Any], number: int) -> list[Any]:
    """Returns the first batches, repeated from the start when there are too few.

    Raises:
        DataExhaustedError: There is none.
    """
    found: list[Any] = []
    for batch in data:
        found.append(batch)
        if len(found) == number:
            return found
    if not found:
        raise DataExhaustedError(_message(data, 0))
    return [found[index % len(found)] for index in range(number)]


def guard_batches(data: Iterable[Any]) -> list[Any]:
    """Returns the batches that trials are held to: 14, or fewer if large or slow to get.

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
        if enough or len(found) == _GUARD_BATCHES:
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
