"""Optimizer implementation: multi-tensor or fused kernels of the same algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._choice import Numerics, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code
from drivetrain_core._optimization import BaseOptimization
from drivetrain_core._registry import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState


class OptimizerImpl(BaseOptimization):
    """Sets `foreach` or `fused` on an optimizer that has the option.

    `foreach` needs temporaries about as large as the parameters; `fused` reads and
    writes each value once.
    """

    name = "optimizer_impl"
    slot = Slot.OPTIMIZER_IMPL
    phase = Phase.OPTIMIZER
    options = {"kind": Option("fused", choices=("foreach", "fused"))}
    shorthand = "kind"
    saves_from = "optimizer"
    # A fused update rounds at other places.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the kinds that the user's optimizer has, the likely best first."""
        kinds = ("fused", "foreach")
        has = context.loop.optimizer_options
        return [{"kind": kind} for kind in kinds if kind in has]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects an option that the optimizer lacks, and one that is replaced."""
        for choice in plan:
            if find(choice.name).slot is Slot.OPTIMIZER:
                return Reject(
                    Code.CONFLICT,
                    f"{choice.name} replaces the optimizer and chooses its own kernels",
                    f"drop optimizer_impl, and set the options of {choice.name}",
                )
        kind = str(config["kind"])
        numbers = context.model.dtypes
        if kind == "fused" and any(n.startswith("complex") for n in numbers):
            return Reject(
                Code.NOT_APPLICABLE,
                f"fused needs real parameters, the model has {', '.join(numbers)}",
            )
        if kind not in context.loop.optimizer_options:
            return Reject(
                Code.NOT_APPLICABLE, f"{context.loop.optimizer} has no option {kind!r}"
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Sets the option on every group."""
        kind = str(config["kind"])
        # torch refuses both at once; an optimizer may also have only one of the two.
        others = {"foreach", "fused"} & state.context.loop.optimizer_options - {kind}
        state.set_optimizer_options(**{kind: True}, **dict.fromkeys(others, False))
