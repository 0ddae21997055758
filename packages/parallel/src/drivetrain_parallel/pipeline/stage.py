"""One stage of a pipeline: the user's model with the other stages' parts taken out."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import tensors_of
from drivetrain_parallel.custom_gradient import custom_gradient
from drivetrain_parallel.pipeline.replicas import meta_twin, replace_module, shared_copy
from drivetrain_parallel.pipeline.shapes import (
    BoundaryShapes,
    TensorShape,
    zero_parameter,
)
from drivetrain_parallel.pipeline.stubs import (
    DroppedModule,
    PlaceholderBlock,
    ReceivedModule,
    Relay,
    StageEnd,
    ZeroModule,
    only_in_stage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_parallel.pipeline.plan import ModuleOutput, PipelinePlan


class StageModule(nn.Module):
    """Runs one stage's part of a forward, and on the last stage the loss.

    It is what a schedule calls, and what FSDP2 or `replicate` must wrap last: its
    forward ends normally, while the model's own is left in the middle.

    Args:
        model: The user's model, carved for this stage.
        plan: How the model is split.
        stage_index: Which stage this is.
        loss_of: Runs the model to its scalar loss on a micro-batch.
        relay: What the stubs in the model share.
        shapes: Tells what crosses the boundaries.

    Attributes:
        model: The model; parameters have the names that they have in the whole one.
    """

    model: nn.Module

    def __init__(
        self,
        model: nn.Module,
        plan: PipelinePlan,
        stage_index: int,
        *,
        loss_of: Callable[[nn.Module, Any], torch.Tensor],
        relay: Relay,
        shapes: BoundaryShapes,
    ) -> None:
        """Registers the model and nothing else."""
        super().__init__()
        self.model = model
        self.stage_index = stage_index
        self.plan = plan
        self.shapes = shapes
        self._loss_of, self._relay = loss_of, relay
        self._micro_batches: Sequence[Any] = ()
        self._weights: Sequence[float] = ()
        self._checks = True
        self._records = False

    @property
    def is_first(self) -> bool:
        """Returns whether the stage runs what comes before the blocks."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Returns whether the stage computes the loss."""
        return self.stage_index == self.plan.num_stages - 1

    @property
    def blocks(self) -> list[nn.Module]:
        """Returns the blocks that this stage runs, in order."""
        stage = self.plan.stages[self.stage_index]
        return self.plan.blocks_of(self.model)[stage.begin : stage.end]

    def set_micro_batches(
        self, micro_batches: Sequence[Any], weights: Sequence[float]
    ) -> None:
        """Sets what `forward` runs on, by its `index`, and the weights of the losses."""
        self._micro_batches, self._weights = micro_batches, weights

    @contextlib.contextmanager
    def unchecked(self) -> Iterator[None]:
        """Lets `forward` return tensors of other shapes than the next stage expects."""
        self._checks = False
        try:
            yield
        finally:
            self._checks = True

    def input_shapes(self, batch: Any) -> tuple[TensorShape, ...]:
        """Returns the shapes and dtypes of what this stage receives."""
        return () if self.is_first else self.shapes.of(batch)[self.stage_index - 1]

    def output_shapes(self, batch: Any) -> tuple[TensorShape, ...]:
        """Returns the shapes and dtypes of what this stage sends."""
        return () if self.is_last else self.shapes.of(batch)[self.stage_index]

    def forward(self, *received: torch.Tensor, index: torch.Tensor) -> Any:
        """Runs the stage on one micro-batch.

        Args:
            received: What the stage before has sent; ignored by the first.
            index: The number of the micro-batch, as a tensor of one element.

        Returns:
            The weighted loss on the last stage, else the tensors for the next.

        Raises:
            PlanError: The model does not take the way that was planned.
        """
        number = int(index)
        batch = self._micro_batches[number]
        if not self.is_first:
            self._receive([_enter(tensor) for tensor in received])
        elif not self._records:
            # Now, and not when it was carved: what was hooked to those modules since
            # then, such as the sum over ranks of `tensor`, comes before the record.
            _record_modules(self.model, self.plan.boundaries[0].modules, self._relay)
            self._records = True
        self._relay.runs = True
        try:
            loss = self._loss_of(self.model, batch)
        except StageEnd as end:
            return self._sent(end.tensors, batch)
        finally:
            self._relay.clear()
        if not self.is_last:
            raise PlanError(
                Code.GRAPH_BREAK,
                "pipeline",
                because=f"on stage {self.stage_index} the model came to its loss without "
                f"calling block {self.plan.stages[self.stage_index].end}",
                fix="plan the pipeline with a batch like those that it trains on",
            )
        return loss * self._weights[number]

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        boundary = self.plan.boundaries[self.stage_index - 1]
        num_flowing = len(boundary.sources)
        self._relay.received = tensors[:num_flowing]
        self._relay.modules.update(
            zip(boundary.modules, tensors[num_flowing:], strict=True)
        )

    def _sent(self, flowing: list[torch.Tensor], batch: Any) -> Any:
        boundary = self.plan.boundaries[self.stage_index]
        passing = [self._relay.modules.get(item) for item in boundary.modules]
        for item, tensor in zip(boundary.modules, passing, strict=True):
            if tensor is None:
                raise PlanError(
                    Code.GRAPH_BREAK,
                    "pipeline",
                    because=f"{item.module} was planned to be called "
                    f"{item.call + 1} times before the blocks, and was not",
                    fix="plan the pipeline with a batch like those that it trains on",
                )
        tensors = [*flowing, *(t for t in passing if t is not None)]
        if not self._checks:
            return tuple(tensors)
        expected = self.output_shapes(batch)
        for tensor, (shape, _) in zip(tensors, expected, strict=True):
            if tuple(tensor.shape) != shape:
                raise PlanError(
                    Code.GRAPH_BREAK,
                    "pipeline",
                    because=f"stage {self.stage_index} computed a tensor of shape "
                    f"{tuple(tensor.shape)} for the next stage, which expects {shape}",
                    fix="keep what goes from block to block whole on each rank",
                )
        return tuple(
            _leave(tensor, dtype)
            for tensor, (_, dtype) in zip(tensors, expected, strict=True)
        )


def build_stages(
    model: nn.Module,
    plan: PipelinePlan,
    stage_indices: Sequence[int],
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    *,
    attributes: nn.Module | None = None,
) -> list[StageModule]:
    """Returns the stages that a rank holds, made out of the whole model.

    The first is carved out of the model itself, in place: what other stages hold is
    gone from it afterwards. Further ones are structures of their own around the
    parameters, which they take out of the model.

    Args:
        model: The whole model that the plan was made for, on any device, meta as well.
        plan: How it is split.
        stage_indices: The stages of this rank, in order.
        loss_of: Runs the model to its scalar loss on a micro-batch.
        attributes: A whole model whose modules answer for attributes of those that are
            replaced; their copies on the meta device do when it is None.

    Raises:
        PlanError: The plan is not for this model, or the indices are none of its
            stages; the model is as it was.

    Example:
        >>> from drivetrain_parallel.pipeline import plan_pipeline
        >>> def loss_of(model, batch):
        ...     return model(batch).square().mean()
        >>> model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        >>> plan = plan_pipeline(model, torch.ones(2, 4), loss_of, 4)
        >>> (stage,) = build_stages(model, plan, [2], loss_of)
        >>> [name for name, _ in stage.model.named_parameters()]
        ['2.weight', '2.bias']
    """
    _check_fit(model, plan, stage_indices)
    twin = meta_twin(model)
    shapes = BoundaryShapes(model, twin, plan, loss_of=loss_of)
    models = [model, *(shared_copy(model) for _ in stage_indices[1:])]
    stages = []
    for index, own in zip(stage_indices, models, strict=True):
        relay = Relay()
        _carve(own, twin, attributes, plan, index, relay)
        stages.append(
            StageModule(own, plan, index, loss_of=loss_of, relay=relay, shapes=shapes)
        )
    return stages


def _check_fit(
    model: nn.Module, plan: PipelinePlan, stage_indices: Sequence[int]
) -> None:
    wrong = [i for i in stage_indices if not 0 <= i < plan.num_stages]
    if wrong or not stage_indices or len(set(stage_indices)) != len(stage_indices):
        raise PlanError(
            Code.CONFIG,
            "pipeline",
            because=f"stages must be different numbers from 0 to {plan.num_stages - 1}, "
            f"got {list(stage_indices)}",
        )
    try:
        blocks = plan.blocks_of(model)
    except AttributeError:
        blocks = []
    carved = any(isinstance(block, PlaceholderBlock) for block in blocks)
    if len(blocks) != plan.num_blocks or carved:
        found = "has been carved already" if carved else f"has {len(blocks)}"
        raise PlanError(
            Code.FINGERPRINT,
            "pipeline",
            because=f"the plan is for {plan.num_blocks} blocks in "
            f"{plan.container or 'the model itself'!r}, and this model {found}",
            fix="build the stages from the whole model that was planned",
        )


def _carve(
    model: nn.Module,
    twin: nn.Module,
    attributes: nn.Module | None,
    plan: PipelinePlan,
    index: int,
    relay: Relay,
) -> None:
    stage = plan.stages[index]
    entry = plan.boundaries[index - 1] if index else None
    exit_ = plan.boundaries[index] if index < plan.num_stages - 1 else None
    blocks, twins = plan.blocks_of(model), plan.blocks_of(twin)
    for number, block in enumerate(blocks):
        if stage.begin <= number < stage.end:
            continue
        placeholder = PlaceholderBlock(
            twins[number],
            index=number,
            output=plan.outputs[number],
            relay=relay,
            before=plan.boundaries[0],
            entry=entry if number == stage.begin - 1 else None,
            exit_=exit_ if number == stage.end else None,
        )
        replace_module(model, block, placeholder)
    real = attributes or twin
    found = {
        name: model.get_submodule(name)
        for name in (*stage.received, *stage.zeroed, *stage.dropped)
    }
    for name, old in found.items():
        copied, answers = twin.get_submodule(name), real.get_submodule(name)
        new: nn.Module
        if name in stage.received:
            new = ReceivedModule(copied, name, relay, answers)
        elif name in stage.zeroed:
            new = ZeroModule(copied)
        else:
            new = DroppedModule(copied, name)
        replace_module(model, old, new)
    for name in stage.zeroed_parameters:
        zero_parameter(model, name)
    if entry is not None or exit_ is not None:
        only_in_stage(model, relay, stage.begin - 1 if index else stage.end)


def _record_modules(
    model: nn.Module, outputs: Sequence[ModuleOutput], relay: Relay
) -> None:
    """Keeps what later stages need of the modules before the blocks."""
    for name in dict.fromkeys(item.module for item in outputs):

        def record(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            del module, args
            call = relay.next_call(name)
            for item in outputs:
                if item.module == name and item.call == call:
                    relay.modules[item] = list(tensors_of(output))[item.number]

        model.get_submodule(name).register_forward_hook(record)


def _enter(tensor: torch.Tensor) -> torch.Tensor:
    # A copy, so that a block may change it in place without harm to the buffer; its
    # gradient is contiguous, as point-to-point messages ask for.
    return custom_gradient(tensor, torch.clone, torch.Tensor.contiguous)


def _leave(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor that a schedule can send, and detach in place.

    A copy of its own: what a block returns may be a view, may not be contiguous, and
    may be kept for its backward, which a detached one would break.
    """
    copied = tensor.clone(memory_format=torch.contiguous_format)
    return copied.to(dtype)
