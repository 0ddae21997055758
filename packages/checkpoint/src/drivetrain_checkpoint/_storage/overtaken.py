"""Two runs that save one job into one folder: the one that began later goes on."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_checkpoint._layout.manifest import RootManifest


def why_overtaken(root: RootManifest, others: Iterable[RootManifest]) -> str:
    """Returns why a run must not commit a save any more; nothing if it may.

    A run is told apart by its writer, the daemon that commits for it: one that takes over
    from an earlier run on the same node finishes what that one has left.

    Args:
        root: What is to be committed.
        others: What is committed in the folder.

    Example:
        >>> from drivetrain_checkpoint._layout.manifest import RootManifest
        >>> def root(writer, step, began_s):
        ...     return RootManifest(
        ...         job="lm", step=step, save_id=f"{step:016x}", saved_at_ns=0, layout={},
        ...         world_size=1, entries={}, ranks=(), writer=writer,
        ...         began_ns=began_s * 10**9,
        ...     )
        >>> old, new = root("node-1", 40, 100), root("node-2", 10, 160)
        >>> why_overtaken(old, [new])[:63]
        "another run of job 'lm' saves to this folder: node-2, which beg"
        >>> why_overtaken(new, [old])
        ''
    """
    later = [
        other
        for other in others
        if other.job == root.job
        and other.writer not in {"", root.writer}
        and other.began_ns > root.began_ns
    ]
    if not later:
        return ""
    other = max(later, key=lambda found: found.saved_at_ns)
    began = dt.datetime.fromtimestamp(other.began_ns / 1e9, dt.UTC)
    return (
        f"another run of job {root.job!r} saves to this folder: {other.writer}, which "
        f"began later, at {began:%Y-%m-%d %H:%M:%S} UTC, and has saved step {other.step}. "
        "Stop one of the two, or give one another name (job=...) or folder"
    )
