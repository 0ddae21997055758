"""The plan of a pipeline as pure data: which stage runs and holds what."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from drivetrain_parallel.pipeline.tree import Path

_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleOutput:
    """A tensor that a module before the blocks returns and later stages read.

    Args:
        module: The module's name.
        call: Which of its calls in a forward, from 0.
        number: Which tensor of what it returns, from 0.
    """

    module: str
    call: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """What goes from one stage to the next for each micro-batch.

    The tensors that the next block takes come first, then those of modules.

    Args:
        block: The first block of the next stage.
        sources: Numbers of tensors in what the block before returns.
        targets: Where each of them lies in the (args, kwargs) of `block`.
        modules: Results of modules before the blocks that later stages need.
        shapes: The shapes for the micro-batch that the plan was made with.
        dtypes: The dtypes, such as `float32`.
    """

    block: int
    sources: tuple[int, ...]
    targets: tuple[Path, ...]
    modules: tuple[ModuleOutput, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """What one stage runs, and what stands in for the rest.

    Args:
        begin: Its first block.
        end: The block after its last one.
        received: Modules replaced by what the stage before has sent of them.
        zeroed: Modules replaced by zeros, since nothing on this stage depends on them.
        dropped: Modules that never run on this stage, replaced by an error.
        zeroed_parameters: Parameters of their own that modules around the blocks
            have, replaced by zeros for the same reason.
    """

    begin: int
    end: int
    received: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    zeroed_parameters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedParameter:
    """A parameter that more than one stage holds, such as a tied embedding.

    Its gradient is the sum of those of all stages.

    Args:
        name: Its first name in the whole model.
        names: Its name on each stage that holds it, by the stage's index.
    """

    name: str
    names: Mapping[int, str]

    @property
    def owner(self) -> int:
        """Returns the stage at which it counts, for norms and checkpoints."""
        return min(self.names)


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelinePlan:
    """How a model is split into stages.

    Args:
        container: The name of the list that holds the blocks.
        num_blocks: How many they are.
        stages: The stages in order.
        boundaries: What goes from each stage to the next.
        outputs: The structure of what each block returns.
        prologue: Modules with parameters that run before the blocks.
        shared: Parameters that more than one stage holds.
        costs: The cost of each stage, in the unit of what it was balanced by.
        is_verified: Whether the stages, run one after another, gave the loss and
            every gradient of the whole model.
        notes: What a reader should know, such as why more than usual is shared.
        before: How many other modules stand before the blocks in their list.
        after: How many stand after them.
    """

    container: str
    num_blocks: int
    stages: tuple[StagePlan, ...]
    boundaries: tuple[Boundary, ...]
    outputs: tuple[Any, ...]
    prologue: tuple[str, ...] = ()
    shared: tuple[SharedParameter, ...] = ()
    costs: tuple[float, ...] = ()
    is_verified: bool = False
    notes: tuple[str, ...] = ()
    before: int = 0
    after: int = 0

    def blocks_of(self, model: nn.Module) -> list[nn.Module]:
        """Returns the blocks of a model that is split so, in order.

        Raises:
            AttributeError: The model has no such list.
        """
        return blocks_between(model, self.container, self.before, self.after)

    @property
    def num_stages(self) -> int:
        """Returns the number of stages."""
        return len(self.stages)

    def stage_of_block(self, block: int) -> int:
        """Returns the stage that runs a block.

        Raises:
            IndexError: There is no such block.
        """
        for index, stage in enumerate(self.stages):
            if stage.begin <= block < stage.end:
                return index
        message = f"block must be from 0 to {self.num_blocks - 1}, got {block}"
        raise IndexError(message)

    def owns(self, stage: int, name: str) -> bool:
        """Returns whether a parameter on a stage counts there, not on an earlier one.

        Args:
            stage: The stage's index.
            name: The parameter's name on that stage.
        """
        return all(
            shared.owner == stage
            for shared in self.shared
            if shared.names.get(stage) == name
        )

    def canonical_name(self, stage: int, name: str) -> str:
        """Returns what the whole model calls a parameter of a stage first."""
        for shared in self.shared:
            if shared.names.get(stage) == name:
                return shared.name
        return name

    @property
    def digest(self) -> str:
        """Returns a short hash of the split, by which ranks find out that they agree.

        What it costs is left out: that is measured, and differs between ranks.
        """
        plan = self.to_dict()
        kept = {k: v for k, v in plan.items() if k not in ("costs", "notes")}
        text = json.dumps(kept, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain JSON values."""
        plan: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {"pipeline_plan": _VERSION, **plan}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PipelinePlan:
        """Returns the plan that `to_dict` gave.

        Raises:
            PlanFormatError: The values are not those of a plan of this version.
        """
        if values.get("pipeline_plan") != _VERSION:
            raise PlanFormatError(
                Code.FORMAT,
                "pipeline",
                because=f"expected a pipeline plan of version {_VERSION}, got "
                f"{values.get('pipeline_plan')!r}",
                fix="plan the pipeline again",
            )
        try:
            return _read(dict(values))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanFormatError(
                Code.FORMAT,
                "pipeline",
                because=f"the plan is damaged: {type(error).__name__} {error}",
                fix="plan the pipeline again",
            ) from error


def _read(values: dict[str, Any]) -> PipelinePlan:
    values.pop("pipeline_plan")
    for key, read in (
        ("stages", _read_stage),
        ("boundaries", _read_boundary),
        ("shared", _read_shared),
    ):
        values[key] = tuple(read(item) for item in values[key])
    for key in ("outputs", "prologue", "costs", "notes"):
        values[key] = tuple(values[key])
    return PipelinePlan(**values)


def _read_stage(values: Mapping[str, Any]) -> StagePlan:
    fixed: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
    }
    return StagePlan(**fixed)


def _read_boundary(values: Mapping[str, Any]) -> Boundary:
    return Boundary(
        block=values["block"],
        sources=tuple(values["sources"]),
        targets=tuple(tuple(path) for path in values["targets"]),
        modules=tuple(ModuleOutput(**item) for item in values["modules"]),
        shapes=tuple(tuple(shape) for shape in values["shapes"]),
        dtypes=tuple(values["dtypes"]),
    )


def _read_shared(values: Mapping[str, Any]) -> SharedParameter:
    names = {int(stage): name for stage, name in values["names"].items()}
    return SharedParameter(name=values["name"], names=names)


def blocks_between(
    model: nn.Module, container: str, before: int, after: int
) -> list[nn.Module]:
    """Returns the modules of a list without those that stand around its blocks.

    Args:
        model: The model.
        container: The name of the list.
        before: How many other modules stand before the blocks.
        after: How many stand after them.

    Raises:
        AttributeError: The model has no such list.
    """
    modules = list(model.get_submodule(container).children())
    return modules[before : len(modules) - after]
