"""Measures on this machine what drivetrain-kernels claims, against stated bounds.

Times compare with torch's own operators, in turns within the same run. The tables stand in
the modules that measure; one whose dependencies are not installed has a row that says so.
"""

from __future__ import annotations

import sys
from importlib import import_module

from drivetrain_testing import Bar, Row, run_bars

MODULES = (
    "losses",
    "allocations",
    "replace",
    "model_families",
    "op_inputs",
    "window",
    "blocks",
    "selector",
    "gpu",
)


def rows_of(module):
    """The table of a module, or a row that names what it needs."""
    try:
        return import_module(module).TABLE
    except ModuleNotFoundError as error:
        row = Row(figure="-", holds=None, details={"needs": error.name})
        return [(module, f"needs {error.name}", lambda quick: row)]


BARS = [
    Bar(name=name, bound=bound, measure=run)
    for module in MODULES
    for name, bound, run in rows_of(module)
]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
