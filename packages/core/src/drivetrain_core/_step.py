"""One training step: micro-batches, gradients, clipping, and the optimizer.

This is the hot path: what it does beyond hand-written code is measured by the bar
`step overhead`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._data.batch import batch_size, split_batch
from drivetrain_core._errors import Code, PlanError, ProgramError
from drivetrain_core._program import check_loss, default_forward, default_loss
from drivetrain_core.services.batch_plan import BatchPlan, RankBatch

if TYPE_CHECKING:
    from drivetrain_core._program import Program
    from drivetrain_core._state import TrainingState
    from drivetrain_core._watch import Watch
    from drivetrain_core.services.model_layout import PipelinePasses


logger = logging.getLogger(__name__)


class TrainStep:
    """Runs whole optimizer steps on global batches.

    Args:
        program: The user's loss, forward, scheduler and clipping.
        state: The built model and loader.
        optimizer: The built optimizer.
        batch_plan: How the global batch is split over ranks and micro-batches.

    Not thread-safe: one loop drives it.

    Attributes:
        watch: Told of each step until it has seen enough of them; None by default.
        max_grad_norm: To which total norm a step clips the gradient; None for not at all.
    """

    def __init__(
        self,
        program: Program,
        state: TrainingState,
        optimizer: torch.optim.Optimizer,
        batch_plan: BatchPlan,
        scheduler: Any = None,
    ) -> None:
        """Resolves everything that does not change between steps."""
        self._model = state.model
        self._parameters = list(state.owned().parameters())
        self._forward = program.forward or default_forward
        self._loss = program.loss or default_loss
        self.max_grad_norm = program.max_grad_norm
        self._set_gradient_sync = state.set_gradient_sync
        self._optimizer = optimizer
        # An optimizer that looks at the gradient twice, as sharpness-aware ones do.
        self._two_pass: Any = optimizer if hasattr(optimizer, "perturb") else None
        self._scheduler = scheduler
        self._num_micro_batches = state.num_micro_batches
        self._plan = batch_plan.for_rank(state.data_rank)
        self._layout = state.layout
        self._pipeline = None if state.layout is None else state.layout.pipeline()
        self._size = sum(self._plan.sizes)
        self._whole = self._plan.weights == (1.0,)
        self.watch: Watch | None = None
        owned = {
            "max_grad_norm": self.max_grad_norm is not None,
            "scheduler": scheduler is not None,
            "micro_batch": self._num_micro_batches > 1,
        }
        unused = [name for name, is_asked in owned.items() if is_asked]
        self._bypassed: Any = None
        if unused and state.context.loop.owns_step:
            self._bypassed = optimizer.register_step_pre_hook(
                partial(self._warn_bypassed, ", ".join(unused))
            )
        self._divide_loss()

    def _warn_bypassed(self, unused: str, *_: Any) -> None:
        """Says, at a first step that is not taken here, what is left out of it."""
        self._bypassed.remove()
        logger.warning(
            "optimizer.step() was called past train_step, which leaves out %s: train by "
            "train_step(batch), or pass own_loop=True and step by optimizer_step()",
            unused,
        )

    def _divide_loss(self) -> None:
        """Computes the loss from shards of the output, where the plan says so."""
        divided = None if self._layout is None else self._layout.divided_loss()
        if divided is None:
            return
        loss_of, accumulate = self._loss, self.accumulate

        def whole(output: Any, batch: Any) -> torch.Tensor:
            return divided.whole(loss_of(output, batch))

        def inside(batch: Any) -> torch.Tensor:
            with divided.context():
                return accumulate(batch)

        self._loss, self.accumulate = whole, inside  # type: ignore[method-assign]

    def __call__(self, batch: Any) -> torch.Tensor:
        """Trains on one batch and returns its loss, detached.

        Args:
            batch: This rank's part of a global batch, as the loader yields it.

        Returns:
            The mean loss over the batch, of the first pass where an optimizer takes
            two; with several ranks, this rank's share, whose
            mean over the ranks is the mean over the global batch.

        Raises:
            ProgramError: The loss is not a scalar, or the batch holds no tensor.
        """
        if self.watch is not None and not self.watch.step():
            self.watch = None
        try:
            loss = self.accumulate(batch)
            if self._two_pass is not None:
                self.second_pass(batch)
            self.optimizer_step()
        except BaseException as error:
            # A loop may leave the batch out: the next one has its own gradient alone.
            self._optimizer.zero_grad(set_to_none=True)
            if "find_unused_parameters" not in str(error):
                raise
            because = (
                "a step before did not use every parameter that requires a gradient"
            )
            fix = 'name it as ("ddp", {"find_unused_parameters": True})'
            raise PlanError(Code.ERROR, "ddp", because=because, fix=fix) from error
        return loss

    def accumulate(self, batch: Any) -> torch.Tensor:
        """Adds the batch's gradient to `.grad` and returns its loss, detached."""
        if self._pipeline is not None:
            return self._run_pipeline(self._pipeline, batch)
        if self._whole:
            loss = self.loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        shares = self._shares(batch_size(batch))
        single = len(shares.sizes) == 1
        parts = [batch] if single else split_batch(batch, shares.sizes)
        total: torch.Tensor | None = None
        last = len(parts) - 1
        for index, (part, weight) in enumerate(zip(parts, shares.weights, strict=True)):
            if self._set_gradient_sync is not None:
                self._set_gradient_sync(index == last)
            loss = self.loss_of(part)
            weighted = loss * weight
            weighted.backward()  # type: ignore[no-untyped-call]
            share = weighted.detach()
            total = share if total is None else total + share
        assert total is not None
        return total

    def loss_of(self, batch: Any) -> torch.Tensor:
        """Returns the loss of a batch or of a part of one, to go backward from.

        Raises:
            ProgramError: The loss is not a scalar, or does not depend on the model.
        """
        loss = self._loss(self._forward(self._model, batch), batch)
        check_loss(loss)
        return loss

    def _run_pipeline(self, pipeline: PipelinePasses, batch: Any) -> torch.Tensor:
        size = batch_size(batch)
        shares = self._shares(size)
        parts = split_batch(batch, shares.sizes)
        try:
            return pipeline.run(parts, list(shares.weights))
        except PlanError as error:
            if size == self._size or error.code is not Code.CONFIG:
                raise
            raise PlanError(
                error.code,
                error.optimization,
                because=f"{error.because}, out of a batch of {size} samples where full "
                f"ones have {self._size}",
                fix="leave smaller batches out, with drop_last=True in a DataLoader, or use gpipe",
            ) from error

    def second_pass(self, batch: Any) -> None:
        """Runs the batch again where the optimizer asks for it, at its own weights.

        Between `accumulate` and `optimizer_step`; does nothing for most optimizers.
        """
        if self._two_pass is None or not self._two_pass.needs_second_pass:
            return
        self._clip()
        with self._two_pass.perturb():
            self.accumulate(batch)

    def optimizer_step(self) -> None:
        """Clips if asked, steps the optimizer and the scheduler, clears gradients."""
        if self._bypassed is not None:
            self._bypassed.remove()
            self._bypassed = None
        self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scheduler is not None:
            self._scheduler.step()

    def _clip(self) -> None:
        if self.max_grad_norm is not None:
            self.clip(self.max_grad_norm)

    def clip(self, max_norm: float) -> torch.Tensor:
        """Scales gradients down to a total norm over all ranks; returns the norm."""
        if self._layout is None:
            return torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)
        return self._layout.clip_grad_norm(self._parameters, max_norm)

    def _shares(self, size: int) -> RankBatch:
        """Returns the split for a batch; the last one of an epoch may be smaller."""
        if size == self._size:
            return self._plan
        if size == 0:
            message = "a batch must hold a sample, got one of 0"
            raise ProgramError(message)
        # Every rank's last batch has the same size (the loader sees to it), so the
        # weights need no word from the other ranks.
        num_parts = min(self._num_micro_batches, size)
        if self._pipeline is not None:
            # The micro-batches of a pipeline are equal.
            num_parts = max(n for n in range(1, num_parts + 1) if size % n == 0)
        return BatchPlan(
            world_size=1, global_batch=size, num_micro_batches=num_parts
        ).for_rank(0)
