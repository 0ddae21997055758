"""What an optimizer refuses of its options, each with one clear error."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_optim._errors import GraphCaptureError, HyperparameterError
from drivetrain_optim.checks._options import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from drivetrain_optim.checks._options import Rule


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


def check_not_scaled(optimizer: Optimizer) -> None:
    """Raises if an optimizer was given what torch's fused steps take of a GradScaler.

    Raises:
        HyperparameterError: It has `found_inf` or `grad_scale`.
    """
    for name in ("found_inf", "grad_scale"):
        if getattr(optimizer, name, None) is not None:
            message = (
                f"{type(optimizer).__name__}: a step takes no {name}, got one set on "
                "the optimizer; call scaler.step(optimizer), which unscales gradients "
                "and leaves a step out by itself. Nothing was stepped"
            )
            raise HyperparameterError(message)


def check_not_capturing(optimizer: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Raises while a CUDA graph is captured, for groups that are not capturable.

    Raises:
        GraphCaptureError: The current stream is capturing.
    """
    fixed = (group for group in groups if not group["capturable"])
    devices = {param.device for group in fixed for param in group["params"][:1]}
    here = [device for device in devices if device.type != "cpu"]
    if here and accelerator_of(here[0]).is_capturing():
        message = (
            f"{optimizer}: step() must not be captured in a CUDA graph, which would "
            "freeze its step count and learning rate; give capturable=True"
        )
        raise GraphCaptureError(message)


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with a dtype by its name: checkpoint tools take no dtypes."""
    dtype = options.get("state_dtype")
    if dtype is not None:
        options["state_dtype"] = str(dtype).removeprefix("torch.")
    return options
