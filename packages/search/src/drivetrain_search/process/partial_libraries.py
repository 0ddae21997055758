"""Partial libraries: what a killed compiler left half-written in inductor's folder.

Inductor takes a library that is there for whole, so that one of these would make every
later compilation of the same code fail, the user's own among them. All programs of a
user compile into one folder: what another program writes meanwhile is not whole either,
and inductor holds a lock for as long as it writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADER_BYTES = 64
_MAGIC = b"\x7fELF"
# Places and values of the header of a 64-bit file (elf.5: Elf64_Ehdr).
_CLASS, _CLASS_64 = 4, 2
_ORDER, _BIG_ENDIAN = 5, 2
_SECTIONS_AT, _SECTION_BYTES_AT = 0x28, 0x3A
# The clock of a file system's times lags behind that of `time.time` by a tick.
_CLOCK_LAG_S = 0.1


def inductor_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder that inductor compiles into, as torch finds it.

    It may not exist; unlike torch's own function, this one changes nothing.

    Example:
        >>> inductor_folder({"TORCHINDUCTOR_CACHE_DIR": "/caches"}).as_posix()
        '/caches'
    """
    given = environment.get("TORCHINDUCTOR_CACHE_DIR")
    if given is not None:
        return Path(given).absolute()
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return Path(tempfile.gettempdir()).absolute() / name


def is_whole(path: Path) -> bool:
    """Returns whether a file is a library with all its sections.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        return False
    if header[_CLASS] != _CLASS_64:
        return True
    order = ">" if header[_ORDER] == _BIG_ENDIAN else "<"
    (start,) = struct.unpack_from(f"{order}Q", header, _SECTIONS_AT)
    each, number = struct.unpack_from(f"{order}HH", header, _SECTION_BYTES_AT)
    return bool(start + each * number <= size)


def remove_partial_libraries(folder: Path, since: float) -> list[Path]:
    """Removes the libraries of a folder that are not whole, and returns them.

    What a process writes now stays: it holds the library's lock.

    Args:
        folder: The folder, which is looked through with all that is in it; it may be
            missing.
        since: Only what has changed since then is opened, in `time.time` seconds.
    """
    removed = []
    for path in _libraries(folder):
        # Another process may clear the folder meanwhile.
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime >= since - _CLOCK_LAG_S
            if not changed or not path.is_file() or is_whole(path):
                continue
            with _locked(folder, path) as free:
                if free and not is_whole(path):
                    path.unlink()
                    removed.append(path)
    return removed


@contextlib.contextmanager
def _locked(folder: Path, library: Path) -> Iterator[bool]:
    """Holds a library's lock; gives False if the process that compiles it does."""
    key, _, _ = library.name.partition(".")
    try:
        file = (folder / "locks" / f"{key}.lock").open("rb")
    except FileNotFoundError:
        # Nobody compiles it.
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _libraries(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".so"):
                yield Path(place, name)
