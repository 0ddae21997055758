"""AGD as an optimization: what a plan may say about it, and how it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from drivetrain_core import (
    BaseOptimization,
    Code,
    Numerics,
    Option,
    Phase,
    PlanError,
    Slot,
)
from drivetrain_optim._agd_options import AGD_OPTIONS
from drivetrain_optim._errors import HyperparameterError
from drivetrain_optim._options import checked

if TYPE_CHECKING:
    from drivetrain_core import Config, TrainingState
    from drivetrain_optim._agd import AGD

__all__ = ["AgdOptimization"]


class AgdOptimization(BaseOptimization):
    """Replaces the user's optimizer by AGD, on the same parameter groups.

    Another optimizer is another algorithm, so that a search never takes this unasked.
    `lr` and `weight_decay` of None keep what each of the user's groups has. AGD has no
    fused kernel and runs multi-tensor by itself, so that there is nothing left for
    `optimizer_impl` to choose.

    Example:
        >>> AgdOptimization().normalize({"delta": "cnn"})["delta"]
        1e-08
    """

    name = "agd"
    slot = Slot.OPTIMIZER
    phase = Phase.OPTIMIZER
    conflicts = ("optimizer_impl",)
    options: Mapping[str, Option] = {
        "lr": Option(None, kind=float),
        "beta1": Option(0.9),
        "beta2": Option(0.999),
        "delta": Option(1e-5),
        "weight_decay": Option(None, kind=float),
        "decay": Option("decoupled", choices=AGD_OPTIONS["decay"].names),
        "amsgrad": Option(False),
        "clip": Option(None, kind=float),
    }

    def numerics(self, config: Config) -> Numerics:
        """Returns `CHANGES_ALGORITHM`."""
        del config
        return Numerics.CHANGES_ALGORITHM

    def normalize(self, config: object) -> Config:
        """Returns the full configuration, checked as `AGD` itself would.

        Args:
            config: A mapping of options, or None; `delta` may be a preset's name.

        Raises:
            PlanError: An option is unknown or has a value that is not allowed.
        """
        try:
            if isinstance(config, Mapping):
                config = checked(self.name, {"delta": AGD_OPTIONS["delta"]}, config)
            full = super().normalize(config)
            _constructor_options(full)
        except HyperparameterError as error:
            because = str(error).removeprefix(f"{self.name}: ")
            raise PlanError(Code.CONFIG, self.name, because=because) from error
        return full

    def apply(self, state: TrainingState, config: Config) -> None:
        """Hands a factory of AGD to the state."""
        options = _constructor_options(config)
        # A group's own value would win over a default, so that these are set on each.
        forced = {k: options.pop(k) for k in ("lr", "weight_decay") if k in options}

        def build(param_groups: Iterable[Any]) -> AGD:
            from drivetrain_optim._agd import AGD

            return AGD([{**group, **forced} for group in param_groups], **options)

        state.use_optimizer(build)


def _constructor_options(config: Config) -> dict[str, Any]:
    """Returns a plan's configuration as arguments of `AGD`, checked."""
    options: dict[str, Any] = {
        key: value
        for key, value in config.items()
        if value is not None or key == "clip"
    }
    options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    return checked("agd", AGD_OPTIONS, options)
