"""Installs a candidate by name, without measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.selector._candidates import EAGER, Installed, candidates_for
from drivetrain_kernels.selector._workload import Workload

if TYPE_CHECKING:
    from torch import nn

__all__ = ["install"]


def install(module: nn.Module, name: str) -> Installed:
    """Lets a module run a candidate from now on, and returns what switches it off.

    Args:
        module: The module, not compiled yet.
        name: The candidate.

    Raises:
        SelectionError: There is no such candidate, or the module cannot be run so.

    Example:
        >>> from torch import nn
        >>> install(nn.Linear(2, 2), "eager").num_graphs
        0
    """
    candidate = candidates_for([name])[-1]
    workload = Workload(module, [()])
    why = candidate.unfit(workload, asked=True)
    if why and candidate.name != EAGER:
        message = f"{type(module).__name__} cannot run as {name!r}: {why}"
        raise SelectionError(message)
    installed = Installed(candidate, workload)
    installed.on()
    return installed
