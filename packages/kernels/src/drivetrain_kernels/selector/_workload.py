"""One training step of the thing to be compiled, on example batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.selector._referenced_modules import referenced_modules

LossFunction = Callable[[Any, Any], Tensor]
"""Returns the scalar loss of (output, batch)."""

StepFunction = Callable[[Callable[..., Any], Any], Tensor]
"""Returns the scalar loss of (callable, batch); it steps no optimizer."""


class Workload:
    """What is run, verified and timed: forward, loss and backward on a batch.

    With `step`, that function is called with the callable and the batch. With `loss`,
    a tuple's first part is the input and the rest are targets. With neither, a tuple
    holds the positional arguments, a mapping the named ones, and the loss is the
    output's own `loss`, the output if that is a scalar, or a fixed weighted sum of
    what the output holds.

    Args:
        target: A module or function.
        batches: What it is called with; at least one.
        loss: Returns the loss of (output, batch).
        step: Returns the loss of (callable, batch).

    Attributes:
        device: Where the target computes: where its tensors are.
        held: Functions, objects and batches that may hold what a step changes.
        modules: The target, if it is one, and those that functions come to.
        leaves: Parameters and inputs that gradients are computed for, the target's
            first.

    Raises:
        SelectionError: There is no batch, a batch stands where a list of them should, or
            both `loss` and `step` are given.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        batches: object,
        *,
        loss: LossFunction | None = None,
        step: StepFunction | None = None,
    ) -> None:
        _require_callable(target)
        if not isinstance(batches, Sequence) or isinstance(batches, str):
            message = (
                "example_batches must be a list of batches, got one "
                f"{type(batches).__name__}; pass [batch], of a loader "
                "[next(iter(loader))]"
            )
            raise SelectionError(message)
        if not batches:
            message = "select() needs one example batch or more, got none"
            raise SelectionError(message)
        if loss is not None and step is not None:
            message = "select() takes loss or step, got both; step computes the loss"
            raise SelectionError(message)
        self.target = target
        self.batches = list(batches)
        self._loss = loss
        self._step = step
        self._weights: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}
        self.modules = referenced_modules(target, loss, step)
        inputs = [t for t in self.tensors(self.batches) if t.is_leaf]
        self.device = self._find_device()
        parameters = [p for module in self.modules for p in module.parameters()]
        leaves: dict[int, Tensor] = {id(t): t for t in (*parameters, *inputs)}
        # What may change in a step beside the modules.
        self.held = [one for one in (target, loss, step, *batches) if one is not None]
        self.leaves = [t for t in leaves.values() if t.requires_grad]

    @property
    def loss_name(self) -> str:
        """The name of the function that the loss comes from; empty for the output's."""
        found = self._step or self._loss
        return (
            "" if found is None else getattr(found, "__qualname__", repr(type(found)))
        )

    @property
    def called_as(self) -> str:
        """How a step calls what it was given, for an error that comes of it."""
        if self._step is not None:
            return "step is called with (callable, batch)"
        if self._loss is not None:
            return "loss is called with (output, batch)"
        return "pass loss or step if it is called otherwise"

    @property
    def module(self) -> nn.Module | None:
        """The target, if it is a module."""
        return self.target if isinstance(self.target, nn.Module) else None

    def _find_device(self) -> torch.device:
        every = (p for module in self.modules for p in module.parameters())
        found = next(every, next(iter(self.tensors(self.batches)), None))
        return torch.device("cpu") if found is None else found.device

    def require_repeatable(self) -> None:
        """Raises where a step would leave what no snapshot can put back."""
        parameters = [p for module in self.modules for p in module.parameters()]
        why = ""
        if any(t.grad_fn is not None for t in self.tensors(self.batches)):
            why = "a batch comes of a graph, which one backward uses up; detach() it"
        elif any(is_lazy(p) for p in parameters):
            why = "a parameter has no shape yet; run the model once before"
        elif any(p._post_accumulate_grad_hooks for p in parameters):
            why = "a parameter has hooks that run in backward; register them afterwards"
        if why:
            message = f"select() cannot try steps on this: {why}"
            raise SelectionError(message)

    def shapes_vary(self) -> bool:
        """Returns whether the batches differ in the shape of a tensor."""
        return len({self.signature(batch) for batch in self.batches}) > 1

    def signature(self, batch: Any) -> str:
        """Returns structure, shapes and dtypes of a batch as text."""
        kinds = [
            f"{tuple(x.shape)}{x.dtype}{x.device.type}"
            if isinstance(x, Tensor)
            else type(x).__name__
            for x in self.held_in(batch)
        ]
        return f"{pytree.tree_structure(batch)}|{'|'.join(kinds)}"

    def run(self, call: Callable[..., Any], batch: Any) -> Tensor:
        """Runs one step, and leaves the gradients in the leaves.

        Returns:
            The loss, detached.
        """
        if self.device.type != "cpu":
            # Of graphs that are replayed: what the last step returned may be written over.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        for leaf in self.leaves:
            leaf.grad = None
        loss = self.loss(call, batch)
        if loss.requires_grad:
            torch.autograd.backward(loss)
        return loss.detach()

    def loss(self, call: Callable[..., Any], batch: Any) -> Tensor:
        """Returns the loss of a batch.

        Raises:
            SelectionError: It is not a scalar tensor.
        """
        if self._step is not None:
            value: Any = self._step(call, batch)
        elif self._loss is not None:
            value = self._loss(_call_on_input(call, batch), batch)
        else:
            value = self._own_loss(_call_on_all(call, batch))
        if not isinstance(value, Tensor) or value.ndim:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value)
            message = f"the loss must be a scalar tensor, got {got}; reduce it"
            raise SelectionError(message)
        return value

    def _own_loss(self, output: Any) -> Tensor:
        found = getattr(output, "loss", None)
        if isinstance(found, Tensor) and not found.ndim:
            return found
        if isinstance(output, Tensor) and not output.ndim:
            return output
        parts = [self._weighted(t) for t in self.tensors(output)]
        if not parts:
            message = (
                f"the output holds no floating tensor, got {type(output).__name__}"
            )
            raise SelectionError(message)
        return torch.stack(parts).sum()

    def _weighted(self, value: Tensor) -> Tensor:
        # Weights that differ by element: the mean of a normalised output is constant,
        # and would let every gradient vanish.
        key = (value.shape, value.dtype, value.device)
        if key not in self._weights:
            places = torch.arange(value.numel(), device=value.device)
            self._weights[key] = places.cos().to(value.dtype).view(value.shape)
        return (value * self._weights[key]).float().mean()

    def tensors(self, tree: Any) -> list[Tensor]:
        """Returns the floating-point tensors of a batch or an output."""
        leaves = self.held_in(tree)
        return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]

    @staticmethod
    def held_in(tree: Any) -> list[Any]:
        """Returns the leaves of a tree, and those of mappings and objects in it."""
        found, seen, left = [], set[int](), [tree]
        while left:
            for one in pytree.tree_leaves(left.pop()):
                inner = dict(one) if isinstance(one, Mapping) else _attributes(one)
                if inner is None:
                    found.append(one)
                elif id(one) not in seen:
                    seen.add(id(one))
                    left.append(inner)
        return found


def _attributes(one: Any) -> dict[str, Any] | None:
    whole = isinstance(one, Tensor) or callable(one)
    return None if whole else getattr(one, "__dict__", None)


def _require_callable(target: object) -> None:
    if not callable(target):
        message = f"select() takes a module or function, got {target!r}"
        raise SelectionError(message)


def _call_on_input(call: Callable[..., Any], batch: Any) -> Any:
    if isinstance(batch, tuple | list):
        return call(batch[0])
    return _call_on_all(call, batch)


def _call_on_all(call: Callable[..., Any], batch: Any) -> Any:
    if isinstance(batch, tuple | list):
        return call(*batch)
    if isinstance(batch, Mapping):
        return call(**batch)
    return call(batch)
