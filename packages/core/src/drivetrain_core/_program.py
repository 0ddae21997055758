"""What the user hands over: model, data, loss, optimizer, as one value.

The same value is built upon by `accelerate` in the user's process and by every trial
in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from drivetrain_core._data.batch import tensors_of
from drivetrain_core._errors import ProgramError
from drivetrain_core.accelerators._isolated_rng import isolated_rng
from drivetrain_core.services._lookup import get_service

if TYPE_CHECKING:
    from drivetrain_core._model.meta_model import Weights
    from drivetrain_core._optimizer.source import OptimizerFactory
    from drivetrain_core.services.model_layout import ModelLayout

ForwardFunction = Callable[[nn.Module, Any], Any]
"""Runs the model on a batch and returns its output."""

_WRAPPERS = {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}

LossFunction = Callable[[Any, Any], torch.Tensor]
"""Returns the scalar mean loss of (output, batch)."""


def default_forward(model: nn.Module, batch: Any) -> Any:
    """Calls the model as its batch suggests.

    A mapping becomes keyword arguments; of a tuple or list the first part is the
    input and the rest are targets; anything else is the input itself.
    """
    if isinstance(batch, tuple | list):
        return model(batch[0])
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


def default_loss(output: Any, batch: Any) -> torch.Tensor:
    """Returns the loss that the model itself computed.

    Raises:
        ProgramError: The output holds none.
    """
    del batch
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]  # type: ignore[no-any-return]
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    message = (
        f"the model returned {type(output).__name__}, which holds no loss; pass "
        "loss=function(output, batch)"
    )
    raise ProgramError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A single-process training program, not yet built.

    Args:
        model: A module, or a function without arguments that returns one.
        optimizer: A function from parameters to an optimizer, or an optimizer.
        data: An iterable of batches; a `DataLoader` leaves most to choose from.
        loss: Returns the scalar mean loss of (output, batch); None when the model
            returns its own loss.
        forward: Runs the model on a batch; `default_forward` when None.
        scheduler: A function from the optimizer to a learning-rate scheduler that is
            stepped after each optimizer step.
        max_grad_norm: Clips the gradient to this total norm before each step.
        seed: Seeds weights of a factory and the order of shuffled data.
        weights: Where the first weights come from; see `accelerate`.
    """

    model: nn.Module | Callable[[], nn.Module]
    optimizer: torch.optim.Optimizer | OptimizerFactory
    data: Iterable[Any]
    loss: LossFunction | None = None
    forward: ForwardFunction | None = None
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    max_grad_norm: float | None = None
    seed: int = 0
    weights: Weights | Callable[[nn.Module], object] = "build"

    def build_model(self) -> nn.Module:
        """Returns the module; a factory is called under the program's seed.

        Unless its weights are built with it, its parameters are on the meta device.

        Raises:
            ProgramError: The factory returns no module, or the model is not trainable,
                or cannot be built without weights.
        """
        model: object = self.model
        if not isinstance(model, nn.Module):
            if not callable(model):
                message = (
                    "model must be a torch.nn.Module or a function that returns one, "
                    f"got {type(model).__name__}"
                )
                raise ProgramError(message)
            with isolated_rng(self.seed):
                if self.weights == "build":
                    model = model()
                else:
                    model = _layout().build_meta_model(model)
        if not isinstance(model, nn.Module):
            message = f"the model factory returned {type(model).__name__}, not a Module"
            raise ProgramError(message)
        kinds = {base.__name__ for m in model.modules() for base in type(m).__mro__}
        if around := _WRAPPERS & kinds:
            message = (
                f"the model is in {min(around)} already, around which a plan "
                "puts its own: hand over the module inside, or as it was before"
            )
            raise ProgramError(message)
        if not any(p.requires_grad for p in model.parameters()):
            message = "the model has no parameter that requires a gradient"
            raise ProgramError(message)
        if self.weights != "build":
            _layout().check_meta_model(model, self.weights)
        return model

    def held(self) -> tuple[Any, ...]:
        """Returns the functions of the user, which may hold a state of their own."""
        return self.loss, self.forward, self.optimizer, self.scheduler

    def loss_of(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Returns the loss of one batch.

        Raises:
            ProgramError: The loss is not a scalar tensor with a gradient.
        """
        output = (self.forward or default_forward)(model, batch)
        loss = (self.loss or default_loss)(output, batch)
        check_loss(loss)
        return loss


def _layout() -> ModelLayout:
    layout: ModelLayout = get_service("model_layout")
    return layout


def check_loss(loss: object) -> None:
    """Raises a `ProgramError` unless the loss is a scalar that can be differentiated.

    Example:
        >>> check_loss(torch.ones(3))
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.ProgramError: the loss must be a scalar tensor, got \
shape (3,); pass loss= if it is an output, or reduce it, for example with .mean()
    """
    if not isinstance(loss, torch.Tensor):
        message = f"the loss must be a scalar tensor, got {type(loss).__name__}"
        raise ProgramError(message)
    if loss.ndim:
        message = (
            f"the loss must be a scalar tensor, got shape {tuple(loss.shape)}; pass loss= "
            "if it is an output, or reduce it, for example with .mean()"
        )
        raise ProgramError(message)
    if not loss.requires_grad:
        message = "the loss does not depend on any parameter that requires a gradient"
        raise ProgramError(message)


def check_loss_function(loss: object, batch: object) -> None:
    """Raises a `ProgramError` for a loss of torch where the target is a part of the batch.

    Example:
        >>> check_loss_function(nn.MSELoss(), (torch.ones(2), torch.ones(2)))
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.ProgramError: loss is called with (output, batch), and \
MSELoss takes no tuple as a target; pass loss=lambda output, batch: criterion(output, batch[1])
    """
    if isinstance(loss, _Loss) and not isinstance(batch, torch.Tensor):
        message = (
            f"loss is called with (output, batch), and {type(loss).__name__} takes no "
            f"{type(batch).__name__} as a target; pass loss=lambda output, batch: "
            "criterion(output, batch[1])"
        )
        raise ProgramError(message)


def check_batch(batch: object) -> None:
    """Raises a `ProgramError` unless the batch holds a tensor."""
    if next(tensors_of(batch), None) is None:
        message = f"a batch must hold tensors, got {type(batch).__name__}"
        raise ProgramError(message)
