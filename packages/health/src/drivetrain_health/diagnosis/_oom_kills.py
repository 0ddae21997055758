"""How many processes the kernel has killed in a control group for want of memory."""

from __future__ import annotations

from pathlib import Path


def count_oom_kills(
    pid: int | str = "self", *, root: str | Path = "/sys/fs/cgroup", proc: str = "/proc"
) -> int | None:
    """Returns how many processes were killed in the group that a process is in.

    In a container this tells of such a kill where the kernel's log cannot be read. It only
    grows, so that the difference of two readings is what happened in between.

    Args:
        pid: The process.
        root: Where control groups are mounted, of either version.
        proc: Where processes are.

    Returns:
        The number; or None, if that is not known, on another system or of a process that
            has ended.

    Example:
        >>> count_oom_kills(root="/no/such/folder")
    """
    try:
        groups = Path(proc, str(pid), "cgroup").read_text()
    except OSError:
        return None
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, name = Path(root), "memory.events"
        elif "memory" in controllers.split(","):
            mount, name = Path(root, "memory"), "memory.oom_control"
        else:
            continue
        # Inside a container the path may be one of the host: then the group is the root.
        for folder in (mount / path.lstrip("/"), mount):
            if (count := _field(folder / name, "oom_kill")) is not None:
                return count
    return None


def _field(path: Path, name: str) -> int | None:
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isascii() and value.strip().isdigit():
            return int(value)
    return None
