"""Optimizer optimizations: what a plan may say of AGD, LAMB and WSAM, and how it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import drivetrain_optim
from drivetrain_core import (
    BaseOptimization,
    Code,
    Numerics,
    Ok,
    Option,
    Phase,
    PlanError,
    Reject,
    Slot,
)
from drivetrain_optim._errors import HyperparameterError
from drivetrain_optim.checks._options import (
    AGD_OPTIONS,
    LAMB_OPTIONS,
    LAMB_PRESETS,
    WSAM_OPTIONS,
    checked,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from drivetrain_core import Choice, Config, Context, TrainingState
    from drivetrain_optim.checks._options import Rule

_SHARED = {
    "max_grad_norm": Option(None, kind=float),
    "master_weights": Option(False),
    "stochastic_rounding": Option(False),
}


class _OptimizerOptimization(BaseOptimization):
    """An optimizer of this package in place of the user's, or around it.

    Another optimizer is another algorithm, so that a search never takes one unasked.
    """

    slot = Slot.OPTIMIZER
    phase = Phase.OPTIMIZER
    numerical_change = Numerics.CHANGES_ALGORITHM
    rules: ClassVar[Mapping[str, Rule]]

    def normalize(self, config: object) -> Config:
        """Returns the full configuration, checked as the optimizer itself would.

        Args:
            config: A mapping of options, or None; a preset's name may stand for a
                number.

        Raises:
            PlanError: An option is unknown or has a value that is not allowed.
        """
        try:
            if isinstance(config, Mapping):
                presets = {k: r for k, r in self.rules.items() if r.presets}
                config = checked(self.name, presets, config)
            full = super().normalize(config)
            self._constructor_options(full)
        except HyperparameterError as error:
            because = str(error).removeprefix(f"{self.name}: ")
            raise PlanError(Code.CONFIG, self.name, because=because) from error
        return full

    def _constructor_options(self, config: Config) -> dict[str, Any]:
        """Returns a plan's configuration as arguments of the optimizer, checked."""
        optional = {name for name, rule in self.rules.items() if rule.default is None}
        options: dict[str, Any] = {
            key: value
            for key, value in config.items()
            if value is not None or key in optional
        }
        if "beta1" in options:
            options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        return checked(self.name, self.rules, options)


class _Replacement(_OptimizerOptimization):
    """An optimizer on the user's parameter groups.

    `lr` and `weight_decay` of None keep what each of the groups has. The optimizer
    chooses its implementation itself, so that there is nothing left for
    `optimizer_impl` to choose.
    """

    conflicts = ("optimizer_impl",)
    optimizer: ClassVar[str]

    def apply(self, state: TrainingState, config: Config) -> None:
        """Hands a factory of the optimizer to the state."""
        given = self._constructor_options(config)
        options = {k: value for k, value in given.items() if value is not None}
        # A group's own value would win over a default, so that these are set on each.
        forced = {k: options.pop(k) for k in ("lr", "weight_decay") if k in options}
        options = {**LAMB_PRESETS.get(options.pop("preset", ""), {}), **options}

        def build(param_groups: Iterable[Any]) -> torch.optim.Optimizer:
            kind: type[torch.optim.Optimizer]
            kind = getattr(drivetrain_optim, self.optimizer)
            return kind([{**group, **forced} for group in param_groups], **options)

        state.use_optimizer(build)


class AgdOptimization(_Replacement):
    """Replaces the user's optimizer by AGD, on the same parameter groups.

    Example:
        >>> AgdOptimization().normalize({"delta": "cnn"})["delta"]
        1e-08
    """

    name = "agd"
    optimizer = "AGD"
    rules = AGD_OPTIONS
    options: Mapping[str, Option] = {
        "lr": Option(None, kind=float),
        "beta1": Option(0.9),
        "beta2": Option(0.999),
        "delta": Option(1e-5),
        "weight_decay": Option(None, kind=float),
        "decay": Option("decoupled", choices=AGD_OPTIONS["decay"].names),
        "amsgrad": Option(False),
        "clip": Option(None, kind=float),
        **_SHARED,
    }


class LambOptimization(_Replacement):
    """Replaces the user's optimizer by LAMB, on the same parameter groups.

    Example:
        >>> LambOptimization().normalize({"preset": "timm"})["preset"]
        'timm'
    """

    name = "lamb"
    optimizer = "LAMB"
    rules = LAMB_OPTIONS
    options: Mapping[str, Option] = {
        "preset": Option("paper", choices=tuple(LAMB_PRESETS)),
        "lr": Option(None, kind=float),
        "beta1": Option(0.9),
        "beta2": Option(0.999),
        "eps": Option(1e-6),
        "weight_decay": Option(None, kind=float),
        **_SHARED,
    }


class WsamOptimization(_OptimizerOptimization):
    """Puts WSAM around the optimizer; each step then takes two passes.

    The optimizer is the user's, or that of another optimization of the plan.

    Example:
        >>> WsamOptimization().normalize(None)["gamma"]
        0.9
    """

    name = "wsam"
    slot = Slot.OPTIMIZER_WRAPPER
    rules = WSAM_OPTIONS
    options: Mapping[str, Option] = {
        "rho": Option(0.05),
        "gamma": Option(0.9),
        "adaptive": Option(False),
        "decouple": Option(True),
        "every_k": Option(1, minimum=1),
    }

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects a loop that core does not drive, and fp32 masters outside of WSAM."""
        del config
        if not context.loop.owns_step:
            return Reject(
                Code.STEP_NOT_OWNED,
                "a step takes two passes, which the training loop itself does not make",
                "use train_step(batch), or wrap the optimizer in WSAM in your own loop",
            )
        if any(c.config.get("dtype") == "bf16_params" for c in plan):
            return Reject(
                Code.CONFLICT,
                "it would perturb the fp32 masters, which the model does not compute "
                "with",
                "use bf16_autocast",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Hands the wrapper to the state."""
        options = self._constructor_options(config)
        module = state.module

        def wrap(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
            return drivetrain_optim.WSAM(optimizer, model=module, **options)

        state.wrap_optimizer(wrap)
