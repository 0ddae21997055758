"""Compile-selector optimization: what a plan may say, and how it is applied."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from drivetrain_core import (
    BaseOptimization,
    Code,
    Config,
    Numerics,
    Ok,
    Option,
    Phase,
    PlanError,
    Reject,
    Slot,
)
from drivetrain_kernels._errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core import Choice, Context, TrainingState

_AUTO = "auto"
_CHOICES = (_AUTO, "eager", "block", "default", "dynamic", "cudagraphs", "max-autotune")


class CompileSelectOptimization(BaseOptimization):
    """Compiles as measured to be fastest, or not at all.

    `choice` names how; "auto" measures on the first batch as the plan is applied, and
    writes what it chose in place of "auto" into the choices of the state, as later
    parts of the build see them. Decisions are kept on disk, so that an equal program
    that applies the plan again takes the same choice without measuring.

    Example:
        >>> CompileSelectOptimization().normalize("block")
        {'choice': 'block', 'budget_s': 60.0}
    """

    name = "compile_select"
    slot = Slot.COMPILE
    phase = Phase.COMPILE
    options = {
        "choice": Option(_AUTO, choices=_CHOICES),
        "budget_s": Option(60.0, minimum=1.0, kind=float),
    }
    shorthand = "choice"

    def numerics(self, config: Config) -> Numerics:
        """Returns `REORDER`: fused sums have another order; eager is exact."""
        exact = config["choice"] == "eager"
        return Numerics.EXACT if exact else Numerics.REORDER

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns what core's own `compile` does not offer: a search measures itself."""
        if not (context.device.graphs and context.device.can_compile):
            return []
        return [self.normalize(choice) for choice in ("cudagraphs", "max-autotune")]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects what cannot compile here, or cannot choose for several ranks."""
        del plan
        choice = config["choice"]
        if choice != "eager" and (needed := context.device.compiler_needs):
            return Reject(
                Code.NEEDS_LIBRARY, f"torch.compile needs {needed}", f"install {needed}"
            )
        if choice != "eager" and not context.device.can_compile:
            because = f"torch.compile makes no kernels for {context.device.type}"
            return Reject(Code.NEEDS_DEVICE, because, "leave it out")
        if choice == _AUTO and context.world.size > 1:
            return Reject(
                Code.NOT_APPLICABLE,
                f"{context.world.size} ranks would have to wait for each other to "
                "choose alike",
                "name the choice that a run on one rank found",
            )
        if choice == "cudagraphs" and not context.device.graphs:
            return Reject(
                Code.NEEDS_DEVICE,
                f"graphs need a device that captures them, got {context.device.type}",
                "use default",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Compiles in place, and writes an automatic choice into the state."""
        # Loading this module must not import torch, which that one needs.
        from drivetrain_kernels.selector import _install

        if config["choice"] != _AUTO:
            _install.install(state.module, str(config["choice"]))
            return
        names = [name for name in _CHOICES if name not in {_AUTO, "eager", "dynamic"}]
        if not state.context.device.graphs:
            names = ["block", "default"]
        budget_s = float(str(config["budget_s"]))
        try:
            chosen = _install.install_fastest(
                state.module, state.loader, state.device, names, budget_s
            )
        except SelectionError as error:
            raise PlanError(
                Code.NOT_APPLICABLE,
                self.name,
                because=str(error),
                fix="name a choice instead of auto",
            ) from error
        state.choices = tuple(
            dataclasses.replace(c, config={**c.config, "choice": chosen})
            if c.name == self.name
            else c
            for c in state.choices
        )
