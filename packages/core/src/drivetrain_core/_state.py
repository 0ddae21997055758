"""The program under construction: what optimizations change, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn

    from drivetrain_core._context import Context
    from drivetrain_core._optimization import Choice, Config
    from drivetrain_core._optimizer_source import (
        OptimizerFactory,
        OptimizerSource,
        OptimizerWrapper,
    )

__all__ = ["TrainingState"]


@dataclass(kw_only=True)
class TrainingState:
    """What `Optimization.apply` may change.

    Args:
        module: The user's model, on its device; parameters keep their names in it.
        model: What the loop calls: the module, or a wrapper such as DDP around it.
        device: Where the model is.
        context: The facts that the plan was checked against.
        choices: The whole plan that is being applied.
        optimizer_source: The recipe that the optimizer is built from, after the last
            optimization of the optimizer phase.
        loader: What the loop iterates over.
        num_micro_batches: Forward and backward passes of one optimizer step.
        mesh: The device mesh, once a parallel optimization made one.
        set_gradient_sync: Turns the reduction of gradients between ranks on or off
            for the next backward; None when there is nothing to reduce.
        undo: Called in reverse order to put global settings back.
    """

    module: nn.Module
    model: nn.Module
    device: torch.device
    context: Context
    choices: tuple[Choice, ...]
    optimizer_source: OptimizerSource
    loader: Iterable[Any]
    num_micro_batches: int = 1
    mesh: torch.distributed.device_mesh.DeviceMesh | None = None
    set_gradient_sync: Callable[[bool], None] | None = None
    undo: list[Callable[[], None]] = field(default_factory=list)

    def use_optimizer(self, factory: OptimizerFactory) -> None:
        """Replaces the user's optimizer by another one.

        Args:
            factory: Called with parameter groups that hold `params` and, when the
                user's optimizer has them, its `lr` and `weight_decay`.
        """
        self.optimizer_source = self.optimizer_source.replaced_by(factory)

    def wrap_optimizer(self, wrapper: OptimizerWrapper) -> None:
        """Puts another optimizer around the one that will be built.

        Args:
            wrapper: Called once with the built optimizer. What it returns may take two
                passes a step: if it has `needs_second_pass` and `perturb()`, the step
                runs the batch again inside `with optimizer.perturb():` when due.
        """
        self.optimizer_source = self.optimizer_source.wrapped_by(wrapper)

    def set_optimizer_options(self, **options: Any) -> None:
        """Sets options such as `fused` on every group of the optimizer to be built."""
        self.optimizer_source = self.optimizer_source.with_options(**options)

    def planned_config(self, name: str) -> Config:
        """Returns the configuration of an optimization of this plan, or an empty one."""
        for choice in self.choices:
            if choice.name == name:
                return choice.config
        return {}

    def is_planned(self, name: str) -> bool:
        """Returns whether the plan holds an optimization."""
        return any(choice.name == name for choice in self.choices)
