"""The library that spoils storage, compiled, and the memory that commands it."""

import mmap
import os
import shutil
import struct
import subprocess
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.cpp")
_FIELDS = [
    "count",
    "hits",
    "locked",
    "action",
    "at",
    "error",
    "lasts",
    "reads",
    "record",
    "buffered",
    "is_victim",
    "v0",
    "v1",
    "v2",
    "v3",
]
_FIELD = struct.Struct("<q")


class Action(IntEnum):
    """What becomes of the call with the chosen number."""

    NONE = 0
    KILL = 1
    FAIL = 2
    HANG = 3
    SHORT = 4
    GATE = 5
    """All calls from the next on wait."""


def find_compiler():
    """Returns a C++ compiler, or None."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next(filter(None, (shutil.which(name) for name in names if name)), None)


def build(folder):
    """Compiles the library into a folder and returns its file."""
    library = folder / "shim.so"
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command = [find_compiler(), *options, "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return library


class Control:
    """Commands the shim in all processes of one experiment.

    Args:
        file: The file that carries the commands; it is made. The log lies beside it.
    """

    def __init__(self, file):
        self.file = file
        self.log = file.with_name(f"{file.name}.log")
        with file.open("w+b") as handle:
            handle.truncate(mmap.PAGESIZE)
            self._memory = mmap.mmap(handle.fileno(), mmap.PAGESIZE)

    def environment(self, library, root):
        """Returns what the environment of a process must say."""
        return {
            "LD_PRELOAD": str(library),
            "DRIVETRAIN_FAULTS_CONTROL": str(self.file),
            "DRIVETRAIN_FAULTS_ROOT": str(root),
        }

    def __getitem__(self, field):
        return _FIELD.unpack_from(self._memory, 8 * _FIELDS.index(field))[0]

    def __setitem__(self, field, value):
        _FIELD.pack_into(self._memory, 8 * _FIELDS.index(field), value)

    def arm(self, action, at, *, error=0, lasts=False, kills=()):
        """Chooses a call by its number, and what becomes of it.

        Args:
            action: What becomes of it.
            at: The number, counted from the calls that there were so far.
            error: The number of the error with which it fails.
            lasts: Whether all later calls fail too.
            kills: The processes that are killed; 0 is that which calls.
        """
        self.disarm()
        others = [pid for pid in kills if pid]
        for index in range(4):
            self[f"v{index}"] = others[index] if index < len(others) else 0
        self["is_victim"] = 0 in kills
        self["error"] = error
        self["lasts"] = lasts
        self["hits"] = 0
        self["at"] = self["count"] + at
        # Last, since from here on it counts.
        self["action"] = action

    def disarm(self):
        """Lets every call through, those that wait too."""
        self["action"] = Action.NONE
