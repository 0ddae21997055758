"""States to save, a place to save them, and how times are taken."""

import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

MIB = 1 << 20
GIB = 1 << 30
NUM_THREADS = 2
"""How many threads copy, ours and those of every limit."""


def sized(size_mib, quick):
    """The bytes of a state, of which a quick form takes an eighth; sets the threads."""
    torch.set_num_threads(NUM_THREADS)
    return (size_mib // 8 if quick else size_mib) * MIB


def make_state(size_bytes, value=1.0):
    """Tensors of 4 KiB to 32 MiB, so many bytes in all."""
    sizes, left = [], size_bytes
    while left > 0:
        for size in (32 * MIB, 8 * MIB, 16 * MIB, 4096, 256 * 1024):
            sizes.append(min(size, left))
            left -= sizes[-1]
            if left <= 0:
                break
    return {f"t{i}": torch.full((size // 4,), value) for i, size in enumerate(sizes)}


@dataclass(frozen=True)
class Place:
    """Where one measurement saves.

    `folder` lies on the disk of the current folder; `runtime` is where its daemons
    listen, by which they and all other processes of the measurement are known.
    """

    folder: Path
    runtime: Path

    def environment(self):
        """The environment of a process that belongs to the measurement."""
        here = str(Path(__file__).parent)
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "PYTHONPATH": here}

    def processes(self):
        """All processes of the measurement but this one."""
        mark = f"XDG_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return [pid for pid in found if pid != os.getpid()]

    def end_processes(self):
        """Ends what is left of the measurement."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def new_place():
    """Gives a place of its own to a measurement, and leaves nothing behind."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    # The path of a socket must be short.
    runtime = Path(tempfile.mkdtemp(prefix="bench-"))
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    place = Place(folder, runtime)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        yield place
    finally:
        place.end_processes()
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(runtime, ignore_errors=True)
        # A saver that is killed leaves its named memory to the machine, as DLRover's.
        for file in Path("/dev/shm").glob(f"{runtime.name}_*"):
            file.unlink()


def timed(action):
    """How many seconds an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def settle():
    """Lets what goes on after a save come to its end, such as deleting old files."""
    time.sleep(0.2)


def ratio(ours, theirs):
    """The median of the ratios of neighbouring times."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def milliseconds(times_s):
    """The median of times, in words."""
    return f"{statistics.median(times_s) * 1e3:.0f} ms"


def say(message):
    """Tells whoever waits what is being done."""
    sys.stderr.write(f"{message}\n")
