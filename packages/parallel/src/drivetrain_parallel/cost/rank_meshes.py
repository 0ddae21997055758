"""Every mesh that fits a model and a number of devices, the fastest first."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core import Code, PlanError
from drivetrain_core.mesh_shape import MeshShape
from drivetrain_parallel.cost.predict import predict
from drivetrain_parallel.cost.schedules import SCHEDULES
from drivetrain_parallel.cost.step_options import CHECKPOINTING, StepOptions
from drivetrain_parallel.cost.step_terms import TERMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_parallel.cost.hardware import Hardware
    from drivetrain_parallel.cost.model_profile import ModelProfile
    from drivetrain_parallel.cost.predict import Prediction

# Of a device's memory: the rest is the driver's, the collectives', and fragments.
_USABLE = 0.92
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_STAGES_PER_RANK = (2, 3, 4, 6, 8, 12)
_LONG_SEQUENCE = 16384
# The others are never better: `gpipe` and `looped_bfs` hold more, `dual_pipe_v` idles
# longer than the other schedule in the form of a V.
SEARCHED = ("1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A mesh with the best way to run a step on it.

    Args:
        shape: The mesh.
        options: How the step is run.
        prediction: What it takes.
    """

    shape: MeshShape
    options: StepOptions
    prediction: Prediction

    def compare(self, best: Candidate) -> str:
        """Returns why it is slower than another, in a line.

        Args:
            best: The other.
        """
        ours, theirs = self.prediction, best.prediction
        ratio = ours.step_s / theirs.step_s
        if ratio <= 1:
            return ours.because
        more = {
            name: (seconds - theirs.seconds[name]) / theirs.step_s
            for name, seconds in ours.seconds.items()
        }
        worst = sorted(more, key=lambda name: -more[name])[:2]
        parts = ", ".join(
            f"{more[name]:+.0%} {TERMS[name]}" for name in worst if more[name] >= 0.005
        )
        return f"{ratio:.2f}x the time of the best: {parts or 'a little of everything'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A mesh on which no step can run.

    Args:
        shape: The mesh.
        code: The class of the reason.
        because: What the way that comes nearest to running met.
        fix: What would help.
        multiple: A global batch that is a multiple of this would do; 0 where it is not
            the global batch that is in the way.
    """

    shape: MeshShape
    code: Code
    because: str
    fix: str = ""
    multiple: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """All meshes for a model and a number of devices.

    Args:
        candidates: Those that can run, the fastest first.
        refused: The others.
        num_predictions: How many ways to run a step were looked at.
    """

    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    num_predictions: int

    @property
    def best(self) -> Candidate:
        """Returns the fastest.

        Raises:
            PlanError: No mesh can run.
        """
        if self.candidates:
            return self.candidates[0]
        nearest = [r for r in self.refused if r.code is Code.MEMORY] or self.refused
        different = {r.because: r for r in reversed(nearest)}
        reasons = "; ".join(
            f"{r.shape}: {r.because}" for r in list(reversed(different.values()))[:3]
        )
        tried = f"{len(self.refused)} {'was' if len(self.refused) == 1 else 'were'}"
        raise PlanError(
            nearest[0].code if nearest else Code.NOT_APPLICABLE,
            "mesh",
            because=f"no mesh can run ({tried} tried): {reasons or 'none was given'}",
            fix=self._fix(),
        )

    def _fix(self) -> str:
        """Returns what would help where no mesh can run."""
        if any(r.code is Code.MEMORY for r in self.refused):
            return "use more devices, devices with more memory, or another global batch"
        multiples = {r.multiple for r in self.refused if r.multiple}
        if len(multiples) > 1:
            return (
                f"use a global batch that is a multiple of {min(multiples)} for some of "
                f"the meshes, of {math.lcm(*multiples)} for all, or another micro-batch"
            )
        fixes = dict.fromkeys(r.fix for r in self.refused if r.fix)
        return " or ".join(list(fixes)[:3]) or "use other axes, or another global batch"

    def explain(self) -> list[str]:
        """Returns a line for every mesh: the best, those that lose, and the refused."""
        lines = [f"{c.shape}: {c.compare(self.best)}" for c in self.candidates]
        return lines + [f"{r.shape}: {r.because}" for r in self.refused]


def rank_meshes(
    profile: ModelProfile,
    hardware: Hardware,
    num_devices: int,
    global_batch: int,
    *,
    template: StepOptions | None = None,
    shapes: Sequence[MeshShape] | None = None,
    schedules: Sequence[str] = SEARCHED,
    checkpointing: Sequence[str] = CHECKPOINTING,
    zero: Sequence[int] = (2, 3),
    micro_batches: Sequence[int] | None = None,
    stages_per_rank: Sequence[int] | None = None,
) -> Ranking:
    """Predicts every mesh with every way to run a step on it.

    Args:
        profile: The model.
        hardware: The cluster.
        num_devices: Devices to use.
        global_batch: Samples of a step.
        template: Options that are not searched, such as bytes and overlaps; None for
            those of FSDP2 with 16-bit products.
        shapes: Meshes to look at; None for all that could make sense.
        schedules: Schedules to try where there is a pipeline.
        checkpointing: What to try of `step_options.CHECKPOINTING`.
        zero: What to try of ZeRO where there is a `shard` axis.
        micro_batches: Samples of a pass to try; None for powers of two up to 16.
        stages_per_rank: Stages of a rank to try, with the schedules that can have so
            many; None for what usually pays.

    Raises:
        PlanError: A number is not positive.

    Example:
        >>> from drivetrain_parallel.cost import (
        ...     Hardware, Path, profile_transformer)
        >>> model = profile_transformer(layers=8, hidden=1024, heads=8, vocab=32000,
        ...     seq=1024)
        >>> node = Hardware(name="A100", devices_per_node=8, memory_bytes=80 * 10**9,
        ...     peak_flops={"bfloat16": 312e12}, memory_bandwidth=2e12,
        ...     link=Path(bytes_per_s=300e9))
        >>> ranking = rank_meshes(model, node, num_devices=8, global_batch=64)
        >>> ranking.best.shape.size, ranking.candidates[-1].compare(ranking.best) != ""
        (8, True)
    """
    for name, number in (("num_devices", num_devices), ("global_batch", global_batch)):
        if type(number) is not int or number < 1:
            raise PlanError(
                Code.CONFIG,
                "mesh",
                because=f"{name} must be an integer of at least 1, got {number!r}",
            )
    if template is None:
        template = StepOptions(global_batch=global_batch)
    template = dataclasses.replace(template, global_batch=global_batch)
    found, refused, looked = [], [], 0
    usable = _USABLE * hardware.memory_bytes
    if shapes is None:
        shapes = list(_shapes(profile, hardware, num_devices))
    for shape in shapes:
        best: Candidate | None = None
        smallest: Prediction | None = None
        reason: PlanError | None = None
        samples = max(1, global_batch // shape.data_size)
        sizes = micro_batches or [n for n in _MICRO_BATCHES if n <= samples]
        pipelines = list(_pipelines(profile, shape, schedules, stages_per_rank))
        levels = zero if shape.shard > 1 else zero[:1]
        # An image of 197 patches, say, has no equal parts; along context, the blocks
        # have parts of the sequence already.
        equal = shape.context == 1 and not profile.sequence % shape.tensor
        sequence_parallel = template.sequence_parallel and equal
        for size, (schedule, chunks), again, level in itertools.product(
            sizes, pipelines, checkpointing, levels
        ):
            options = dataclasses.replace(
                template,
                micro_batch=size,
                schedule=schedule,
                stages_per_rank=chunks,
                checkpointing=again,
                zero=level,
                sequence_parallel=sequence_parallel,
            )
            looked += 1
            try:
                prediction = predict(profile, hardware, shape, options)
            except PlanError as error:
                reason = reason or error
                continue
            if prediction.memory_bytes > usable:
                if smallest is None or _needs(prediction) < _needs(smallest):
                    smallest = prediction
                continue
            if best is None or prediction.step_s < best.prediction.step_s:
                best = Candidate(shape=shape, options=options, prediction=prediction)
        if best is not None:
            found.append(best)
        elif smallest is not None:
            because = _too_large(smallest, usable)
            refused.append(Refused(shape=shape, code=Code.MEMORY, because=because))
        else:
            assert reason is not None or not pipelines
            refusal = reason or _no_schedule(profile, shape, schedules, stages_per_rank)
            refused.append(
                Refused(
                    shape=shape,
                    code=refusal.code,
                    because=refusal.because,
                    fix=refusal.fix,
                    multiple=int(refusal.evidence.get("multiple", 0)),
                )
            )
    found.sort(key=lambda candidate: candidate.prediction.step_s)
    return Ranking(
        candidates=tuple(found), refused=tuple(refused), num_predictions=looked
    )


def _shapes(
    profile: ModelProfile, hardware: Hardware, num_devices: int
) -> Iterator[MeshShape]:
    """Yields the meshes of some devices that could make sense."""
    per_node = hardware.devices_per_node
    contexts = _divisors(num_devices) if profile.sequence >= _LONG_SEQUENCE else [1]
    experts = [1]
    if profile.num_experts:
        experts = [n for n in _divisors(num_devices) if n <= profile.num_experts]
    for tensor in _divisors(num_devices):
        # Matrices are shared inside a node only: between nodes it never pays.
        if tensor > per_node or tensor > max(profile.heads, default=1):
            continue
        for pipeline in _divisors(num_devices // tensor):
            if pipeline > profile.num_blocks:
                continue
            for context in contexts:
                for expert in experts:
                    rest, odd = divmod(
                        num_devices, tensor * pipeline * context * expert
                    )
                    if odd or not rest:
                        continue
                    yield from _data_shapes(
                        MeshShape(
                            pipeline=pipeline,
                            expert=expert,
                            context=context,
                            tensor=tensor,
                        ),
                        rest,
                        per_node,
                    )


def _data_shapes(inner: MeshShape, rest: int, per_node: int) -> Iterator[MeshShape]:
    """Yields the ways to divide what is left between copies and shards."""
    # All shards; shards of one node, copied between nodes; all copies.
    inside = max(1, per_node // (inner.size // inner.pipeline))
    sizes = {rest, 1}
    if rest % inside == 0:
        sizes.add(inside)
    for shard in sorted(sizes, reverse=True):
        yield dataclasses.replace(inner, shard=shard, replicate=rest // shard)


def _pipelines(
    profile: ModelProfile,
    shape: MeshShape,
    schedules: Sequence[str],
    stages_per_rank: Sequence[int] | None,
) -> Iterator[tuple[str, int]]:
    if shape.pipeline == 1:
        yield "1f1b", 1
        return
    for name in schedules:
        for number in _stages_of(name, stages_per_rank):
            if number * shape.pipeline <= profile.num_blocks:
                yield name, number


def _stages_of(schedule: str, wanted: Sequence[int] | None) -> Sequence[int]:
    """Returns how many stages a rank may have under a schedule, of those wanted."""
    chunks = SCHEDULES[schedule].chunks
    if not chunks:
        return wanted or _STAGES_PER_RANK
    return (chunks,) if wanted is None or chunks in wanted else ()


def _no_schedule(
    profile: ModelProfile,
    shape: MeshShape,
    schedules: Sequence[str],
    wanted: Sequence[int] | None,
) -> PlanError:
    """Returns why none of the schedules can run on a mesh."""
    numbers = [n for name in schedules for n in _stages_of(name, wanted)]
    if not numbers:
        have = ", ".join(f"{name} has {SCHEDULES[name].chunks}" for name in schedules)
        return PlanError(
            Code.CONFIG,
            "schedule",
            because=f"no schedule has {' or '.join(map(str, wanted or ()))} stages a "
            f"rank: {have}",
            fix="use another schedule, such as interleaved_1f1b, or leave the stages of "
            "a rank out",
        )
    fewest = min(numbers)
    most = profile.num_blocks // shape.pipeline
    return PlanError(
        Code.NOT_DIVISIBLE,
        "schedule",
        because=f"{shape.pipeline} ranks of {fewest} stages need "
        f"{fewest * shape.pipeline} blocks, and {profile.name or 'the model'} has "
        f"{profile.num_blocks}",
        fix=f"use stages_per_rank={most} at most, or fewer ranks along pipeline"
        if most
        else f"use pipeline={profile.num_blocks} at most",
    )


def _needs(prediction: Prediction) -> float:
    return prediction.memory_bytes


def _too_large(prediction: Prediction, usable: float) -> str:
    parts = sorted(prediction.memory.items(), key=lambda part: -part[1])[:2]
    most = ", ".join(f"{value / 2**30:.1f} of {name}" for name, value in parts)
    return (
        f"needs at least {prediction.memory_bytes / 2**30:.1f} GiB, and "
        f"{usable / 2**30:.1f} can be used ({most})"
    )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
