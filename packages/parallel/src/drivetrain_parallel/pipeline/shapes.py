"""What crosses each boundary, by shape and dtype, for micro-batches of any shape.

A skeleton of the model, with modules that know shapes alone, runs the model's own
forward on the real micro-batch. It allocates next to nothing and says nothing to other
ranks, so that each rank may ask whenever a batch comes in another shape.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_core.accelerators import isolated_rng
from drivetrain_core.extending import tensors_of
from drivetrain_parallel.pipeline.replicas import replace_module
from drivetrain_parallel.pipeline.stubs import (
    PlaceholderBlock,
    Relay,
    StageEnd,
    ZeroModule,
    signature_of,
    zeros_like_twin,
)
from drivetrain_parallel.pipeline.tree import tensor_at
from drivetrain_parallel.proof.copies import copy_structure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_parallel.pipeline.plan import Boundary, PipelinePlan

TensorShape = tuple[tuple[int, ...], torch.dtype]
"""The shape and dtype of a tensor."""


class _ShapeBlock(PlaceholderBlock):
    """Returns zeros of a block's shapes, and records what it takes."""

    def __init__(
        self,
        twin: nn.Module,
        *,
        index: int,
        output: Any,
        relay: Relay,
        before: Boundary | None,
        record: dict[int, list[TensorShape | None]],
        cut: Boundary | None,
        is_last: bool,
    ) -> None:
        super().__init__(twin, index=index, output=output, relay=relay, before=before)
        self._record, self._cut, self._is_last = record, cut, is_last
        self._known: dict[object, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._cut is not None:
            found = [tensor_at((args, kwargs), path) for path in self._cut.targets]
            self._record[self._index] = [_shape(t) for t in found]
            if self._is_last:
                raise StageEnd([])
        try:
            return zeros_like_twin(self.twin, args, kwargs, self._known)
        except (RuntimeError, NotImplementedError, ValueError):
            # Its shapes depend on data, as in a mixture of experts: what it returns
            # then has the shapes of what it takes, which the plan has checked.
            return super().forward(*args, **kwargs)


class _RecordingModule(ZeroModule):
    """Returns zeros, and records their shapes by the module's name and call."""

    def __init__(
        self,
        twin: nn.Module,
        name: str,
        record: dict[tuple[str, int, int], TensorShape],
        relay: Relay,
    ) -> None:
        super().__init__(twin)
        self._name, self._record, self._relay = name, record, relay

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        call = self._relay.next_call(self._name)
        for number, tensor in enumerate(tensors_of(output)):
            self._record[self._name, call, number] = (tuple(tensor.shape), tensor.dtype)
        return output


class BoundaryShapes:
    """Tells the shapes at each boundary for a micro-batch.

    Args:
        model: The whole model, before any block is taken out of it. It stays as it is.
        twin: Its copy on the meta device.
        plan: Where the boundaries are.
        loss_of: Runs the model to its loss.
    """

    def __init__(
        self,
        model: nn.Module,
        twin: nn.Module,
        plan: PipelinePlan,
        *,
        loss_of: Callable[[nn.Module, Any], torch.Tensor],
    ) -> None:
        """Builds the skeleton."""
        self._plan, self._loss_of = plan, loss_of
        self._relay = Relay()
        self._blocks: dict[int, list[TensorShape | None]] = {}
        self._modules: dict[tuple[str, int, int], TensorShape] = {}
        self._known: dict[object, tuple[tuple[TensorShape, ...], ...]] = {}
        self._parts: dict[int, Callable[..., tuple[TensorShape, ...]]] = {}
        self._skeleton = self._build(model, twin)

    def of(self, batch: Any) -> tuple[tuple[TensorShape, ...], ...]:
        """Returns the tensors of each boundary, for a micro-batch.

        Raises:
            PlanError: The micro-batch does not take the way that was planned.
        """
        key = signature_of(batch)
        if key not in self._known:
            self._known[key] = self._measure(batch)
        return tuple(
            self._parts.get(number, _whole)(shapes)
            for number, shapes in enumerate(self._known[key])
        )

    def learn(
        self, boundary: int, batch: Any, found: Sequence[tuple[int, ...]]
    ) -> None:
        """Remembers which part of each dimension this rank has at a boundary.

        Args:
            boundary: The boundary, from 0.
            batch: A micro-batch.
            found: The shapes that this rank really sends there for it.
        """
        self._parts.pop(boundary, None)
        whole = self.of(batch)[boundary]
        ratios = [
            [Fraction(part, size or 1) for part, size in zip(got, shape, strict=True)]
            for got, (shape, _) in zip(found, whole, strict=True)
        ]

        def part_of(shapes: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
            return tuple(
                (tuple(int(n * r) for n, r in zip(shape, ratio, strict=True)), dtype)
                for (shape, dtype), ratio in zip(shapes, ratios, strict=True)
            )

        self._parts[boundary] = part_of

    def _measure(self, batch: Any) -> tuple[tuple[TensorShape, ...], ...]:
        device = next(tensors_of(batch)).device
        self._skeleton._apply(lambda t: _on(t, device))  # type: ignore[no-untyped-call]
        self._blocks.clear()
        self._modules.clear()
        try:
            with torch.no_grad(), isolated_rng():
                self._loss_of(self._skeleton, batch)
        except StageEnd:
            pass
        finally:
            self._relay.clear()
        return tuple(self._tensors(boundary) for boundary in self._plan.boundaries)

    def _tensors(self, boundary: Boundary) -> tuple[TensorShape, ...]:
        taken = self._blocks.get(boundary.block, [None])
        sent = [
            self._modules.get((item.module, item.call, item.number))
            for item in boundary.modules
        ]
        found = [shape for shape in (*taken, *sent) if shape is not None]
        if len(found) != len(taken) + len(sent):
            raise PlanError(
                Code.GRAPH_BREAK,
                "pipeline",
                because=f"with this batch, block {boundary.block} is not reached as "
                "planned",
                fix="plan the pipeline with a batch like those that it trains on",
            )
        return tuple(found)

    def _build(self, model: nn.Module, twin: nn.Module) -> nn.Module:
        skeleton = copy_structure(
            model,
            lambda p: nn.Parameter(p.detach().to("meta"), requires_grad=False),
            torch.Tensor.clone,
        )
        plan = self._plan
        for name in plan.prologue:
            stub = _RecordingModule(
                twin.get_submodule(name), name, self._modules, self._relay
            )
            replace_module(skeleton, skeleton.get_submodule(name), stub)
        cuts = {boundary.block: boundary for boundary in plan.boundaries}
        twins = plan.blocks_of(twin)
        for index, block in enumerate(plan.blocks_of(skeleton)):
            stub_block = _ShapeBlock(
                twins[index],
                index=index,
                output=plan.outputs[index],
                relay=self._relay,
                before=plan.boundaries[0],
                record=self._blocks,
                cut=cuts.get(index),
                is_last=index == max(cuts),
            )
            replace_module(skeleton, block, stub_block)
        for name, _ in list(skeleton.named_parameters()):
            zero_parameter(skeleton, name)
        return skeleton


def zero_parameter(model: nn.Module, name: str) -> None:
    """Puts zeros without memory in the place of a parameter, under all its names.

    They are a buffer that is in no state dict.

    Args:
        model: The model.
        name: The name of the parameter in it.
    """
    parameter = model.get_parameter(name)
    zeros = _zeros(parameter)
    for module in model.modules():
        for key, own in list(module._parameters.items()):
            if own is parameter:
                del module._parameters[key]
                module.register_buffer(key, zeros, persistent=False)


def _whole(shapes: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
    return shapes


def _zeros(like: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    where = device or (None if like.is_meta else like.device)
    return torch.zeros((), dtype=like.dtype, device=where).expand(like.shape)


def _on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device == device:
        return tensor
    if tensor.is_meta or not any(tensor.stride()):
        return _zeros(tensor, device)
    return tensor.to(device)


def _shape(tensor: torch.Tensor | None) -> TensorShape | None:
    return None if tensor is None else (tuple(tensor.shape), tensor.dtype)
