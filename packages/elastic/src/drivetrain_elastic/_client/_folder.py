"""Folder of a running agent or master, with a socket of its own in it."""

from __future__ import annotations

import os
import tempfile

from drivetrain_core import ProgramError

_PREFIX = "drivetrain-elastic-"
_SHORT = "/tmp"
# Of a local socket: the system's 108 bytes, with a zero at the end.
_MOST_BYTES = 107


def make_folder(longest: str) -> str:
    """Makes a private folder whose path is short enough for a socket in it, and returns it.

    Args:
        longest: The name of the socket.

    Raises:
        ProgramError: There is no such place.
    """
    usual = tempfile.gettempdir()
    folder = usual if _fits(f"{usual}/{_PREFIX}12345678/{longest}") else _SHORT
    try:
        return tempfile.mkdtemp(prefix=_PREFIX, dir=folder)
    except OSError as error:
        message = (
            f"no folder for the agent's socket can be made in {folder}: {error}; set "
            f"TMPDIR to a writable folder with a path of at most {_room(longest)} bytes"
        )
        raise ProgramError(message) from error


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= _MOST_BYTES


def _room(longest: str) -> int:
    return _MOST_BYTES - len(f"/{_PREFIX}12345678/{longest}")
