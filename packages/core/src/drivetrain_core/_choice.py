"""Value types of a plan: slots, phases, choices, and answers about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from drivetrain_core._errors import Code, PlanError

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
    LOADER = "loader"
    CHECKPOINT = "checkpoint"


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
