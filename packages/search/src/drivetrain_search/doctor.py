"""Checks of this machine for `drivetrain doctor`: processes of trials, and pictures."""

from __future__ import annotations

import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from drivetrain_search.process.spawn import Processes, RankFailure


def check_isolation() -> tuple[str, str]:
    """Starts a real trial process, and lets it die with its socket.

    Returns:
        `ok` or `fail`, and what was found.
    """
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text("{}", encoding="utf-8")
        with Processes("this", spec, 1, Path(folder), {}, forked=False) as processes:
            try:
                processes.receive(time.monotonic() + 30)
            except RankFailure as failure:
                if failure.kind == "exit":
                    return "ok", "processes start, are watched, and are ended"
                return "fail", "a process that ended was not noticed"
    return "fail", "a process answered that should not"


def check_pictures() -> tuple[str, str]:
    """Looks for what draws pictures.

    Returns:
        `ok` or `warn`, and what is there or how to get it.
    """
    try:
        return "ok", f"matplotlib {version('matplotlib')}"
    except PackageNotFoundError:
        return "warn", "no matplotlib: pip install 'drivetrain-search[plot]'"
