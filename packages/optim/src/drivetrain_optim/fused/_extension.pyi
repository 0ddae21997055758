"""
Fused steps on a CPU, over tables of addresses.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['agd', 'grad_squares', 'instruction_set', 'lamb', 'lamb_apply', 'lamb_moments']
def agd(table: numpy.typing.NDArray[numpy.int64], scalars: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], num_threads: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Performs one step of AGD on the rows of a table.
    """
def grad_squares(table: numpy.typing.NDArray[numpy.int64], num_threads: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float64]:
    """
    Returns the squared norm of each row's gradient.
    """
def instruction_set() -> str:
    """
    Returns the instruction set that the steps use on this CPU.
    """
def lamb(table: numpy.typing.NDArray[numpy.int64], scalars: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], num_threads: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float64]:
    """
    Performs one step of LAMB; returns the squared norms of weights and steps.
    """
def lamb_apply(table: numpy.typing.NDArray[numpy.int64], scalars: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], num_threads: typing.SupportsInt | typing.SupportsIndex, squares: typing.Annotated[numpy.typing.ArrayLike, numpy.float64]) -> None:
    """
    Updates the weights by LAMB, with squared norms of whole parameters.
    """
def lamb_moments(table: numpy.typing.NDArray[numpy.int64], scalars: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], num_threads: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float64]:
    """
    Updates LAMB's moments; returns the squared norms of weights and steps.
    """
