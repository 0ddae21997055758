"""The traces that ship: training steps, and patterns that are hard on an allocator."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_memory.trace._format import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = Path(__file__).parents[1] / "traces"
_SHIPPED = tomllib.loads((_FOLDER / "shipped.toml").read_text("utf-8"))

WORKLOADS: dict[str, str] = _SHIPPED["workloads"]
"""What was recorded, by name."""


def _load(name: str) -> Trace:
    return Trace.load(_FOLDER / f"{name}.dtm")


PATTERNS: dict[str, Callable[[], Trace]] = {
    name: functools.partial(_load, name) for name in _SHIPPED["patterns"]["names"]
}
"""The patterns by name, each as a function that gives its trace."""


def workload(name: str) -> Trace:
    """Returns a trace that ships.

    Args:
        name: One of `WORKLOADS`.

    Raises:
        KeyError: There is none of that name.

    Example:
        >>> workload("resnet-50").num_steps
        5
    """
    if name not in WORKLOADS:
        raise KeyError(name)
    return _load(name)


def pattern(name: str) -> Trace:
    """Returns a pattern.

    Raises:
        KeyError: There is none of that name.

    Example:
        >>> pattern("island").num_steps
        4
    """
    return PATTERNS[name]()
