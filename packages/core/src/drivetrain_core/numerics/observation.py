"""Observation of a built program: what it did on the batches of the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FIRST_STEPS", "Accounting", "Observation", "ParameterUsage"]

FIRST_STEPS = 3
"""Steps that every trial is observed on."""

_Values = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """Which samples a step and the loader consumed, over all ranks.

    Args:
        rows: Samples that went through the forward in the first step; 0 if unknown.
        content: A checksum of these samples, whatever their order.
        drawn: Of each of the loader's first batches, the checksums of its samples.
        is_repeatable: Whether the loader yields the same samples under one seed.
        world_size: Ranks.
        num_micro_batches: Parts of a rank's batch.
    """

    rows: int = 0
    content: int = 0
    drawn: tuple[tuple[int, ...], ...] = ()
    is_repeatable: bool = True
    world_size: int = 1
    num_micro_batches: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterUsage:
    """Whether everything that should train does, and obeys what steers it.

    Args:
        ties: Groups of names that share one parameter.
        apart: Parameters that differ between the ranks.
        foreign: Tensors of the optimizer that are not the model's.
        evaluating: The modules in evaluation mode.
        stir: How much the loss depends on the seed with dropout on, relative; None
            without dropout.
        rates: The learning rates of all groups after each of the first steps.
        last_epoch: What the scheduler has counted; None without one.
        clipped_norm: What is left of a gradient with a norm of 10,000 when it gets to
            the optimizer; None if that could not be found out.
        rests: Whether a learning rate of zero keeps every parameter in place; None if
            that could not be found out.
    """

    ties: tuple[tuple[str, ...], ...] = ()
    apart: tuple[str, ...] = ()
    foreign: int = 0
    evaluating: frozenset[str] = frozenset()
    stir: float | None = None
    rates: tuple[tuple[float, ...], ...] = ()
    last_epoch: int | None = None
    clipped_norm: float | None = None
    rests: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """How a plan behaved on the guard's batches.

    Args:
        losses: The mean loss over the global batch at each step.
        norms: The norm of each parameter's gradient at the first step.
        samples: Some values of each of these gradients, always at the same places.
        moved: The parameters that changed within the first steps.
        buffers: Some values of each buffer, and of each parameter that requires no
            gradient, after the first steps.
        drift: How far these went within the first steps.
        updates: How far some values of each parameter went within the first steps.
        journey: The same over the whole trajectory; empty if it was not longer.
        noise: The relative change of a loss under the same or another random seed.
        gradient_noise: That of the gradient of the parameter where it is largest.
        swayed: The losses after the weights were rounded to bfloat16 once: how much
            such a small difference matters to this program.
        swayed_updates: How far the parameters went then within the first steps.
        swayed_journey: The same over the whole trajectory.
        swayed_buffers: The buffers then, after the first steps.
        nudged: The losses after the weights were moved by some of their last bits once:
            how far rounding alone takes this program. Empty unless it was asked for.
        accounting: Which samples were consumed.
        liveness: What trains, and what it obeys.
    """

    losses: tuple[float, ...]
    norms: Mapping[str, float]
    samples: _Values
    moved: frozenset[str]
    buffers: _Values = field(default_factory=dict)
    drift: _Values = field(default_factory=dict)
    updates: _Values = field(default_factory=dict)
    journey: _Values = field(default_factory=dict)
    noise: float = 0.0
    gradient_noise: float = 0.0
    swayed: tuple[float, ...] = ()
    swayed_updates: _Values = field(default_factory=dict)
    swayed_journey: _Values = field(default_factory=dict)
    swayed_buffers: _Values = field(default_factory=dict)
    nudged: tuple[float, ...] = ()
    accounting: Accounting = field(default_factory=Accounting)
    liveness: ParameterUsage = field(default_factory=ParameterUsage)
