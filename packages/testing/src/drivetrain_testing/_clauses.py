"""How a contract suite says which clause of a contract is broken."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def require(condition: object, clause: str) -> None:
    """Raises an `AssertionError` unless a clause holds.

    Args:
        condition: Whether it holds.
        clause: What the contract says.

    Example:
        >>> require(1 + 1 == 3, "one and one are three")
        Traceback (most recent call last):
        ...
        AssertionError: broken clause: one and one are three
    """
    if not condition:
        message = f"broken clause: {clause}"
        raise AssertionError(message)


@contextmanager
def must_raise(error_type: type[Exception], clause: str) -> Iterator[None]:
    """Raises an `AssertionError` unless the block raises as the contract says.

    Args:
        error_type: The error that must be raised.
        clause: What the contract says.

    Example:
        >>> with must_raise(ValueError, "an empty name is an error"):
        ...     pass
        Traceback (most recent call last):
        ...
        AssertionError: broken clause: an empty name is an error; nothing was raised
    """
    try:
        yield
    except error_type:
        return
    # Any other error breaks the clause just as well, and is shown beside it.
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        message = (
            f"broken clause: {clause}; expected {error_type.__name__}, got {found}"
        )
        raise AssertionError(message) from error
    message = f"broken clause: {clause}; nothing was raised"
    raise AssertionError(message)


@contextmanager
def no_other_error(subject: str) -> Iterator[None]:
    """Turns any error that no clause names into an `AssertionError`.

    Args:
        subject: What is checked.

    Example:
        >>> with no_other_error("a plan"):
        ...     raise KeyError("x")
        Traceback (most recent call last):
        ...
        AssertionError: broken clause: a plan raises no other error than its contract \
names; got KeyError: 'x'
    """
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        message = (
            f"broken clause: {subject} raises no other error than its contract names; "
            f"got {type(error).__name__}: {error}"
        )
        raise AssertionError(message) from error
