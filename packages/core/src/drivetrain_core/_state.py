"""The program under construction: what optimizations change, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_core._model.blocks import called, repeated_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._optimizer.source import (
        OptimizerFactory,
        OptimizerSource,
        OptimizerWrapper,
    )
    from drivetrain_core.services.model_layout import AppliedLayout, LayoutPlan


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
        loss_of: Returns the loss of a model on a batch, as the program computes it.
        returns_loss: Whether the model itself computes the loss.
        data_size: Parts that a global batch is split into over the ranks.
        data_rank: Which of them this rank reads.
        layout_plan: What each axis of a mesh does to the model, if there is one.
        layout: What this rank has of the model, once it is laid over a mesh.
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
    loss_of: Callable[[nn.Module, Any], torch.Tensor]
    returns_loss: bool = False
    data_size: int = 1
    data_rank: int = 0
    layout_plan: LayoutPlan | None = None
    layout: AppliedLayout | None = None
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

    def models(self) -> list[nn.Module]:
        """Returns what this rank has of the model: one module for each of its stages."""
        return [self.module] if self.layout is None else self.layout.models()

    def owned(self) -> nn.Module:
        """Returns a module that holds all that this rank has of the model.

        Its names are those of the model: several stages of a rank have different ones.
        """
        return self.module if self.layout is None else self.layout.owned()

    def units(self) -> list[tuple[nn.Module, list[nn.Module]]]:
        """Returns what data parallel wraps: each root with the blocks inside it."""
        if self.layout is not None:
            return self.layout.units()
        return [(self.module, repeated_blocks(self.module, self.context.model.blocks))]

    def blocks(self) -> list[nn.Module]:
        """Returns this rank's repeated blocks, in order; of lists, what they hold."""
        return [m for _, blocks in self.units() for b in blocks for m in called(b)]

    def planned_config(self, name: str) -> Config:
        """Returns the configuration of an optimization of this plan, or an empty one."""
        for choice in self.choices:
            if choice.name == name:
                return choice.config
        return {}

    def is_planned(self, name: str) -> bool:
        """Returns whether the plan holds an optimization."""
        return any(choice.name == name for choice in self.choices)
