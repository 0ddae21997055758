"""What this process may use of the machine: the least of hardware, affinity and cgroups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Memory", "memory", "num_cores"]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


class Memory(NamedTuple):
    """Memory of this machine, or of the container around this process.

    Args:
        available: Bytes that can be had without taking them from anybody.
        total: Bytes in all.
    """

    available: int
    total: int


def memory() -> Memory:
    """Returns the memory that this process may use (cgroup v1 and v2).

    Example:
        >>> 0 < memory().available <= memory().total
        True
    """
    found = psutil.virtual_memory()
    available, total = int(found.available), int(found.total)
    for folder in _folders("memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        if limit is not None:
            used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
            # Pages of files are given back when they are needed, as the kernel counts it.
            used -= min(used, _file_pages(folder))
            # A wide group around a narrow one may be the fuller of both.
            available, total = min(available, max(0, limit - used)), min(total, limit)
    return Memory(available, total)


def num_cores() -> int:
    """Returns how many cores this process may keep busy, at least 1.

    Example:
        >>> 1 <= num_cores() <= os.cpu_count()
        True
    """
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _folders("cpu"):
        quota, period = [*_words(folder / "cpu.max"), "", ""][:2]
        if not quota:
            quota = "".join(_words(folder / "cpu.cfs_quota_us")[:1])
            period = "".join(_words(folder / "cpu.cfs_period_us")[:1])
        if quota.isdecimal() and period.isdecimal() and int(period):
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


def _folders(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's cgroup and of those around it."""
    for line in _read(_OWN).splitlines():
        _, names, place = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = _CGROUPS / names if names else _CGROUPS
        inner = root / place.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                yield folder


def _file_pages(folder: Path) -> int:
    lines = _read(folder / "memory.stat").splitlines()
    found = dict(line.split(" ", 1) for line in lines)
    # In v1 the shorter names leave out the groups inside, which the use counts.
    kinds = ("inactive_file", "active_file")
    return sum(int(found.get(f"total_{kind}", found.get(kind, 0))) for kind in kinds)


def _number(folder: Path, *names: str) -> int | None:
    words = [word for name in names for word in _words(folder / name)]
    return int(words[0]) if words and words[0].isdecimal() else None


def _words(file: Path) -> list[str]:
    return _read(file).split()


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError:
        return ""
