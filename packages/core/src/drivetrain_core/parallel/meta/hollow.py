"""Runs the code that builds a model, and keeps no weights."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

from drivetrain_core._errors import ProgramError
from drivetrain_core.parallel.meta.initialize import require_initializers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_core.parallel.meta.initialize import Initializer

__all__ = [
    "Weights",
    "build_hollow",
    "is_hollow",
    "move_to",
    "parameters_on_meta",
    "require_hollow",
]

Weights = Literal["build", "reset", "restore"]
"""Where the first weights of a model come from; see `accelerate`."""

_lock = threading.RLock()


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Puts each parameter on the meta device as soon as a module takes it.

    Buffers are made as they are written, so that tables which a model computes stay
    right. At any time there is memory for one parameter at most. Tied parameters stay
    tied. Modules of all threads are built so inside.

    Example:
        >>> with parameters_on_meta():
        ...     model = nn.BatchNorm1d(4)
        >>> model.weight.is_meta, model.running_var.is_meta
        (True, False)
    """
    register = nn.Module.register_parameter

    def register_on_meta(
        self: nn.Module, name: str, param: nn.Parameter | None
    ) -> None:
        if param is not None and not param.is_meta:
            hollow: Any = param.detach().to("meta")
            made = type(param)(hollow, requires_grad=param.requires_grad)
            made.__dict__.update(param.__dict__)
            # The object itself is kept, by which others may know it.
            torch.utils.swap_tensors(param, made)  # type: ignore[no-untyped-call]
        register(self, name, param)

    with _lock:
        nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.register_parameter = register  # type: ignore[method-assign]


def build_hollow(factory: Callable[[], object]) -> object:
    """Returns what a factory builds, with parameters on the meta device.

    Raises:
        ProgramError: It needs the values of its weights.
    """
    try:
        with parameters_on_meta():
            return factory()
    except (NotImplementedError, RuntimeError) as error:
        # What torch says when a value is asked for; anything else is the model's own.
        if "meta" not in str(error):
            raise
        message = (
            "the model cannot be built without weights, since its own code reads their "
            f"values: {error}. Build it whole with weights='build'"
        )
        raise ProgramError(message) from error


def require_hollow(model: nn.Module, weights: Weights | Initializer) -> None:
    """Raises unless a model is on the meta device, and its weights can come as asked.

    Args:
        model: The model.
        weights: Where they are to come from.

    Raises:
        ProgramError: It has values already; or nothing sets one of its parameters.

    Example:
        >>> require_hollow(nn.Linear(2, 2), "reset")
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.ProgramError: weights='reset' needs a model without \
weights, and weight has values; pass a function that builds the model
    """
    if not callable(weights) and weights not in get_args(Weights):
        message = (
            f"weights must be one of {', '.join(get_args(Weights))}, or a function of a "
            f"module, got {weights!r}"
        )
        raise ProgramError(message)
    shown = "a function" if callable(weights) else repr(weights)
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            message = (
                f"weights={shown} needs a model without weights, and {name} has values; "
                "pass a function that builds the model"
            )
            raise ProgramError(message)
    if weights != "restore":
        require_initializers(model, weights if callable(weights) else None)


def is_hollow(model: nn.Module) -> bool:
    """Returns whether a parameter of a model is on the meta device."""
    return any(parameter.is_meta for parameter in model.parameters())


def move_to(model: nn.Module, device: torch.device) -> nn.Module:
    """Moves what a model has to a device, in place; what is on meta stays there.

    Example:
        >>> model = move_to(nn.Linear(2, 2, device="meta"), torch.device("cpu"))
        >>> model.weight.is_meta
        True
    """
    if not is_hollow(model):
        return model.to(device)
    # Parameters are replaced when they get their values.
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                parameter.data = parameter.data.to(device)
                module._parameters[name] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)
    return model
