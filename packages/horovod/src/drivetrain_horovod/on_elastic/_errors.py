"""What ends a stretch of an elastic training, and what follows from it.

    DrivetrainError
    └── DistributedError
        ├── HorovodInternalError     a rank is lost: back to what was committed
        └── NotInitializedError      `init` was not called

`HostsUpdatedInterrupt` is no error: ranks come or go, and nothing is lost.
"""

from __future__ import annotations

from drivetrain_core import DistributedError


class HorovodInternalError(DistributedError, RuntimeError):
    """A collective operation was broken off: a rank is lost, as a rule."""


class NotInitializedError(DistributedError, ValueError):
    """A function was called before `init` or after `shutdown`."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """Ranks are to come or to go; all ranks get it after the same commit.

    Args:
        skip_sync: Whether all that stay have the same state, since nobody comes.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("ranks come or go")
        self.skip_sync = skip_sync
