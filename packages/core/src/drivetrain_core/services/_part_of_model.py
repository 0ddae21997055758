"""Marks a module that is one rank's part of a model, under names of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._errors import NamesError

if TYPE_CHECKING:
    from torch import nn

_MARK = "_is_drivetrain_part_of_model"


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
