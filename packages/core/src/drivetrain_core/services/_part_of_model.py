"""Marks of a module over a mesh: as one rank's part of a model, and with its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._errors import NamesError

if TYPE_CHECKING:
    from torch import nn

_MARK = "_is_drivetrain_part_of_model"
_DATA = "_drivetrain_data_part"


def mark_as_part(model: nn.Module) -> None:
    """Says that a module cannot be saved by itself.

    Args:
        model: What a rank has of a model; other ranks have other names.
    """
    # Not by setattr: the user's own __setattr__ is not asked.
    model.__dict__[_MARK] = True


def check_is_no_part(key: str, model: nn.Module) -> None:
    """Raises if a module cannot be saved by itself.

    Args:
        key: Its name in the state.
        model: The module.

    Raises:
        NamesError: It is one rank's part of a model.

    Example:
        >>> from torch import nn
        >>> check_is_no_part("model", nn.Linear(2, 1))
    """
    if _MARK in model.__dict__:
        message = (
            f"{key!r} is what this rank has of a model over a mesh, and its names are "
            "not those of the model as written: save and restore "
            "{**accelerated.state(), ...} instead, which holds model and optimizer"
        )
        raise NamesError(message)


def mark_data_part(model: nn.Module, size: int, rank: int) -> None:
    """Says which part of a global batch the ranks of a mesh give a module.

    Args:
        model: What this rank has of the model.
        size: How many parts there are; ranks along some axes read the same one.
        rank: Which of them this rank reads.
    """
    model.__dict__[_DATA] = size, rank


def data_part_of(model: nn.Module) -> tuple[int, int] | None:
    """Returns what `mark_data_part` has said; None where nobody has.

    Example:
        >>> from torch import nn
        >>> model = nn.Linear(2, 1)
        >>> mark_data_part(model, 2, 1)
        >>> data_part_of(model), data_part_of(nn.Linear(2, 1))
        ((2, 1), None)
    """
    found: tuple[int, int] | None = model.__dict__.get(_DATA)
    return found
