"""What an optimization is: the protocol that built-ins and other packages implement.

An optimization answers one question (its slot), at one moment of the build (its
phase), and says what it does to the numbers (`numerics`). It is asked three things in
order: which configurations are worth a trial here (`configs`), whether one of them can
be used (`check`), and to change the program (`apply`).
"""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from drivetrain_core._choice import (
    Choice,
    Config,
    Estimate,
    Numerics,
    Ok,
    Option,
    Phase,
    Reject,
    Scalar,
    Slot,
)
from drivetrain_core._errors import Code, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState


@runtime_checkable
class Optimization(Protocol):
    """One way to make training faster or smaller; the contract of a plug-in.

    Implementations are stateless: one instance serves every plan of a process, from
    one thread. Importing the module must not import a device library; `configs`,
    `check` and `estimate` must not touch a device.

    Attributes:
        name: The unique name, as plans write it.
        slot: The question it answers; a plan holds one answer a slot.
        phase: When it is applied.
        requires: Names that must be in the plan too.
        conflicts: Names that must not be in the plan.
        monotone: Whether `configs` goes from mild to strong, so that the search may
            skip the stronger ones once a milder one was slower.
    """

    name: str
    slot: Slot
    phase: Phase
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    monotone: bool

    def numerics(self, config: Config) -> Numerics:
        """Returns what this configuration does to the numbers."""

    def normalize(self, config: object) -> Config:
        """Returns the full configuration for what a user wrote.

        Raises:
            PlanError: An option is unknown or has a value that is not allowed.
        """

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the configurations worth a trial here; empty if there is none."""

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Says whether the configuration can be used with the rest of the plan."""

    def estimate(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Estimate | None:
        """Returns the best that it could do, or None when nothing is known."""

    def apply(self, state: TrainingState, config: Config) -> None:
        """Changes `state`, and nothing else. A raise ends the whole build."""


class BaseOptimization:
    """The usual half of an optimization: options, defaults, and mild answers.

    A subclass sets the attributes, and overrides what it knows better. `options` is
    its table of options; `shorthand` names the option that a bare value sets, so that
    `("compile", "block")` means `{"scope": "block"}`. `numerical_change` is what every
    configuration does to the numbers. `saves_from` is the part of a step, `data` or
    `optimizer`, that is all it can save.

    Example:
        >>> class Fast(BaseOptimization):
        ...     name, slot, phase = "fast", Slot.KERNELS, Phase.MODEL_SWAP
        ...     options = {"level": Option(1, choices=(1, 2))}
        ...     shorthand = "level"
        ...     def apply(self, state, config):
        ...         state.model.requires_grad_(True)
        >>> Fast().normalize(2)
        {'level': 2}
        >>> Fast().normalize({"levle": 2})
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.PlanError: fast: unknown option 'levle'; nearest: level \
(CONFIG). Fix: the options are level
    """

    name: str
    slot: Slot
    phase: Phase
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    monotone: bool = False
    options: Mapping[str, Option] = {}
    shorthand: str = ""
    numerical_change: Numerics = Numerics.EXACT
    saves_from: str = ""

    def numerics(self, config: Config) -> Numerics:
        """Returns `numerical_change`: that of every configuration."""
        del config
        return self.numerical_change

    def normalize(self, config: object) -> Config:
        """Returns the full configuration for what a user wrote.

        Args:
            config: A mapping of options, a bare value for the shorthand option, or
                None for the defaults.

        Raises:
            PlanError: An option is unknown or has a value that is not allowed.
        """
        given = self._as_mapping(config)
        full: dict[str, Scalar] = {k: o.default for k, o in self.options.items()}
        for key, value in given.items():
            if key not in self.options:
                near = difflib.get_close_matches(str(key), self.options, n=3)
                hint = f"; nearest: {', '.join(near)}" if near else ""
                raise PlanError(
                    Code.CONFIG,
                    self.name,
                    because=f"unknown option {key!r}{hint}",
                    fix=f"the options are {', '.join(self.options) or 'none'}",
                )
            problem = self.options[key].problem(value)
            if problem:
                raise PlanError(
                    Code.CONFIG,
                    self.name,
                    because=f"option {key} {problem}, got {value!r}",
                )
            full[key] = value
        return full

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the defaults as the only configuration."""
        del context
        return [self.normalize(None)]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Returns Ok."""
        del context, config, plan
        return Ok()

    def estimate(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Estimate | None:
        """Returns what is left of a step without `saves_from`; else None, nothing is known."""
        del config, plan
        if not self.saves_from or context.baseline is None:
            return None
        share = getattr(context.baseline, f"{self.saves_from}_share")
        because = f"a step waits only {share:.1%} for its {self.saves_from}"
        return Estimate(step_time=1.0 - share, because=because)

    @abstractmethod
    def apply(self, state: TrainingState, config: Config) -> None:
        """Changes `state`; every subclass has its own."""

    def _as_mapping(self, config: object) -> Mapping[str, Scalar]:
        if config is None:
            return {}
        if isinstance(config, Mapping):
            return config
        if isinstance(config, str | int | float) and self.shorthand:
            return {self.shorthand: config}
        kinds = "a mapping of options"
        if self.shorthand:
            kinds += f" or a value for {self.shorthand!r}"
        raise PlanError(
            Code.CONFIG,
            self.name,
            because=f"its configuration must be {kinds}, got {config!r}",
            fix=f"the options are {', '.join(self.options)}" if self.options else "",
        )


def whole_number(config: Config, option: str) -> int:
    """Returns an option of a configuration that was checked to be a whole number.

    Example:
        >>> whole_number({"num": 2}, "num")
        2
    """
    number = config[option]
    assert isinstance(number, int)
    return number
