"""A process group that hangs where others raise, to see who depends on errors."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import Work

from drivetrain_core.services import TorchProcessGroupFactory

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed.distributed_c10d import Store

_POLL_S = 0.001


class _BlockingWork(Work):
    """Work that ends when it is done or its group is aborted, and never with an error."""

    def __init__(self, inner: Any, aborted: threading.Event) -> None:
        super().__init__()
        self._inner = inner
        self._aborted = aborted
        self._done = threading.Event()
        # Gloo makes some of its operations only while somebody waits for them.
        threading.Thread(target=self._finish, daemon=True).start()

    def _finish(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._inner.wait()
            self._done.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout  # there is none
        while not self._done.wait(_POLL_S):
            if self._aborted.is_set():
                message = "the group was aborted"
                raise RuntimeError(message)
        return True


class _BlockingGroup(ProcessGroup):
    def __init__(self, inner: ProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._inner = inner
        self._aborted = threading.Event()

    def _run(self, name: str, *arguments: Any) -> _BlockingWork:
        try:
            inner = getattr(self._inner, name)(*arguments)
        except RuntimeError:
            # It would have been put into a queue, and never have come to an end.
            self._aborted.wait()
            raise
        return _BlockingWork(inner, self._aborted)

    def allreduce(self, *arguments: Any) -> Any:
        return self._run("allreduce", *arguments)

    def allgather(self, *arguments: Any) -> Any:
        return self._run("allgather", *arguments)

    def send(self, *arguments: Any) -> Any:
        return self._run("send", *arguments)

    def recv(self, *arguments: Any) -> Any:
        return self._run("recv", *arguments)

    def getBackendName(self) -> str:  # noqa: N802
        return "blocking"

    def abort(self) -> None:
        self._aborted.set()


class BlockingGroupFactory:
    """Makes groups of Gloo in which whoever waits for the dead waits for ever.

    So do groups of NCCL. Their operations end when they are done, or when the group is
    aborted; no end of a connection ends them. A `drivetrain_core.services`
    `ProcessGroupFactory`, for tests.

    Example:
        >>> from datetime import timedelta
        >>> import torch
        >>> import torch.distributed as dist
        >>> make = BlockingGroupFactory()
        >>> group = make(dist.HashStore(), 0, 1, timedelta(seconds=30))
        >>> group.allreduce([torch.ones(2)]).wait()
        True
    """

    def __init__(self) -> None:
        self._make = TorchProcessGroupFactory("gloo")

    def __call__(
        self, store: Store, rank: int, world_size: int, timeout: timedelta
    ) -> ProcessGroup:
        """Returns a group of `world_size` ranks."""
        inner = self._make(store, rank, world_size, timeout)
        return _BlockingGroup(inner, rank, world_size)
