"""The memory of a plan, from what a fake run of its structure counted; pure arithmetic.

States (weights, gradients, optimizer state) are counted at full depth. Activations are
counted at two depths and, when a step has several passes, at two micro-batches; they
are linear in the number of blocks and affine in the samples of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_search.prediction.time_model import Work, between, work_from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXTRAPOLATED = 0.03
_EXACT = 0.01
_FOREACH = 0.05
_SHARDED = 0.10
_COMPILED = 0.15
_GATHERED_BLOCKS = 2
# Parts of the memory: up to the first one a plan fits, and beyond the second it does
# not. The band between them covers allocator and libraries, which no estimate sees.
_SURELY_FITS, _SURELY_NOT = 0.92, 1.10


class Peak(NamedTuple):
    """What a pass holds at the highest moment of one of its phases, in bytes.

    Args:
        gradients: Gradients that have been accumulated by then.
        activations: Everything that is neither a state nor the batch.
    """

    gradients: float
    activations: float


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """What stays between steps, and the optimizer's own peak, in bytes at full depth.

    Args:
        parameters: The weights, tied ones once.
        gradients: All gradients.
        optimizer: Optimizer state, and master weights if any.
        buffers: Buffers of the model.
        stepped: The values that the optimizer steps: masters where there are any.
        temporaries: The most that a step of the optimizer holds beside all of these.
        largest_gradient: The largest single gradient.
        block_parameters: The weights of all repeated blocks.
        num_blocks: How many blocks those are.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    stepped: int
    temporaries: int
    largest_gradient: int
    block_parameters: int = 0
    num_blocks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One forward and backward at one micro-batch.

    Args:
        size: Samples of the micro-batch.
        phases: The peak of each phase, such as `head` and `backward first`.
        work: The operations of one pass.
    """

    size: int
    phases: Mapping[str, Peak]
    work: Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """What the fake runs of one structure counted.

    Args:
        states: What stays.
        passes: One pass, or two of different size.
        optimizer_work: The operations of one step of the optimizer.
        batch: Bytes of a rank's whole batch.
        exact: Whether every block was run.
        foreach: Whether the user's optimizer updates all weights in one list.
    """

    states: States
    passes: tuple[Pass, ...]
    optimizer_work: Work
    batch: int
    exact: bool
    foreach: bool = False

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Structure:
        """Returns the structure that the estimator sent as JSON."""
        return cls(
            states=States(**fields["states"]),
            passes=tuple(
                Pass(
                    size=entry["size"],
                    phases={k: Peak(*v) for k, v in entry["phases"].items()},
                    work=work_from_dict(entry["work"]),
                )
                for entry in fields["passes"]
            ),
            optimizer_work=work_from_dict(fields["optimizer_work"]),
            batch=fields["batch"],
            exact=fields["exact"],
            foreach=fields["foreach"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What a plan adds to its structure without another run.

    Args:
        world_size: Ranks.
        data_parallel: Empty, `ddp` or `fsdp`.
        shards: Ranks that share the states under `fsdp`.
        reshard: Whether `fsdp` frees gathered blocks after their forward.
        foreach: Whether the optimizer updates all weights in one list.
        fused: Whether it updates them in one kernel.
        compiled: Whether the model or its blocks are compiled.
    """

    world_size: int = 1
    data_parallel: str = ""
    shards: int = 1
    reshard: bool = True
    foreach: bool = False
    fused: bool = False
    compiled: bool = False


def along_depth(low: Pass, high: Pass, depths: tuple[int, int], depth: int) -> Pass:
    """Returns a pass of a deeper model from those of two truncated ones.

    A phase that only one of them has is left out: it lies between the first block and
    the last one, and what is linear is largest at an end.

    Args:
        low: The pass with fewer blocks.
        high: The pass with more.
        depths: Their numbers of blocks.
        depth: The number of blocks wanted.

    Example:
        >>> low = Pass(size=4, phases={"head": Peak(0.0, 30.0)}, work={})
        >>> high = Pass(size=4, phases={"head": Peak(0.0, 40.0)}, work={})
        >>> along_depth(low, high, (2, 3), 12).phases["head"].activations
        130.0
    """
    share = (depth - depths[0]) / (depths[1] - depths[0])
    return _mixed(low, high, share, low.size)


def along_size(passes: tuple[Pass, ...], size: int) -> Pass:
    """Returns the pass of one micro-batch from those of two others."""
    if len(passes) == 1 or size == passes[0].size:
        return passes[0]
    one, other = passes
    return _mixed(one, other, (size - one.size) / (other.size - one.size), size)


def _mixed(one: Pass, other: Pass, share: float, size: int) -> Pass:
    phases = {
        name: Peak(
            *(
                a + (b - a) * share
                for a, b in zip(peak, other.phases[name], strict=True)
            )
        )
        for name, peak in one.phases.items()
        if name in other.phases
    }
    return Pass(size=size, phases=phases, work=between(one.work, other.work, share))


def predict_memory(structure: Structure, size: int, layout: Layout) -> Forecast:
    """Returns the peak of a plan.

    Args:
        structure: What was counted.
        size: Samples of a micro-batch.
        layout: What the plan adds.
    """
    states = structure.states
    moments = [
        _moment(states, peak, layout)
        for peak in along_size(structure.passes, size).phases.values()
    ]
    moments.append(_optimizer_moment(states, layout))
    parts = max(moments, key=lambda kinds: sum(kinds.values()))
    parts["buffers_and_batch"] = states.buffers + structure.batch
    whole = {name: round(max(0.0, value)) for name, value in parts.items()}
    return Forecast(
        peak_bytes=sum(whole.values()),
        parts=whole,
        uncertainty=_uncertainty(structure, layout),
    )


def _moment(states: States, peak: Peak, layout: Layout) -> dict[str, float]:
    """Returns what is held at the peak of a phase of forward or backward."""
    parts = {
        "parameters": float(states.parameters),
        "gradients": peak.gradients,
        "optimizer_state": float(states.optimizer),
        "activations": peak.activations,
    }
    if layout.data_parallel == "ddp":
        # Gradients are views of buckets, which stay; a new one is copied in.
        parts["gradients"] = states.gradients + states.largest_gradient
    if layout.data_parallel == "fsdp":
        parts["parameters"] = states.parameters / layout.shards + _gathered(
            states, layout
        )
        parts["gradients"] = states.gradients / layout.shards + _some_blocks(states)
        parts["optimizer_state"] = states.optimizer / layout.shards
    return parts


def _optimizer_moment(states: States, layout: Layout) -> dict[str, float]:
    shards = layout.shards if layout.data_parallel == "fsdp" else 1
    temporaries = float(states.temporaries)
    if layout.foreach:
        # The update of every weight at once; the rest is that of the loop.
        temporaries += states.stepped
    return {
        "parameters": states.parameters / shards,
        "gradients": states.gradients / shards,
        "optimizer_state": states.optimizer / shards,
        "activations": temporaries / shards,
    }


def _gathered(states: States, layout: Layout) -> float:
    """Returns the whole weights that a rank holds beside its shards."""
    if not layout.reshard:
        return states.parameters
    return states.parameters - states.block_parameters + _some_blocks(states)


def _some_blocks(states: States) -> float:
    """Returns the block in use and the one that is fetched meanwhile."""
    if not states.num_blocks:
        return states.parameters
    return _GATHERED_BLOCKS * states.block_parameters / states.num_blocks


def _uncertainty(structure: Structure, layout: Layout) -> float:
    found = [_EXACT if structure.exact else _EXTRAPOLATED]
    if layout.foreach:
        found.append(_FOREACH)
    if layout.data_parallel:
        found.append(_SHARDED)
    if layout.compiled:
        found.append(_COMPILED)
    return max(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What is expected of a plan before its trial.

    Args:
        peak_bytes: All tensors of a rank at the highest moment; None when unknown.
        parts: The same by kind.
        uncertainty: How far off it may be, relative to the peak.
        step_time_s: The likely step; None when unknown.
        optimistic_step_time_s: The shortest step that the operations allow.
        because: Why nothing is known, else empty.
    """

    peak_bytes: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    uncertainty: float = 0.0
    step_time_s: float | None = None
    optimistic_step_time_s: float | None = None
    because: str = ""


class Fits(StrEnum):
    """Whether a plan fits into memory, as far as an estimate can tell."""

    YES = "yes"
    UNCERTAIN = "uncertain"
    NO = "no"


def fits(forecast: Forecast, capacity_bytes: int, overhead_bytes: int = 0) -> Fits:
    """Says whether a plan fits.

    Args:
        forecast: What is expected of it.
        capacity_bytes: The memory that a rank may use.
        overhead_bytes: What a process takes beside its tensors.

    Example:
        >>> fits(Forecast(peak_bytes=90), 100).value, fits(Forecast(), 100).value
        ('yes', 'uncertain')
    """
    if forecast.peak_bytes is None:
        return Fits.UNCERTAIN
    low, high = (
        forecast.peak_bytes * (1.0 + sign * forecast.uncertainty) + overhead_bytes
        for sign in (-1.0, 1.0)
    )
    if high <= _SURELY_FITS * capacity_bytes:
        return Fits.YES
    return Fits.NO if low > _SURELY_NOT * capacity_bytes else Fits.UNCERTAIN
