"""The fused steps for the CPU, which the extension module has.

A package that was installed without a C++ compiler does without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Its OpenMP is what the extension uses.
import torch

from drivetrain_core.native_library import load_extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from drivetrain_optim.fused import _extension

    _missing: str | None
else:
    _extension, _missing = load_extension("drivetrain_optim.fused._extension")


def missing_because() -> str | None:
    """Returns why there are no fused steps on this CPU, or None if there are.

    Example:
        >>> missing_because() is None or isinstance(missing_because(), str)
        True
    """
    return _missing


def instruction_set() -> str:
    """Returns the instruction set that the fused steps use on this CPU."""
    return _extension.instruction_set()


def agd(table: NDArray[np.int64], scalars: Sequence[float]) -> None:
    """Performs one step of AGD on the rows of a table."""
    _extension.agd(table, scalars, torch.get_num_threads())


def lamb(table: NDArray[np.int64], scalars: Sequence[float]) -> NDArray[np.float64]:
    """Performs one step of LAMB; returns the squared norms of weights and steps."""
    return _extension.lamb(table, scalars, torch.get_num_threads())


def lamb_moments(
    table: NDArray[np.int64], scalars: Sequence[float]
) -> NDArray[np.float64]:
    """Updates LAMB's moments; returns the squared norms of weights and steps."""
    return _extension.lamb_moments(table, scalars, torch.get_num_threads())


def lamb_apply(
    table: NDArray[np.int64], scalars: Sequence[float], squares: NDArray[np.float64]
) -> None:
    """Updates the weights by LAMB, with squared norms of whole parameters."""
    _extension.lamb_apply(table, scalars, torch.get_num_threads(), squares)


def grad_squares(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the squared norm of each row's gradient."""
    return _extension.grad_squares(table, torch.get_num_threads())
