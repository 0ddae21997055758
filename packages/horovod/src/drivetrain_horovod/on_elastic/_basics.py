"""Where this process stands among all of them."""

from __future__ import annotations

import os
import sys

from drivetrain_core import ProgramError
from drivetrain_horovod.on_elastic._runtime import (
    begin,
    end,
    finish_once,
    found,
    runtime,
)


def init(comm: object = None, process_sets: object = None) -> None:
    """Meets the other processes; further calls do nothing.

    Under `drivetrain-elastic run` the agent says who they are. A worker that stands by
    waits here until it has a place. A script that is started by itself is alone.

    Args:
        comm: Must be None: there is one world of all ranks.
        process_sets: Must be None.

    Raises:
        ProgramError: Subsets of ranks are asked for.
        DistributedError: The agent does not answer, or no world came in time.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()
        (0, 1, 0, 1)
        >>> hvd.shutdown()
    """
    if comm is not None or process_sets is not None:
        message = (
            "init() makes one world of all ranks: comm and process_sets must be None"
        )
        raise ProgramError(message)
    begin()


def shutdown() -> None:
    """Leaves the other processes."""
    # Not so where an error is on its way: that training is not done.
    if sys.exc_info()[0] is None:
        finish_once()
    end()


def is_initialized() -> bool:
    """Returns whether `init` was called, and `shutdown` was not.

    Example:
        >>> is_initialized()
        False
    """
    return found()


def rank() -> int:
    """Returns this process's number; 0 is one that has the state of the training.

    It may be another one after each change of the world.
    """
    return runtime().place.rank


def size() -> int:
    """Returns the number of processes, which changes with the world."""
    return runtime().place.size


def local_rank() -> int:
    """Returns this process's place on its node, which it keeps: that of its device."""
    place = runtime().place
    return int(os.environ.get("LOCAL_RANK", place.local[0]))


def local_size() -> int:
    """Returns the number of processes on this node."""
    return runtime().place.local[1]


def cross_rank() -> int:
    """Returns this node's number among those that have as many processes."""
    return runtime().place.cross[0]


def cross_size() -> int:
    """Returns the number of nodes that have as many processes."""
    return runtime().place.cross[1]
