"""Runs the code that builds a model, and keeps no weights."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import ProgramError
from drivetrain_parallel.meta.initialize import require_initializers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_parallel.meta.initialize import Initializer

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
            empty: Any = param.detach().to("meta")
            made = type(param)(empty, requires_grad=param.requires_grad)
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


def build_meta_model(factory: Callable[[], object]) -> object:
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


def require_meta_model(model: nn.Module, weights: str | Initializer) -> None:
    """Raises unless a model is on the meta device, and its weights can come as asked.

    Args:
        model: The model.
        weights: Where they are to come from.

    Raises:
        ProgramError: It has values already; or nothing sets one of its parameters.

    Example:
        >>> require_meta_model(nn.Linear(2, 2), "reset")
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.ProgramError: weights='reset' needs a model without \
weights, and weight has values; pass a function that builds the model
    """
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
