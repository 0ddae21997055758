"""Takes the guard's observation of a built program.

`observe` is all of it for few steps. What watches a program for longer puts it together
from `observe_steps` and `with_parameter_usage`, and trains on in between.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_core._data.batch import batch_size
from drivetrain_core.numerics import parameter_usage
from drivetrain_core.numerics.checksum import gathered, row_checksums
from drivetrain_core.numerics.observation import (
    FIRST_STEPS,
    Accounting,
    Observation,
    ParameterUsage,
)
from drivetrain_core.numerics.parameter_usage import without_dropout
from drivetrain_core.numerics.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from drivetrain_core._accelerated import Accelerated

__all__ = [
    "Gradient",
    "Travel",
    "mean_loss",
    "observe",
    "observe_steps",
    "sampled_buffers",
    "seeded_loss",
    "whole_model",
    "with_parameter_usage",
    "without_dropout",
]

_VALUES_IN_ALL = 65_536
_VALUES_A_TENSOR = 512


def observe(
    accelerated: Accelerated,
    batches: Sequence[Any],
    *,
    seed: int,
    num_steps: int = FIRST_STEPS,
    steers: bool = True,
) -> Observation:
    """Trains on the batches and returns how the program behaved.

    Args:
        accelerated: The built program; it is trained, as in real use.
        batches: This rank's batches, one a step, and again from the first.
        seed: Random seed of the first pass.
        num_steps: Steps to train for, at least one.
        steers: Whether to look in further passes at what dropout, clipping and a
            learning rate of zero do.
    """
    steps = [batches[i % len(batches)] for i in range(num_steps)]
    with without_dropout(whole_model(accelerated)):
        seen = observe_steps(accelerated, steps, Travel(accelerated), seed=seed)
    return with_parameter_usage(accelerated, seen, steps[0], seed=seed, steers=steers)


def observe_steps(
    accelerated: Accelerated,
    batches: Sequence[Any],
    travel: Travel,
    *,
    seed: int,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Observation:
    """Trains for the first steps and returns what they did; call it without dropout.

    Args:
        accelerated: The built program, before its first step.
        batches: This rank's batches, one a step.
        travel: Made just before.
        seed: Random seed of the first pass.
        around: Entered around each step.
    """
    view, step = View(accelerated), accelerated.train_step
    kept = sampled_buffers(accelerated)
    evaluating = set().union(*map(parameter_usage.evaluating, accelerated.models()))
    modes = frozenset(view.united(dict.fromkeys(evaluating, True)))
    sums = parameter_usage.checksums(travel.tensors)
    torch.manual_seed(seed)
    with around():
        with _counted(step) as counts:
            losses = [mean_loss(step.accumulate(batches[0]))]
        gradient = Gradient.of(accelerated)
        step.second_pass(batches[0])
        step.optimizer_step()
    rates = [parameter_usage.rates(accelerated.optimizer)]
    for batch in batches[1:]:
        with around():
            losses.append(mean_loss(step(batch)))
        rates.append(parameter_usage.rates(accelerated.optimizer))
    counted = getattr(accelerated.scheduler, "last_epoch", None)
    buffers = sampled_buffers(accelerated)
    return Observation(
        losses=tuple(losses),
        norms=gradient.norms,
        samples=gradient.samples,
        moved=_changed(view, sums, parameter_usage.checksums(travel.tensors)),
        buffers=buffers,
        drift=_ways(kept, buffers),
        updates=travel.so_far(),
        accounting=Accounting(
            **_totals(counts, view.copies),
            world_size=accelerated.context.world.size,
            num_micro_batches=step._num_micro_batches,
        ),
        liveness=ParameterUsage(
            evaluating=modes,
            rates=tuple(rates),
            last_epoch=counted if isinstance(counted, int) else None,
        ),
    )


def with_parameter_usage(
    accelerated: Accelerated,
    seen: Observation,
    batch: Any,
    *,
    seed: int,
    steers: bool = True,
) -> Observation:
    """Returns an observation with what trains in the program now, and what it obeys.

    Args:
        accelerated: The built program, after the steps that were observed.
        seen: What they did.
        batch: This rank's batch for further passes.
        seed: Their random seed.
        steers: Whether to make them: they show what dropout, clipping and a learning
            rate of zero do.
    """
    usage = replace(
        seen.liveness,
        ties=_ties(accelerated),
        apart=parameter_usage.apart(View(accelerated)),
        foreign=parameter_usage.foreign(accelerated),
    )
    if steers:
        usage = replace(usage, stir=_stir(accelerated, batch, seed))
        usage = replace(usage, **_poke(accelerated, batch, seed)._asdict())
    return replace(seen, liveness=usage)


class Travel:
    """How far some values of what the optimizer steps have gone since this was made.

    Args:
        accelerated: The built program.

    Attributes:
        tensors: What the optimizer steps, by the names on this rank.
    """

    def __init__(self, accelerated: Accelerated) -> None:
        """Keeps these values."""
        self.tensors = parameter_usage.trained(accelerated)
        self._view = View(accelerated)
        self._start = _samples(self._view, self.tensors)

    def so_far(self) -> dict[str, tuple[float, ...]]:
        """Returns the way of each tensor, by the names of the model as written."""
        return _ways(self._start, _samples(self._view, self.tensors))


class Gradient(NamedTuple):
    """The gradient of each parameter.

    Attributes:
        norms: Its norm, by the name in the model as written.
        samples: Some of its values, always at the same places.
    """

    norms: dict[str, float]
    samples: dict[str, tuple[float, ...]]

    @classmethod
    def of(cls, accelerated: Accelerated) -> Gradient:
        """Returns the gradients that a built program has now.

        Args:
            accelerated: The built program, after a pass.
        """
        view = View(accelerated)
        # One after the other: all of them together may not fit a second time.
        named = view.gradients()
        number = view.number(named)
        norms, samples = {}, {}
        for name, gradient in view.whole(named):
            whole = _real(gradient.to_dense())
            norms[name] = float(whole.norm())
            samples[name] = _picked(whole, number)
        return cls(view.united(norms), view.united(samples))


@contextmanager
def _counted(step: Any) -> Iterator[list[tuple[int, int]]]:
    """Counts what the step sends through its forward inside.

    Yields the rows and a checksum of each micro-batch so far, on this rank.
    """
    forward, found = step._forward, []

    def counting(model: torch.nn.Module, batch: Any) -> Any:
        found.append((batch_size(batch), int(row_checksums(batch).sum())))
        return forward(model, batch)

    step._forward = counting
    try:
        yield found
    finally:
        step._forward = forward


def _totals(found: Sequence[tuple[int, int]], copies: int) -> dict[str, Any]:
    """Returns the sums over all ranks; nothing where ranks share samples.

    Args:
        found: Rows and checksum of each micro-batch on this rank.
        copies: How many ranks read each sample.
    """
    if copies > 1:
        return {}
    every = [part for parts in gathered(found) for part in parts]
    return {
        "rows": sum(rows for rows, _ in every),
        "content": sum(content for _, content in every) % 2**63,
    }


def _stir(accelerated: Accelerated, batch: Any, seed: int) -> float | None:
    """Returns how much dropout changes the loss from seed to seed."""
    if not parameter_usage.dropouts(whole_model(accelerated)):
        return None
    losses = []
    for other in (seed, seed + 1):
        losses.append(seeded_loss(accelerated, batch, other))
        accelerated.optimizer.zero_grad(set_to_none=True)
    return abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-30)


def _poke(accelerated: Accelerated, batch: Any, seed: int) -> parameter_usage.Poked:
    with without_dropout(whole_model(accelerated)):
        seeded_loss(accelerated, batch, seed)
        accelerated.train_step.second_pass(batch)
        return parameter_usage.poke(accelerated)


def seeded_loss(accelerated: Accelerated, batch: Any, seed: int) -> float:
    """Returns the loss of a pass under a random seed; it leaves its gradients.

    Args:
        accelerated: The built program.
        batch: This rank's batch.
        seed: The seed.
    """
    torch.manual_seed(seed)
    return mean_loss(accelerated.train_step.accumulate(batch))


def _changed(
    view: View, before: Mapping[str, int], after: Mapping[str, int]
) -> frozenset[str]:
    """Returns the names of what changed on any rank."""
    mine = [view.name(name) for name in before if before[name] != after[name]]
    return frozenset(name for names in gathered(mine) for name in names)


def sampled_buffers(accelerated: Accelerated) -> dict[str, tuple[float, ...]]:
    """Returns some values of each buffer and frozen parameter, always at the same places.

    Args:
        accelerated: The built program.
    """
    view = View(accelerated)
    frozen = {n: p for n, p in view.parameters().items() if not p.requires_grad}
    held = {**frozen, **view.buffers()}
    return _samples(view, {n: t for n, t in held.items() if not t.is_complex()})


def _samples(
    view: View, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[float, ...]]:
    number = view.number(tensors)
    return view.united(
        {name: _picked(_real(tensor), number) for name, tensor in view.whole(tensors)}
    )


def _ways(
    start: Mapping[str, tuple[float, ...]], end: Mapping[str, tuple[float, ...]]
) -> dict[str, tuple[float, ...]]:
    """Returns how far values went; what is infinite and stays has not moved."""
    return {
        name: tuple(0.0 if a == b else b - a for a, b in zip(v, end[name], strict=True))
        for name, v in start.items()
    }


def whole_model(accelerated: Accelerated) -> torch.nn.Module:
    """Returns what a rank has of a model, to be looked through as one module.

    Args:
        accelerated: The built program.
    """
    return torch.nn.ModuleList(accelerated.models())


def _ties(accelerated: Accelerated) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of names that share a parameter, over all stages as well."""
    models = accelerated.models()
    here = [group for model in models for group in parameter_usage.ties(model)]
    # A rank of a pipeline has the weights of its stages alone.
    found = [group for groups in gathered(here) for group in groups]
    return (*found, *accelerated.ties_of_stages())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in fp32, of complex ones both parts."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).float()


def _picked(tensor: torch.Tensor, num_tensors: int) -> tuple[float, ...]:
    """Returns values at fixed, evenly spread places of one of several tensors."""
    flat = tensor.flatten()
    if not len(flat):
        return ()
    share = max(8, _VALUES_IN_ALL // max(num_tensors, 1))
    number = min(_VALUES_A_TENSOR, share)
    places = torch.linspace(0, len(flat) - 1, number, dtype=torch.float64).long()
    return tuple(flat[places.to(flat.device)].tolist())


def mean_loss(loss: torch.Tensor) -> float:
    """Returns the mean over ranks, which is the loss of the global batch.

    Args:
        loss: That of this rank's part.
    """
    value = loss.detach().float().clone()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return float(value)
