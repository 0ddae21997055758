"""Activation checkpointing: recompute parts of the forward to save memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from drivetrain_core._choice import Estimate, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code
from drivetrain_core._model.blocks import NO_BLOCKS
from drivetrain_core._model.forward import Forward, wrap_forward
from drivetrain_core._optimization import BaseOptimization, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

# A plan whose peak stays under this part of the memory gains nothing from saving more.
_MEMORY_BINDS = 0.75


class ActivationCheckpoint(BaseOptimization):
    """Drops activations in the forward and recomputes them in the backward.

    `full` recomputes each repeated block; `every_k` every k-th one; `selective` keeps
    the results of matrix products and attention and recomputes the rest.

    A block whose forward changes its own buffers, such as a counter, changes them
    twice a step. The search finds and rejects that; a plan that is given does not.
    """

    name = "activation_checkpoint"
    slot = Slot.ACTIVATION_CHECKPOINT
    phase = Phase.ACTIVATION_CHECKPOINT
    options = {
        "mode": Option("full", choices=("selective", "every_k", "full")),
        "k": Option(2, minimum=2),
    }
    shorthand = "mode"
    monotone = True

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the modes from mild to strong; none without repeated blocks."""
        if context.model.blocks is None:
            return []
        modes = ("selective", "every_k", "full")
        return [self.normalize(mode) for mode in modes]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects models without repeated blocks, BatchNorm, and a k beyond them."""
        del plan
        blocks = context.model.blocks
        if blocks is None:
            return Reject(Code.NOT_APPLICABLE, f"{context.model.kind} has {NO_BLOCKS}")
        if context.model.has_batch_norm:
            return Reject(
                Code.NOT_APPLICABLE,
                "a recomputed BatchNorm would update its statistics twice a step",
                "use GroupNorm or LayerNorm",
            )
        if config["mode"] == "every_k" and whole_number(config, "k") > blocks.count:
            return Reject(
                Code.NOT_DIVISIBLE,
                f"k={config['k']} is more than the {blocks.count} blocks",
                f"use k between 2 and {blocks.count}",
            )
        return Ok()

    def estimate(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Estimate | None:
        """Returns that recomputation cannot be faster while memory is plentiful.

        It says nothing of a plan that compiles: the compiler fuses what is recomputed
        into the backward, where it may cost less than the memory traffic that it saves.
        """
        del config
        if context.baseline is None or any(c.name == "compile" for c in plan):
            return None
        part = context.baseline.peak_memory_bytes / max(context.device.memory_bytes, 1)
        if part > _MEMORY_BINDS:
            return None
        return Estimate(
            step_time=1.0,
            memory=0.7,
            because=f"recomputation costs time, and the baseline's peak is only {part:.0%} of the memory",
        )

    def apply(self, state: TrainingState, config: Config) -> None:
        """Wraps the forward of the chosen blocks."""
        blocks = state.blocks()
        step = whole_number(config, "k") if config["mode"] == "every_k" else 1
        for block in blocks[::step]:
            wrap_forward(block, _recompute(selective=config["mode"] == "selective"))


def _recompute(*, selective: bool) -> Any:
    extra: dict[str, Any] = {}
    if selective:
        saved = [getattr(torch.ops.aten, name).default for name in _SAVED]
        extra["context_fn"] = partial(create_selective_checkpoint_contexts, saved)

    def around(forward: Forward) -> Forward:
        def run(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(self, *args, **kwargs)
            call = partial(forward, self)
            return checkpoint(call, *args, use_reentrant=False, **extra, **kwargs)

        return run

    return around


_SAVED = (
    "mm",
    "bmm",
    "addmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_flash_attention_forward",
)
