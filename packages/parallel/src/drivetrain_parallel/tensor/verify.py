"""Whether a plan of tensor parallelism computes what one process does.

All ranks are simulated in this process, so a wrong plan is found before any rank
starts. The loss and every gradient are compared on every rank.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.extending import map_tensors
from drivetrain_core.numerics.parameter_usage import without_dropout
from drivetrain_parallel.proof.outputs import StepOutput, distance, step_output
from drivetrain_parallel.tensor.apply import apply_tensor_plan
from drivetrain_parallel.tensor.canonical import full_gradients
from drivetrain_parallel.tensor.loss import local_loss, loss_context
from drivetrain_parallel.torch_internals import on_each_rank, per_rank, simulated_ranks

if TYPE_CHECKING:
    from torch import nn

    from drivetrain_parallel.tensor.plan import TensorPlan

LossOf = Callable[["nn.Module", Any], torch.Tensor]
"""Returns the scalar loss of (model, batch)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a plan is exact.

    Args:
        is_exact: Whether loss and gradients are those of one process.
        because: What is wrong, in words; empty when the plan is exact.
        loss_error: Of the loss, relative; NaN where the plan did not run.
        worst: The parameter whose gradient is furthest off.
        gradient_error: How far that is, relative.
        has_run: Whether forward and backward ran to their end.
    """

    is_exact: bool
    because: str = ""
    loss_error: float = math.nan
    worst: str = ""
    gradient_error: float = math.nan
    has_run: bool = True


def reference_of(model: nn.Module, batch: Any, loss_of: LossOf) -> StepOutput:
    """Returns loss and gradients of one process; the model is not changed."""
    model = copy.deepcopy(model)
    with without_dropout(model):
        return step_output(model, batch, loss_of)


def verify_tensor_plan(
    model: nn.Module,
    batch: Any,
    loss_of: LossOf,
    plan: TensorPlan,
    *,
    reference: StepOutput | None = None,
) -> Verdict:
    """Compares a plan with one process, on a copy of the model.

    Args:
        model: The user's model, in fp32 and with memory for two copies.
        batch: A batch on the model's device.
        loss_of: Returns the loss of (model, batch).
        plan: Of this model.
        reference: Of the same model and batch, where it is known.
    """
    reference = reference or reference_of(model, batch, loss_of)
    try:
        loss, gradients = _simulated(model, batch, loss_of, plan)
    # Whatever the user's code raises when shapes are other than it expects.
    except Exception as error:  # noqa: BLE001
        return Verdict(is_exact=False, because=_first_line(error), has_run=False)
    return _compare(loss, gradients, reference)


def run_tensor_plan(
    model: nn.Module, batch: Any, loss_of: LossOf, plan: TensorPlan
) -> Verdict:
    """Returns whether a plan runs, for a model whose values are not there.

    Args:
        model: On any device, `meta` included.
        batch: A batch on the model's device.
        loss_of: Returns the loss of (model, batch).
        plan: Of this model.
    """
    try:
        _simulated(model, batch, loss_of, plan)
    # As above.
    except Exception as error:  # noqa: BLE001
        return Verdict(is_exact=False, because=_first_line(error), has_run=False)
    return Verdict(is_exact=False, because="its values were not compared")


def _simulated(
    model: nn.Module, batch: Any, loss_of: LossOf, plan: TensorPlan
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the loss and the gradients of a copy, with a value for each rank."""
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    with simulated_ranks(plan.degree) as mesh, without_dropout(model):
        # Of a model with few blocks, the plan names all of them.
        apply_tensor_plan(model, mesh, plan, missing_ok=True, src_data_rank=None)
        _give_each_rank_its_buffers(model)
        with loss_context(plan):
            loss = local_loss(loss_of(model, map_tensors(on_each_rank, batch)))
            loss.backward()  # type: ignore[no-untyped-call]
        return loss, full_gradients(model)


def _give_each_rank_its_buffers(model: nn.Module) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = on_each_rank(buffer)


def _compare(
    loss: torch.Tensor, gradients: dict[str, torch.Tensor], reference: StepOutput
) -> Verdict:
    """Compares every rank, and tells of the one that is furthest off."""
    losses = per_rank(loss.detach())
    each = {name: per_rank(gradient) for name, gradient in gradients.items()}
    ranks = max([len(losses), *(len(values) for values in each.values())])
    found = [
        distance(
            reference,
            StepOutput(
                float(losses[rank % len(losses)]),
                {name: values[rank % len(values)] for name, values in each.items()},
            ),
        )
        for rank in range(ranks)
    ]
    worst = max(found, key=lambda one: (bool(one.because), one.gradient))
    return Verdict(
        is_exact=not worst.because,
        because=worst.because,
        loss_error=max(
            (one.loss for one in found),
            key=lambda error: math.inf if math.isnan(error) else error,
        ),
        worst=worst.worst,
        gradient_error=worst.gradient,
    )


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {line}"[:200]
