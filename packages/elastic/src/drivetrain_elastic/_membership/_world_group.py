"""Process group of one world, which any thread can abort.

Gloo's `abort` wakes nobody who waits for a rank that is alive and does nothing, as all do
whose neighbour has lost its own: they would sit there until the time-out. What does wake
them is the end of their connections. So the sockets that appear while a group is made are
noted, and shut down when it is aborted, which ends every operation on both sides.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from datetime import timedelta

    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

    from drivetrain_core.services import ProcessGroupFactory


class RankLostError(RuntimeError):
    """A collective has failed: another rank is gone, or the world was aborted."""


@contextlib.contextmanager
def with_others() -> Iterator[None]:
    """Tells errors of a process group from those of what it is used for."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(str(error)) from error


class WorldGroup:
    """The ranks of one world. `abort` may be called from any thread, the rest not.

    Args:
        factory: Makes the process group.
        store: Where its ranks meet, and no others.
        epoch: Of the world.
        rank: This one.
        world_size: The number of ranks.
        timeout: How long the ranks wait for each other.

    Attributes:
        epoch: Of the world.
        group: The process group.
        is_broken: Whether it was aborted.

    Raises:
        RuntimeError: Not all ranks came in time.
    """

    def __init__(
        self,
        factory: ProcessGroupFactory,
        store: Store,
        *,
        epoch: int,
        rank: int,
        world_size: int,
        timeout: timedelta,
    ) -> None:
        self.epoch = epoch
        # What the group holds of a store of Python's goes on only as long as this does.
        self._store = store
        before = _sockets()
        self.group: ProcessGroup = factory(store, rank, world_size, timeout)
        self._sockets = _connected(_sockets() - before)
        self.is_broken = False

    def abort(self) -> None:
        """Ends all operations of this rank and of its peers in this group, with errors."""
        if self.is_broken:
            return
        # First: what ends by it must not be taken for done.
        self.is_broken = True
        abort: Any = getattr(self.group, "abort", None)
        if abort is not None:
            # A group that cannot abort says so; its sockets are shut down all the same.
            with contextlib.suppress(RuntimeError):
                abort()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Aborts what is under way, and lets go of the group."""
        self.abort()
        for one in self._sockets:
            one.close()
        self._sockets = []


def _sockets() -> set[tuple[int, int]]:
    """Returns the open sockets of this process: descriptors with their inodes."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            state = os.fstat(int(entry.name))
            if stat.S_ISSOCK(state.st_mode):
                found.add((int(entry.name), state.st_ino))
    return found


def _connected(candidates: AbstractSet[tuple[int, int]]) -> list[socket.socket]:
    """Returns copies of the TCP sockets that have a peer."""
    found = []
    for number, inode in sorted(candidates):
        try:
            copy = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        is_same = os.fstat(copy.fileno()).st_ino == inode
        is_tcp = copy.type == socket.SOCK_STREAM and copy.family in {
            socket.AF_INET,
            socket.AF_INET6,
        }
        if is_same and is_tcp and _has_peer(copy):
            found.append(copy)
        else:
            copy.close()
    return found


def _has_peer(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True
