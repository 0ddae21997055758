"""CPU and memory usage of an agent and of all that it has started."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")


class Use(NamedTuple):
    """What was used.

    Attributes:
        cpus: Processors kept busy since the last reading, on average.
        memory_bytes: Memory that is held now.
    """

    cpus: float
    memory_bytes: int


class UseMeter:
    """Reads what is used; the first reading has no processors.

    In a container its control group is read, without the files that the kernel would drop
    first: that is what the kernel and Kubernetes count. Elsewhere the process and all below
    it are summed, and what they share is counted once.

    Args:
        cgroup: Where the files of a container's own control group are.

    Example:
        >>> meter = UseMeter()
        >>> meter.read().memory_bytes > 0
        True
    """

    def __init__(self, cgroup: Path = _CGROUP) -> None:
        self._cgroup = cgroup
        self._process = psutil.Process()
        self._last: tuple[float, float] | None = None

    def read(self) -> Use:
        """Returns what is used.

        Raises:
            OSError: It cannot be read.
        """
        found = self._of_container() or self._of_processes()
        now_s, (cpu_s, memory_bytes) = time.monotonic(), found
        before, self._last = self._last, (now_s, cpu_s)
        if before is None or now_s <= before[0]:
            return Use(0.0, memory_bytes)
        # Of a process that has ended and was not waited for, the time is gone.
        return Use(max(0.0, cpu_s - before[1]) / (now_s - before[0]), memory_bytes)

    def _of_container(self) -> tuple[float, int] | None:
        """Returns seconds and bytes, or None where there is no container."""
        current = self._cgroup / "memory.current"
        # The group of all processes of a machine has none.
        if not current.exists():
            return None
        memory = _lines(self._cgroup / "memory.stat")
        cpu = _lines(self._cgroup / "cpu.stat")
        held = int(current.read_text()) - memory.get("inactive_file", 0)
        return cpu["usage_usec"] / 1e6, max(0, held)

    def _of_processes(self) -> tuple[float, int]:
        cpu_s, own, shared = 0.0, 0, 0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                memory, times = process.memory_info(), process.cpu_times()
                own += memory.rss - memory.shared
                shared = max(shared, memory.shared)
                cpu_s += times.user + times.system
                cpu_s += times.children_user + times.children_system
        return cpu_s, own + shared


def _lines(file: Path) -> dict[str, int]:
    rows = (line.split() for line in file.read_text().splitlines())
    return {name: int(value) for name, value in rows}
