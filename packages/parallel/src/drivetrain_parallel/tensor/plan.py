"""What tensor parallelism does to each module of a model: pure data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Style(StrEnum):
    """How a module's parameters lie on the ranks.

    COLWISE: Output features are split, and stay split.
    COLWISE_GATHERED: Output features are split, and joined at once.
    COLWISE_LOSS: Output features are split, as a DTensor, for a loss that is too.
    ROWWISE: Input features are split, and arrive split; outputs are summed.
    VOCAB: The rows of an embedding are split; each rank looks up its own.
    SPLIT: Each parameter is split along its first dimension, as one number a head is.
    PARTIAL: Every rank has all, and a part of the gradient, which is summed.
    """

    COLWISE = "colwise"
    COLWISE_GATHERED = "colwise_gathered"
    COLWISE_LOSS = "colwise_loss"
    ROWWISE = "rowwise"
    VOCAB = "vocab"
    SPLIT = "split"
    PARTIAL = "partial"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleStyle:
    """The style of one module.

    Args:
        style: How its parameters lie.
        parts: Sizes of the parts that the split features consist of, such as query,
            key and value in one matrix; each is split by itself. Empty for one part.
        is_entered: Whether its input is in the split part of the model already.
    """

    style: Style
    parts: tuple[int, ...] = ()
    is_entered: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadInput:
    """An argument of a module of which each rank needs the heads it has.

    Args:
        argument: Its name, or its position.
        dim: The dimension that holds the heads.
        heads: Heads in all; the dimension is this number, or a multiple of it with
            the heads innermost.
    """

    argument: str | int
    dim: int
    heads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """Modules that were not sharded in some way, and why.

    Args:
        names: The modules, with `*` for the number of a block.
        tried: What was tried on them.
        because: What was wrong with it.
        is_declared: Whether the model's own plan says so.
    """

    names: tuple[str, ...]
    tried: str
    because: str
    is_declared: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlan:
    """How a model is split over the ranks of the tensor axis.

    Args:
        degree: Ranks along the axis.
        modules: The style of each module that has one, by its name; all others are
            the same on every rank.
        attributes: New values of attributes by module, such as the number of heads;
            a name with a dot belongs to a copy of an object that the module holds.
        entries: Arguments by module that enter the split part of the model there,
            and not at each of its matrices; their gradients are summed once.
        head_inputs: Arguments by module of which a rank gets its heads.
        sequence: Lists of blocks between which each rank has a part of the sequence,
            with the argument of a block that is the residual stream.
        coverage: The share of each block's parameters that is split.
        declared: The modules that are split as the model's own plan says, with `*` for
            numbers; all others as their data flow says.
        dropped: What was tried and is not in the plan, or only in another way.
        is_verified: Whether loss and gradients were compared with one process.

    Example:
        >>> plan = TensorPlan(degree=2, modules={
        ...     "up": ModuleStyle(style=Style.COLWISE),
        ...     "down": ModuleStyle(style=Style.ROWWISE)})
        >>> TensorPlan.from_dict(plan.to_dict()) == plan
        True
    """

    degree: int
    modules: Mapping[str, ModuleStyle] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    entries: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    head_inputs: Mapping[str, tuple[HeadInput, ...]] = field(default_factory=dict)
    sequence: Mapping[str, str | int] = field(default_factory=dict)
    coverage: Mapping[str, float] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    is_verified: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as values that JSON knows."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TensorPlan:
        """Returns the plan that `to_dict` wrote.

        Raises:
            PlanFormatError: The values are not those of a plan.
        """
        try:
            read: dict[str, Any] = {
                "modules": {k: _module_style(v) for k, v in values["modules"].items()},
                "entries": {k: tuple(v) for k, v in values["entries"].items()},
                "head_inputs": {
                    name: tuple(HeadInput(**one) for one in inputs)
                    for name, inputs in values["head_inputs"].items()
                },
                "declared": tuple(values["declared"]),
                "dropped": tuple(
                    Dropped(**{**one, "names": tuple(one["names"])})
                    for one in values["dropped"]
                ),
            }
            return cls(**{**values, **read})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            because = f"not a plan of tensor parallelism: {error!r}"
            raise PlanFormatError(Code.FORMAT, "tensor", because=because) from error


def _module_style(values: Mapping[str, Any]) -> ModuleStyle:
    style, parts = Style(values["style"]), tuple(values["parts"])
    return ModuleStyle(style=style, parts=parts, is_entered=values["is_entered"])


def merged(plan: TensorPlan, other: TensorPlan) -> TensorPlan:
    """Returns a plan with what another one says as well; the other goes first.

    Example:
        >>> one = TensorPlan(degree=2, attributes={"a": {"num_heads": 2}})
        >>> two = TensorPlan(degree=2, attributes={"a": {"split_size": 8}})
        >>> merged(one, two).attributes
        {'a': {'num_heads': 2, 'split_size': 8}}
    """
    attributes = {name: dict(values) for name, values in plan.attributes.items()}
    for name, values in other.attributes.items():
        attributes.setdefault(name, {}).update(values)
    entries = {
        name: (*plan.entries.get(name, ()), *other.entries.get(name, ()))
        for name in {**plan.entries, **other.entries}
    }
    return replace(
        plan,
        modules={**plan.modules, **other.modules},
        attributes=attributes,
        entries=entries,
        head_inputs={**plan.head_inputs, **other.head_inputs},
    )
