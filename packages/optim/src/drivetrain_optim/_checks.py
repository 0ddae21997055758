"""What an optimizer refuses, each with one clear error, before anything changes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_optim._errors import (
    GraphCaptureError,
    HyperparameterError,
    NonFiniteGradientError,
    StateDictError,
    UnsupportedTensorError,
)
from drivetrain_optim._options import checked
from drivetrain_optim._state import local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from drivetrain_optim._options import Rule

__all__ = [
    "check_changed_options",
    "check_combination",
    "check_finite",
    "check_names",
    "check_not_capturing",
    "check_options",
    "check_parameters",
    "check_saved_groups",
    "check_saved_state",
    "check_state",
    "learning_rate",
    "parameter_names",
    "params_with_gradients",
]


_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}


def parameter_names(index: int, group: Mapping[str, Any]) -> list[str]:
    """Returns the names of a group's parameters, or `group.position` without names."""
    names: list[str] | None = group.get("param_names")
    return names or [f"{index}.{position}" for position in range(len(group["params"]))]


def check_options(
    optimizer: str, rules: Mapping[str, Rule], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the options checked, with presets resolved; `lr` may be a CPU tensor.

    Raises:
        HyperparameterError: A value is not allowed.
    """
    lr = options["lr"]
    if not isinstance(lr, torch.Tensor):
        return _named(checked(optimizer, rules, options))
    if lr.numel() != 1 or lr.is_complex():
        message = (
            f"{optimizer}: lr as a tensor must be one real element, got shape "
            f"{tuple(lr.shape)}, {lr.dtype}"
        )
        raise HyperparameterError(message)
    # A tensor elsewhere would make every step wait for its device.
    if lr.device.type != "cpu" and options.get("capturable") is not True:
        message = (
            f"{optimizer}: lr as a tensor on {lr.device} needs capturable=True; "
            "without it, give a number or a tensor on the CPU"
        )
        raise HyperparameterError(message)
    options = _named(checked(optimizer, rules, {**options, "lr": lr.item()}))
    return {**options, "lr": lr}


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with a dtype by its name: checkpoint tools take no dtypes."""
    dtype = options.get("state_dtype")
    if dtype is not None:
        options["state_dtype"] = str(dtype).removeprefix("torch.")
    return options


def learning_rate(
    optimizer: str, rules: Mapping[str, Rule], group: Mapping[str, Any]
) -> float | Tensor:
    """Returns the group's learning rate, which a schedule may have changed.

    With `capturable`, a tensor stays one, unread.

    Raises:
        HyperparameterError: It is not a finite number >= 0.
    """
    lr: float | Tensor = group["lr"]
    if isinstance(lr, torch.Tensor):
        if group["capturable"]:
            return lr.double()
        lr = lr.item()
    checked(optimizer, rules, {"lr": lr})
    return float(lr)


def check_combination(optimizer: str, options: Mapping[str, Any]) -> None:
    """Raises if options that are allowed by themselves contradict each other.

    Raises:
        HyperparameterError: They do.
    """
    pairs = {
        ("foreach", "fused"): "at most one of foreach and fused may be True",
        ("master_weights", "stochastic_rounding"): (
            "stochastic_rounding=True replaces the master weights, so that at most one "
            "of both may be True"
        ),
        ("capturable", "stochastic_rounding"): (
            "stochastic_rounding=True reads the step count, which capturable=True "
            "keeps on the device: at most one of both may be True"
        ),
        ("capturable", "check_finite"): (
            "check_finite=True waits for the device, which capturable=True forbids"
        ),
        ("capturable", "foreach"): (
            "foreach=True has no capturable form; leave foreach at None"
        ),
    }
    for names, rule in pairs.items():
        if all(options.get(name) is True for name in names):
            given = ", ".join(f"{name}=True" for name in names)
            message = f"{optimizer}: {rule}; got {given}"
            raise HyperparameterError(message)


def check_finite(
    optimizer: str,
    groups: Sequence[Mapping[str, Any]],
    on_any_rank: Callable[[bool], bool],
) -> None:
    """Raises if a gradient of a group with `check_finite` is not finite; waits for it.

    Args:
        optimizer: The optimizer's name.
        groups: Its groups.
        on_any_rank: Whether something is so on any of the ranks that step together.

    Raises:
        NonFiniteGradientError: One holds an infinity or a NaN.
    """
    message = None
    for index, group in enumerate(groups):
        if not group["check_finite"] or message:
            continue
        names = parameter_names(index, group)
        found = [
            (name, local_part(param.grad, like=param))
            for name, param in zip(names, group["params"], strict=True)
            if param.grad is not None
        ]
        # 0 times a sum is 0 just if every element is finite; one wait tells for all.
        sums = [grad.sum(dtype=torch.float64) * 0 for _, grad in found]
        if not sums or not bool(torch.stack([s.cpu() for s in sums]).sum() != 0):
            continue
        for name, grad in found:
            count = int((~torch.isfinite(grad)).sum())
            if count and not message:
                message = (
                    f"{optimizer}: gradients must be finite, but {count} of "
                    f"{grad.numel()} elements of that of parameter {name} are not; "
                    "nothing was stepped"
                )
    if on_any_rank(message is not None):
        message = message or (
            f"{optimizer}: gradients must be finite, but on another rank one is not; "
            "nothing was stepped"
        )
        raise NonFiniteGradientError(message)


def check_parameters(optimizer: str, index: int, group: Mapping[str, Any]) -> None:
    """Raises unless each parameter is a real floating-point tensor.

    Raises:
        UnsupportedTensorError: One is complex or integer.
    """
    for name, param in zip(parameter_names(index, group), group["params"], strict=True):
        if param.dtype in _DTYPES:
            continue
        hint = ""
        if param.is_complex():
            hint = "; pass torch.view_as_real(p) for a complex p"
        message = (
            f"{optimizer}: parameters must be float64, float32, bfloat16 or float16, but "
            f"parameter {name} of shape {tuple(param.shape)} is {param.dtype}{hint}"
        )
        raise UnsupportedTensorError(message)


def params_with_gradients(
    optimizer: str, index: int, group: Mapping[str, Any]
) -> list[Tensor]:
    """Returns the group's parameters that have a gradient, each dense and real.

    Raises:
        UnsupportedTensorError: A gradient is sparse or complex.
    """
    params = []
    for position, param in enumerate(group["params"]):
        grad = param.grad
        if grad is None:
            continue
        if hasattr(param, "to_local") and not hasattr(grad, "to_local"):
            name = parameter_names(index, group)[position]
            message = (
                f"{optimizer}: the gradient of a sharded parameter must be a DTensor, "
                f"but that of parameter {name} is a plain tensor of shape "
                f"{tuple(grad.shape)}; nothing was stepped"
            )
            raise UnsupportedTensorError(message)
        dense = grad.layout is torch.strided
        if not dense or grad.is_complex():
            name = parameter_names(index, group)[position]
            message = (
                f"{optimizer}: gradients must be dense and real, but that of parameter "
                f"{name} of shape {tuple(param.shape)} is "
                f"{grad.dtype if dense else grad.layout}; nothing was stepped. Use "
                "sparse=False in the embedding, or another optimizer for this parameter"
            )
            raise UnsupportedTensorError(message)
        params.append(param)
    return params


def check_names(
    optimizer: str, rules: Mapping[str, Rule], group: Mapping[str, Any]
) -> None:
    """Raises if a group has a name that is nearly that of an option.

    Other names are the user's own affair, as in torch.

    Raises:
        HyperparameterError: It has.
    """
    for name in group:
        if name in rules:
            continue
        near = difflib.get_close_matches(name, rules, n=1, cutoff=0.85)
        if near:
            message = (
                f"{optimizer}: there is no option {name!r} for a parameter group; "
                f"nearest: {near[0]}"
            )
            raise HyperparameterError(message)


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


def check_changed_options(
    optimizer: str,
    rules: Mapping[str, Rule],
    group: dict[str, Any],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """Checks the options of a group that someone has set since they were known.

    Args:
        optimizer: The optimizer's name, for messages.
        rules: Its options.
        group: The group; the name of a preset is replaced by its value.
        known: The options as they were checked last.

    Returns:
        The options as they are now.

    Raises:
        HyperparameterError: A value is not allowed.
    """
    changed = {
        name: group[name]
        for name in rules
        if name != "lr" and group[name] is not known.get(name, ...)
    }
    if changed:
        group.update(_named(checked(optimizer, rules, changed)))
        check_combination(optimizer, group)
    return {name: group[name] for name in rules}


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
    if value.shape != param.shape:
        return f"has shape {tuple(value.shape)}"
    if value.device != param.device and not moves:
        return f"is on {value.device}, and the parameter on {param.device}"
    if hasattr(value, "to_local") != hasattr(param, "to_local"):
        kinds = ("a DTensor", "a plain tensor")
        kinds = kinds if hasattr(value, "to_local") else kinds[::-1]
        return f"is {kinds[0]}, and the parameter {kinds[1]}"
    return None


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


def check_not_capturing(optimizer: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Raises while a CUDA graph is captured, for groups that are not capturable.

    Raises:
        GraphCaptureError: The current stream is capturing.
    """
    fixed = (group for group in groups if not group["capturable"])
    on_cuda = any(param.is_cuda for group in fixed for param in group["params"][:1])
    if on_cuda and torch.cuda.is_current_stream_capturing():
        message = (
            f"{optimizer}: step() must not be captured in a CUDA graph, which would "
            "freeze its step count and learning rate; give capturable=True"
        )
        raise GraphCaptureError(message)
