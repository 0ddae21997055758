"""The compile selector as an optimization: what a plan may say, and how it applies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from drivetrain_core import Choice, Context, TrainingState

__all__ = ["CompileSelectOptimization"]

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
        if context.device.type != "cuda" or not context.device.can_compile:
            return []
        return [self.normalize(choice) for choice in ("cudagraphs", "max-autotune")]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects what cannot compile here, or cannot choose for several ranks."""
        del plan
        choice = config["choice"]
        if choice != "eager" and not context.device.can_compile:
            cpu = context.device.type == "cpu"
            needed = "a C++ compiler" if cpu else "triton"
            return Reject(
                Code.NEEDS_LIBRARY, f"torch.compile needs {needed}", f"install {needed}"
            )
        if choice == _AUTO and context.world.size > 1:
            return Reject(
                Code.NOT_APPLICABLE,
                f"{context.world.size} ranks would have to wait for each other to "
                "choose alike",
                "name the choice that a run on one rank found",
            )
        if choice == "cudagraphs" and context.device.type != "cuda":
            return Reject(
                Code.NEEDS_DEVICE,
                f"CUDA graphs need a CUDA device, got {context.device.type}",
                "use default",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Compiles in place, and writes an automatic choice into the state."""
        from drivetrain_kernels.selector._install import install

        if config["choice"] != _AUTO:
            install(state.module, str(config["choice"]))
            return
        chosen = self._selected(state, config)
        state.choices = tuple(
            dataclasses.replace(c, config={**c.config, "choice": chosen})
            if c.name == self.name
            else c
            for c in state.choices
        )

    def _selected(self, state: TrainingState, config: Config) -> str:
        from drivetrain_kernels._errors import SelectionError
        from drivetrain_kernels.selector._first_batch import first_batch
        from drivetrain_kernels.selector._select import select

        names = [name for name in _CHOICES if name not in {_AUTO, "eager", "dynamic"}]
        if state.device.type != "cuda":
            names = ["block", "default"]
        try:
            selected = select(
                state.module,
                [first_batch(state.loader, state.device)],
                budget_s=float(str(config["budget_s"])),
                candidates=names,
                step=_step_of(state.module),
            )
        except SelectionError as error:
            raise PlanError(
                Code.NOT_APPLICABLE,
                self.name,
                because=str(error),
                fix="name a choice instead of auto",
            ) from error
        return selected.choice


def _step_of(module: nn.Module) -> Any:
    """Returns a step that calls a model as its batch suggests, as core's loop does."""
    from drivetrain_kernels.selector._workload import Workload

    own = Workload(module, [()])

    def step(model: Any, batch: Any) -> Any:
        inputs = batch
        if isinstance(batch, tuple | list):
            inputs = (batch[0],)
        elif not isinstance(batch, Mapping):
            inputs = (batch,)
        return own.loss(model, inputs)

    return step
