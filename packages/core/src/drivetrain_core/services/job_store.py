"""Store of a job: keys and values that its processes share before they have ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.distributed import Store  # type: ignore[attr-defined]


@runtime_checkable
class JobStore(Protocol):
    """Reaches the store of the job that this process was started for."""

    def open(self) -> AbstractContextManager[Store | None]:
        """Returns a context that gives the store; safe in any thread.

        Values that are set outlive every process of the job; numbers that are added to
        may be forgotten. The context gives None in a process that no job has started.
        """


class NoJobStore:
    """The fallback: every process is a job of its own.

    Example:
        >>> with NoJobStore().open() as store:
        ...     print(store)
        None
    """

    def open(self) -> AbstractContextManager[None]:
        """Returns a context that gives None."""
        return nullcontext()
