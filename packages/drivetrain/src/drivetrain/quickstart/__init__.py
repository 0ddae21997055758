"""The main job: fast, and hard to kill, shown on a model of ours or a script of yours.

It searches for a plan, trains with it beside the program as written, trains once more
with two workers of which one is killed, and ends with one table. Importing this package
imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain.quickstart._command import main, populate_parser
    from drivetrain.quickstart._job import Job
    from drivetrain.quickstart._run import Run

__all__ = ["Job", "Run", "main", "populate_parser"]

_HOMES = {
    "Job": "_job",
    "Run": "_run",
    "main": "_command",
    "populate_parser": "_command",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
