"""Numbers that stand for collectives under way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Pending(NamedTuple):
    """A collective under way.

    Attributes:
        works: What must end.
        finish: Called once after it; returns the result.
    """

    works: Sequence[Any]
    finish: Callable[[], Any]

    def wait(self) -> Any:
        """Returns the result once it is there.

        Raises:
            RuntimeError: The collective failed.
        """
        for work in self.works:
            work.wait()
        return self.finish()


_numbers = itertools.count()
_pending: dict[int, tuple[Pending, str | None]] = {}


def begin(make: Callable[[], Pending], name: str | None) -> int:
    """Returns the handle of a new collective.

    Args:
        make: Begins it.
        name: The user's name for it.

    Raises:
        DistributedError: A collective of that name is still under way.
    """
    if name is not None and any(name == other for _, other in _pending.values()):
        message = (
            f"a collective named {name!r} is still under way: synchronize it first, or "
            "take another name"
        )
        raise DistributedError(message)
    handle = next(_numbers)
    _pending[handle] = make(), name
    return handle


def poll(handle: int) -> bool:
    """Returns whether `synchronize` would return at once.

    Raises:
        DistributedError: The handle is unknown, or was synchronized already.
    """
    return all(work.is_completed() for work in _find(handle).works)


def synchronize(handle: int) -> Any:
    """Returns the result of an asynchronous collective once it is there.

    Args:
        handle: What the collective's function returned. It is used up.

    Raises:
        DistributedError: The handle is unknown, or was synchronized already.
        RuntimeError: The collective failed.
    """
    pending = _find(handle)
    del _pending[handle]
    return pending.wait()


def _find(handle: int) -> Pending:
    if handle not in _pending:
        message = f"no collective has the handle {handle!r}, or it was synchronized"
        raise DistributedError(message)
    return _pending[handle][0]
