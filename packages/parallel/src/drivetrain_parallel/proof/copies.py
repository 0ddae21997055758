"""Copies of a model whose tensors are given, and those that plans are proven on.

`copy.deepcopy` copies every weight. The copies here have modules of their own, which
may be replaced and hooked, around tensors that cost nothing.
"""

from __future__ import annotations

import contextlib
import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from drivetrain_core import Code, PlanError
from drivetrain_core.accelerators import isolated_rng
from drivetrain_core.extending import map_tensors
from drivetrain_core.numerics.constants import without_constants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _ForgetsRuns(TorchFunctionMode):
    """Inside, copies of what a forward has computed have no history and no values.

    Torch copies no such tensor. A copy with its values could pass for one that computes
    them anew.
    """

    def __init__(self, buffer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._buffer = buffer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            return self._buffer(torch.full_like(args[0].detach(), torch.nan))
        return func(*args, **(kwargs or {}))


def copy_structure(
    module: nn.Module,
    parameter: Callable[[nn.Parameter], nn.Parameter],
    buffer: Callable[[torch.Tensor], torch.Tensor],
) -> nn.Module:
    """Returns a copy of a module whose tensors are made by functions, ties kept.

    Args:
        module: What is copied; it stays as it is.
        parameter: Returns the copy's parameter for each of the module's.
        buffer: Returns the copy's buffer for each of the module's.

    Raises:
        PlanError: The module holds something that cannot be copied.
    """
    memo: dict[int, object] = {id(p): parameter(p) for p in module.parameters()}
    memo.update({id(b): buffer(b) for b in module.buffers()})
    try:
        with _ForgetsRuns(buffer):
            return copy.deepcopy(module, memo)
    except Exception as error:  # whatever an attribute's own copy function raises
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"{type(module).__name__} cannot be copied: {error}",
            fix="keep what cannot be copied out of the model's attributes",
        ) from error


def proof_copy(
    model: nn.Module, batch: Any, loss_of: Callable[[nn.Module, Any], torch.Tensor]
) -> tuple[nn.Module, Any]:
    """Returns a copy of a model, and a batch, whose values hide nothing.

    Gates and last layers that start at zero keep what lies behind them out of the loss
    and out of every gradient, and experts that start alike may be exchanged. In the copy
    such values are drawn, the same ones each time. All others share the model's memory.

    Args:
        model: The model; it is left as it is.
        batch: What it is proven on.
        loss_of: Returns the loss of a model on a batch.

    Returns:
        The copy and the batch; with the values as given where the model does not run on
        drawn ones, or its loss is not finite then.

    Raises:
        PlanError: The copy computes with parameters of the model itself, which a
            function holds; functions are not copied.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = nn.init.zeros_(layer.weight)
        >>> copied, _ = proof_copy(layer, torch.eye(2), lambda m, b: m(b).sum())
        >>> bool((copied.weight != 0).all()), layer.weight.tolist()
        (True, [[0.0, 0.0]])
    """
    generator = torch.Generator().manual_seed(0)
    drawn = {
        id(p): without_constants(p.detach(), generator) for p in model.parameters()
    }
    samples = map_tensors(lambda t: without_constants(t, generator, zeros=False), batch)
    with isolated_rng():
        with contextlib.suppress(Exception):  # The model's own code.
            loss = loss_of(with_values(model, drawn), samples)
            if bool(loss.isfinite()):
                _require_copied(model, loss)
                return with_values(model, drawn), samples
        _require_copied(model, loss_of(with_values(model), batch))
    return with_values(model), batch


def _require_copied(model: nn.Module, loss: torch.Tensor) -> None:
    """Refuses a model if the loss of its copy depends on its own parameters."""
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not own or not loss.requires_grad:
        return
    # Nothing runs backwards unless it leads to one of them.
    found: Any = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
    held = [n for n, grad in zip(own, found, strict=True) if grad is not None]
    if held:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"the loss of a copy of {type(model).__name__} depends on the "
            f"model's own {held[0]!r}, which is no parameter of the copy",
            fix="call modules by way of self, and hold no function that is bound to one "
            "of them, such as a lambda",
        )


def with_values(
    model: nn.Module, values: Mapping[int, torch.Tensor] = MappingProxyType({})
) -> nn.Module:
    """Returns a copy with parameters of its own, by default on the model's memory.

    Args:
        model: What is copied; it stays as it is.
        values: Others for some of its parameters, by their `id`.
    """

    def parameter(old: nn.Parameter) -> nn.Parameter:
        value = values.get(id(old), old.detach())
        new = nn.Parameter(value, requires_grad=old.requires_grad)
        new.__dict__.update(vars(old))
        return new

    return copy_structure(model, parameter, torch.Tensor.clone)
