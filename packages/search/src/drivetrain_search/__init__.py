"""Search for the fastest plan of a training program: what `strategy="auto"` does.

Trials run in processes of their own, are held to the numbers of the program as written,
and the best of them meet it in a final. `accelerate` finds this package by itself;
`drivetrain search` runs it for a script. Importing it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_search._version import __version__
    from drivetrain_search.report.record import TrialRecord
    from drivetrain_search.report.report import Report
    from drivetrain_search.service import TrialSearch

__all__ = ["Report", "TrialRecord", "TrialSearch", "__version__"]

_HOME = {
    "Report": "report.report",
    "TrialRecord": "report.record",
    "TrialSearch": "service",
    "__version__": "_version",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    return _load_export(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
