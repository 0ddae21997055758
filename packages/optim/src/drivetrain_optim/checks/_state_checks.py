"""What an optimizer refuses of a state, each with one clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from drivetrain_optim._errors import StateDictError
from drivetrain_optim.batched._state import is_freed, local_part
from drivetrain_optim.checks._tensor_checks import parameter_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor


def check_saved_groups(
    optimizer: str, groups: Iterable[Mapping[str, Any]], needed: Sequence[str]
) -> None:
    """Raises unless each saved parameter group has the options that tell it apart.

    Raises:
        StateDictError: The groups were saved by another optimizer.
    """
    for index, group in enumerate(groups):
        missing = [name for name in needed if name not in group]
        if missing:
            message = (
                f"{optimizer}: the state dict must be one of {optimizer}, but its "
                f"parameter group {index} has no {', '.join(missing)}; moments of "
                "another optimizer mean something else, so start without them"
            )
            raise StateDictError(message)


def check_saved_state(
    optimizer: str,
    groups: Sequence[Mapping[str, Any]],
    saved: Mapping[str, Any],
    moments_of: Callable[[Mapping[str, Any]], Sequence[str]],
) -> None:
    """Raises unless a saved state is whole and fits the parameters.

    Args:
        optimizer: The optimizer's name.
        groups: The groups that it is to be loaded into.
        saved: The state dict, whose groups were checked.
        moments_of: Returns the moments that a group's options ask for.

    Raises:
        StateDictError: A tensor is missing, or has another shape or sharding.
    """
    for index, (group, other) in enumerate(
        zip(groups, saved["param_groups"], strict=False)
    ):
        needed = ("step", *moments_of({**group, **other}))
        names = parameter_names(index, group)
        triples = zip(names, group["params"], other["params"], strict=False)
        for name, param, key in triples:
            state = saved["state"].get(key)
            if not state:
                continue
            missing = [kept for kept in needed if kept not in state]
            if missing:
                message = (
                    f"{optimizer}: the state dict is not whole: parameter {name} has no "
                    f"{', '.join(missing)}"
                )
                raise StateDictError(message)
            kept_here = {kept: value for kept, value in state.items() if kept != "step"}
            check_state(
                optimizer, name, param, kept_here, (*needed[1:], "master"), moves=True
            )


def check_state(
    optimizer: str,
    name: str,
    param: Tensor,
    state: Mapping[str, Any],
    kept: Sequence[str],
    *,
    moves: bool = False,
) -> None:
    """Raises unless what is kept for a parameter looks like it.

    Args:
        optimizer: The optimizer's name.
        name: The parameter's name.
        param: The parameter.
        state: What is kept for it.
        kept: The names of the tensors that look like it.
        moves: Whether they may lie on another device, because they will be moved.

    Raises:
        StateDictError: Something has another shape, device or sharding.
    """
    for key in (*kept, "step"):
        value = state.get(key)
        if value is None and key not in state:
            continue
        problem = _misfit(value, param, scalar=key == "step", moves=moves)
        if problem:
            message = (
                f"{optimizer}: the state of parameter {name} of shape "
                f"{tuple(param.shape)} does not fit it: {key} {problem}"
            )
            raise StateDictError(message)


def _misfit(value: object, param: Tensor, *, scalar: bool, moves: bool) -> str | None:
    if not isinstance(value, torch.Tensor):
        return f"is no tensor but {type(value).__name__}"
    if scalar:
        return None if value.numel() == 1 else f"has shape {tuple(value.shape)}"
    if is_freed(local_part(value)):
        return "was freed"
    if value.is_neg():
        return "is a view that negates"
    if value.shape != param.shape:
        return f"has shape {tuple(value.shape)}"
    if value.device != param.device and not moves:
        return f"is on {value.device}, and the parameter on {param.device}"
    if hasattr(value, "to_local") != hasattr(param, "to_local"):
        kinds = ("a DTensor", "a plain tensor")
        kinds = kinds if hasattr(value, "to_local") else kinds[::-1]
        return f"is {kinds[0]}, and the parameter {kinds[1]}"
    return None
