"""Cleanup of orphans: folders of searches that were killed go with the next one.

A process that gets SIGTERM, as a cluster sends it, or SIGKILL ends without clean-up,
and its folder holds a whole program. A search holds a lock in its folder as long as it
lives, whoever else may look at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "drivetrain-"
_LOCK = "search.lock"


@contextlib.contextmanager
def search_folder() -> Iterator[Path]:
    """Makes a private folder, and removes it with all that is in it.

    Raises:
        OSError: None can be made.
    """
    remove_orphans()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_orphans() -> list[Path]:
    """Removes the folders of searches that live no more, and returns them."""
    removed = []
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # What belongs to another user, or is gone by now, is no concern of ours.
        with contextlib.suppress(OSError):
            if lock.stat().st_uid != os.getuid():
                continue
            with lock.open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
                removed.append(lock.parent)
    return removed
