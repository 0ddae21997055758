"""The fused steps for the CPU: a small C++ library, called through ctypes.

The library is built with the package and has no link to Python or torch. A package that
was installed without a C++ compiler does without it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drivetrain_core.native_library import find_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FILE = "drivetrain_optim.so"
_PREFIX = "drivetrain_optim_v1_"


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Returns the library, or None and the reason."""
    file = find_library("drivetrain_optim", _FILE)
    if file is None:
        return None, "its C++ library was not built when the package was installed"
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        return None, f"its library does not load: {error}"
    getattr(library, f"{_PREFIX}instruction_set").restype = ctypes.c_char_p
    return library, None


def missing_because() -> str | None:
    """Returns why there are no fused steps on this CPU, or None if there are.

    Example:
        >>> missing_because() is None or isinstance(missing_because(), str)
        True
    """
    return _load()[1]


def instruction_set() -> str:
    """Returns the instruction set that the fused steps use on this CPU."""
    library, _ = _load()
    assert library is not None
    name: bytes = getattr(library, f"{_PREFIX}instruction_set")()
    return name.decode()


def agd(table: NDArray[np.int64], scalars: Sequence[float]) -> None:
    """Performs one step of AGD on the rows of a table."""
    _call("agd", table, _struct(scalars), torch.get_num_threads())


def lamb(table: NDArray[np.int64], scalars: Sequence[float]) -> NDArray[np.float64]:
    """Performs one step of LAMB; returns the squared norms of weights and steps."""
    squares = np.empty((len(table), 2))
    _call("lamb", table, _struct(scalars), torch.get_num_threads(), squares)
    return squares


def lamb_moments(
    table: NDArray[np.int64], scalars: Sequence[float]
) -> NDArray[np.float64]:
    """Updates LAMB's moments; returns the squared norms of weights and steps."""
    squares = np.empty((len(table), 2))
    _call("lamb_moments", table, _struct(scalars), torch.get_num_threads(), squares)
    return squares


def lamb_apply(
    table: NDArray[np.int64],
    scalars: Sequence[float],
    squares: NDArray[np.float64],
) -> None:
    """Updates the weights by LAMB, with squared norms of whole parameters."""
    squares = np.ascontiguousarray(squares, dtype=np.float64)
    _call("lamb_apply", table, _struct(scalars), torch.get_num_threads(), squares)


def grad_squares(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the squared norm of each row's gradient."""
    squares = np.empty(len(table))
    _call("grad_squares", table, torch.get_num_threads(), squares)
    return squares


def _struct(scalars: Sequence[float]) -> NDArray[np.float64]:
    return np.array(scalars, dtype=np.float64)


def _call(name: str, table: NDArray[np.int64], *arguments: Any) -> None:
    library, because = _load()
    assert library is not None, because
    pointers = [
        ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a
        for a in arguments
    ]
    rows = ctypes.c_void_p(table.ctypes.data)
    num_rows = ctypes.c_int64(len(table))
    if getattr(library, f"{_PREFIX}{name}")(rows, num_rows, *pointers):
        message = f"drivetrain-optim: no memory for a step over {len(table)} tensors"
        raise MemoryError(message)
