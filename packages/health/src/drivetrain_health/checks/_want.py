"""Whether a measurement failed because memory, disk or descriptors were used up."""

from __future__ import annotations

import errno

_USED_UP = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
# What torch and CUDA say in errors that have no type of their own.
_SAYS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "_status_alloc_failed",
)


def want_of(error: BaseException) -> str:
    """Returns what was used up, by an error or by what has caused it; empty for nothing.

    Args:
        error: That has ended a measurement.

    Example:
        >>> want_of(OSError(errno.ENOSPC, "No space left on device"))
        '[Errno 28] No space left on device'
        >>> want_of(RuntimeError("shapes differ"))
        ''
    """
    one: BaseException | None = error
    while one is not None:
        is_used_up = isinstance(one, OSError) and one.errno in _USED_UP
        text = str(one)
        if is_used_up or isinstance(one, MemoryError):
            return text or "memory is used up"
        if any(said in text.lower() for said in _SAYS):
            return text.strip().splitlines()[0]
        one = one.__cause__
    return ""
