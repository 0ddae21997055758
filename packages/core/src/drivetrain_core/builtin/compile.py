"""Compilation: the whole model, or each repeated block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core._choice import Numerics, Ok, Option, Phase, Reject, Slot
from drivetrain_core._errors import Code
from drivetrain_core._model.blocks import NO_BLOCKS
from drivetrain_core._model.compile_in_place import compile_in_place
from drivetrain_core._optimization import BaseOptimization

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._choice import Choice, Config
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState


class Compile(BaseOptimization):
    """Compiles with the device's compiler; in place, so no name of a parameter changes.

    `block` compiles each repeated block: the blocks share one compilation, which is
    several times shorter than that of the `whole` model, at nearly the same speed.
    """

    name = "compile"
    slot = Slot.COMPILE
    phase = Phase.COMPILE
    options = {"scope": Option("block", choices=("block", "whole"))}
    shorthand = "scope"
    # Fused sums have another order.
    numerical_change = Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns `block` for repeated blocks, and `whole`, where compiled code is faster."""
        if context.device.compiler == "aot_eager":
            return []
        scopes = ["block", "whole"] if context.model.blocks else ["whole"]
        return [{"scope": scope} for scope in scopes]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a missing compiler, and `block` without repeated blocks."""
        del plan
        if needed := context.device.compiler_needs:
            return Reject(
                Code.NEEDS_LIBRARY, f"torch.compile needs {needed}", f"install {needed}"
            )
        if config["scope"] == "block" and context.model.blocks is None:
            return Reject(
                Code.NOT_APPLICABLE,
                f"{context.model.kind} has {NO_BLOCKS}",
                'use ("compile", {"scope": "whole"})',
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Compiles the blocks or the model, in place."""
        whole = config["scope"] == "whole"
        for module in [state.module] if whole else state.blocks():
            compile_in_place(module, state.context.device.compiler)
