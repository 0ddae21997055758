"""What an optimization is: the protocol that built-ins and other packages implement.

An optimization answers one question (its slot), at one moment of the build (its
phase), and says what it does to the numbers (`numerics`). It is asked three things in
order: which configurations are worth a trial here (`configs`), whether one of them can
be used (`check`), and to change the program (`apply`).
"""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from drivetrain_core._errors import Code, PlanError

if TYPE_CHECKING:
    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

__all__ = [
    "BaseOptimization",
    "Choice",
    "Config",
    "Estimate",
    "Numerics",
    "Ok",
    "Optimization",
    "Option",
    "Phase",
    "Reject",
    "Scalar",
    "Slot",
]

Scalar = str | int | float | bool | None
"""A value of a configuration: whatever YAML and JSON write the same way."""

Config = Mapping[str, Scalar]
"""The configuration of one optimization, by option name."""


class Slot(StrEnum):
    """The questions that a plan answers, each at most once, in the order of effect.

    Example:
        >>> Slot("precision").name
        'PRECISION'
    """

    ALLOCATOR = "allocator"
    COMM = "comm"
    CPU_THREADS = "cpu_threads"
    PRECISION = "precision"
    MEMORY_FORMAT = "memory_format"
    KERNELS = "kernels"
    ATTENTION = "attention"
    MESH = "mesh"
    TENSOR_PARALLEL = "tensor_parallel"
    SEQUENCE_PARALLEL = "sequence_parallel"
    LOSS_PARALLEL = "loss_parallel"
    ACTIVATION_CHECKPOINT = "activation_checkpoint"
    COMPILE = "compile"
    DATA_PARALLEL = "data_parallel"
    OPTIMIZER = "optimizer"
    OPTIMIZER_IMPL = "optimizer_impl"
    OPTIMIZER_WRAPPER = "optimizer_wrapper"
    MICRO_BATCH = "micro_batch"
    SCHEDULE = "schedule"
    SAMPLER = "sampler"
    LOADER = "loader"
    CHECKPOINT = "checkpoint"
    ELASTIC = "elastic"


class Phase(IntEnum):
    """When an optimization is applied; a plan is always applied in this order."""

    ENVIRONMENT = 0
    MODEL_SWAP = 1
    TENSOR_PARALLEL = 2
    ACTIVATION_CHECKPOINT = 3
    COMPILE = 4
    SHARD = 5
    OPTIMIZER = 6
    SCHEDULE = 7
    DATA = 8
    RUNTIME = 9


class Numerics(IntEnum):
    """What an optimization does to the numbers, from nothing to another algorithm.

    `CHANGES_ALGORITHM` (another optimizer, a larger global batch) is never chosen by
    the search: only the user may name it.
    """

    EXACT = 0
    REORDER = 1
    LOW_PRECISION = 2
    CHANGES_ALGORITHM = 3


@dataclass(frozen=True, slots=True)
class Ok:
    """The configuration can be used."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """The configuration cannot be used, why, and what would help.

    Args:
        code: The class of the reason.
        because: What is wrong, with the values that were met.
        fix: What would make it work; empty when nothing would.
    """

    code: Code
    because: str
    fix: str = ""

    def error(self, optimization: str) -> PlanError:
        """Returns this reason as the error that semi-automatic mode raises."""
        return PlanError(self.code, optimization, because=self.because, fix=self.fix)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a configuration could do at best; used to skip trials, never to decide.

    Args:
        step_time: The most optimistic step time, relative to the plan without it.
        memory: The likely peak memory, relative to the plan without it.
        because: The fact that it rests on, shown when a trial is skipped.
    """

    step_time: float = 0.0
    memory: float = 1.0
    because: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of a plan: an optimization by name, with its full configuration."""

    name: str
    config: Config

    def __hash__(self) -> int:
        """Hashes the name and the configuration, whatever its mapping type."""
        return hash((self.name, tuple(sorted(self.config.items()))))

    def __str__(self) -> str:
        """Returns `name(option=value, ...)`, for tables and messages.

        Example:
            >>> str(Choice("compile", {"scope": "block"}))
            'compile(scope=block)'
        """
        inside = ", ".join(f"{k}={v}" for k, v in self.config.items() if v is not None)
        return f"{self.name}({inside})" if inside else self.name


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
        ...

    def normalize(self, config: object) -> Config:
        """Returns the full configuration for what a user wrote.

        Raises:
            PlanError: An option is unknown or has a value that is not allowed.
        """
        ...

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns the configurations worth a trial here; empty if there is none."""
        ...

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Says whether the configuration can be used with the rest of the plan."""
        ...

    def estimate(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Estimate | None:
        """Returns the best that it could do, or None when nothing is known."""
        ...

    def apply(self, state: TrainingState, config: Config) -> None:
        """Changes `state`, and nothing else. A raise ends the whole build."""
        ...


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a configuration, as `BaseOptimization.normalize` checks it.

    Args:
        default: The value when the user gives none.
        choices: The allowed values, if only some are.
        minimum: The smallest allowed number.
        kind: The type of the value; taken from the default when that is not None.
        optional: Whether None is allowed as a value.
    """

    default: Scalar
    choices: tuple[Scalar, ...] = ()
    minimum: float | None = None
    kind: type | None = None
    optional: bool = False

    def problem(self, value: Scalar) -> str:
        """Returns what is wrong with a value, or an empty string.

        Example:
            >>> Option(2, minimum=1).problem(0)
            'must be at least 1'
        """
        if value is None and (self.optional or self.default is None):
            return ""
        if self.choices:
            if value in self.choices and type(value) in {type(c) for c in self.choices}:
                return ""
            return f"must be one of {', '.join(str(c) for c in self.choices)}"
        kind = self.kind or type(self.default)
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            return f"must be of type {kind.__name__}"
        if self.minimum is not None and isinstance(value, int | float):
            return "" if value >= self.minimum else f"must be at least {self.minimum}"
        return ""


class BaseOptimization:
    """The usual half of an optimization: options, defaults, and mild answers.

    A subclass sets the attributes, and overrides what it knows better. `options` is
    its table of options; `shorthand` names the option that a bare value sets, so that
    `("compile", "block")` means `{"scope": "block"}`.

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

    def numerics(self, config: Config) -> Numerics:
        """Returns `EXACT`, unless a subclass knows better."""
        del config
        return Numerics.EXACT

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
        """Returns None: nothing is known before a trial."""
        del context, config, plan
        return None

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
