"""Compares plans of a model with one process, on as little of it as shows all kinds."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import Code, PlanError, ProgramError
from drivetrain_core.extending import batch_size, split_batch
from drivetrain_parallel.proof.give_values import give_values
from drivetrain_parallel.tensor.repeated import shortened
from drivetrain_parallel.tensor.verify import (
    LossOf,
    Verdict,
    reference_of,
    run_tensor_plan,
    verify_tensor_plan,
)

if TYPE_CHECKING:
    from torch import nn

    from drivetrain_parallel.proof.outputs import StepOutput
    from drivetrain_parallel.tensor.plan import TensorPlan
    from drivetrain_parallel.tensor.repeated import BlockLists

_SLOT = "tensor"

_MAX_WHOLE = 50_000_000
"""Parameters of a model that is verified with all its blocks in the end."""

_NUM_SAMPLES = 3
"""Samples that plans are compared on: a number that divides nothing by chance."""


class Trial:
    """Compares plans with one process, on a model with few blocks and samples.

    Args:
        model: The user's model; it is left as it is.
        batch: A batch on its device.
        loss_of: Returns the loss of (model, batch).
        lists: The model's lists of blocks.
        verify: False to ask only whether a plan runs.

    Raises:
        PlanError: The model has no weights, and does not run with a few blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        loss_of: LossOf,
        lists: BlockLists,
        *,
        verify: bool,
    ) -> None:
        """Cuts the model and the batch down, and computes what plans are held to."""
        self._loss_of, self.verify = loss_of, verify
        batch = _few_samples(model, batch, loss_of)
        self._batch = batch
        short = shortened(model, lists)
        is_meta = verify and any(p.is_meta for p in model.parameters())
        # Of a model without weights, a few blocks get some to be compared with.
        self._model = _float(give_values(short) if is_meta else short)
        try:
            self._reference = self._refer()
        # Code that counts on the number of blocks raises whatever it likes.
        except Exception as error:
            if is_meta:
                raise _no_few_blocks(error) from error
            self._model = _float(copy.deepcopy(model))
            self._reference = self._refer()
        size = sum(p.numel() for p in model.parameters())
        is_short = len(list(self._model.modules())) < len(list(model.modules()))
        fits = verify and size <= _MAX_WHOLE
        self._whole = model if is_short and fits else None

    def _refer(self) -> StepOutput | None:
        if self.verify:
            return reference_of(self._model, self._batch, self._loss_of)
        self._loss_of(copy.deepcopy(self._model), self._batch)
        return None

    def require(self, plan: TensorPlan, what: str) -> None:
        """Raises a `PlanError` unless a plan is exact."""
        verdict = self(plan)
        if not verdict.is_exact:
            raise _inexact(what, verdict)

    def confirm(self, plan: TensorPlan) -> None:
        """Raises a `PlanError` unless a plan is exact for all blocks of the model.

        Blocks that look alike may still differ, in what they do by their number. A
        model that is too large for this is not asked.
        """
        if self._whole is None:
            return
        whole = _float(give_values(copy.deepcopy(self._whole)))
        verdict = verify_tensor_plan(whole, self._batch, self._loss_of, plan)
        if not verdict.is_exact:
            raise _inexact(_SLOT, verdict)

    def __call__(self, plan: TensorPlan) -> Verdict:
        """Returns whether a plan is exact, or, unverified, whether it runs."""
        program = self._model, self._batch, self._loss_of
        if self.verify:
            return verify_tensor_plan(*program, plan, reference=self._reference)
        verdict = run_tensor_plan(*program, plan)
        return replace(verdict, is_exact=verdict.has_run)


def _inexact(what: str, verdict: Verdict) -> PlanError:
    return PlanError(
        Code.NUMERICS,
        what,
        because=f"it is not exact for this model: {verdict.because}",
        fix="" if what == "tensor" else f"leave {what} out",
    )


def _no_few_blocks(error: Exception) -> PlanError:
    return PlanError(
        Code.NOT_APPLICABLE,
        _SLOT,
        because="the model has no weights, and is proven with a few of its blocks, "
        f"with which it does not run: {type(error).__name__}: {error}",
        fix="plan it with its weights, on a machine that holds them",
    )


def _few_samples(model: nn.Module, batch: Any, loss_of: LossOf) -> Any:
    """Returns the first samples of a batch, or all where the loss needs them."""
    try:
        size = batch_size(batch)
        if size <= _NUM_SAMPLES:
            return batch
        few = split_batch(batch, (_NUM_SAMPLES, size - _NUM_SAMPLES))[0]
        with torch.no_grad():
            loss_of(copy.deepcopy(model), few)
    # A loss may ask for a certain batch; what it raises is its own.
    except (ProgramError, RuntimeError, ValueError, TypeError, IndexError):
        return batch
    return few


def _float(model: nn.Module) -> nn.Module:
    low = (torch.bfloat16, torch.float16)
    return model.float() if any(p.dtype in low for p in model.parameters()) else model
