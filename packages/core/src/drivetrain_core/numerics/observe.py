"""Takes the guard's observation of a built program."""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_core._data.batch import batch_size, map_tensors
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.numerics import parameter_usage
from drivetrain_core.numerics.checksum import gathered, row_checksums
from drivetrain_core.numerics.observation import (
    Accounting,
    Observation,
    ParameterUsage,
)
from drivetrain_core.numerics.pace import (
    ALL_PASSES,
    FIRST_STEPS,
    TRAJECTORY_STEPS,
    passes_within,
)
from drivetrain_core.numerics.parameter_usage import without_dropout
from drivetrain_core.numerics.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from drivetrain_core._accelerated import Accelerated

__all__ = [
    "FIRST_STEPS",
    "TRAJECTORY_STEPS",
    "nudge",
    "observe",
    "passes_seconds",
    "timed_passes",
    "without_dropout",
]

_VALUES_IN_ALL = 65_536
_VALUES_A_TENSOR = 512
_NUDGE = 4.0


def observe(
    accelerated: Accelerated,
    batches: Sequence[Any],
    *,
    seed: int,
    noise: bool,
    num_steps: int = FIRST_STEPS,
    drawn: tuple[tuple[int, ...], ...] = (),
    is_repeatable: bool = True,
    until_s: float | None = None,
    watch: Callable[[Sequence[float]], None] | None = None,
) -> Observation:
    """Trains on the batches and returns how the program behaved.

    Args:
        accelerated: The built program; it is trained, as in real use.
        batches: This rank's batches, one a step, and again from the first.
        seed: Random seed of the first pass.
        noise: Whether to measure how much loss and gradient depend on chance.
        num_steps: Steps in all at most; never less than the first ones.
        drawn: What the loader yielded, as `draw` returns it.
        is_repeatable: Whether it yields the same again.
        until_s: When it shall be done, in `time.monotonic` seconds: passes beyond the
            first steps fill the time until then. None to make them all.
        watch: Told what each of the first steps took so far, after each of them; what
            it raises ends the observation.
    """
    view, step = View(accelerated), accelerated.train_step
    module = _Together(accelerated.models())
    num_steps = max(num_steps, FIRST_STEPS)
    steps = [batches[i % len(batches)] for i in range(num_steps)]
    clock = _StepClock(accelerated.device, watch)
    evaluating = set().union(*map(parameter_usage.evaluating, accelerated.models()))
    modes = frozenset(view.united(dict.fromkeys(evaluating, True)))
    has_dropout = bool(parameter_usage.dropouts(module))
    # On the host: the device may have no room for the parameters twice.
    origin = _origin(accelerated) if noise else None
    with without_dropout(module):
        watched = parameter_usage.trained(accelerated)
        start, sums = _samples(view, watched), parameter_usage.checksums(watched)
        torch.manual_seed(seed)
        clock.start()
        with _counted(step) as counter:
            losses = [_mean(step.accumulate(steps[0]))]
        gradient = _Gradient.of(view)
        step.second_pass(steps[0])
        step.optimizer_step()
        clock.stop()
        rates = [parameter_usage.rates(accelerated.optimizer)]
        for batch in steps[1:FIRST_STEPS]:
            clock.start()
            losses.append(_mean(step(batch)))
            clock.stop()
            rates.append(parameter_usage.rates(accelerated.optimizer))
        moved = _changed(view, sums, parameter_usage.checksums(watched))
        updates = _travel(start, _samples(view, watched))
        buffers = _buffers(view)
        counted = getattr(accelerated.scheduler, "last_epoch", None)
        passes = ALL_PASSES
        if until_s is not None:
            passes = passes_within(
                clock.steps_until(until_s),
                has_dropout=has_dropout,
                may_sway=origin is not None,
            )
        steps = steps[: passes.steps]
        losses += [_mean(step(batch)) for batch in steps[FIRST_STEPS:]]
        longer = len(steps) > FIRST_STEPS
        journey = _travel(start, _samples(view, watched)) if longer else {}
        loss_noise, gradient_noise = 0.0, 0.0
        if noise and passes.noise:
            loss_noise, gradient_noise = _noise(
                accelerated, steps[0], seed, passes.noise
            )
    apart = parameter_usage.apart(view)
    stir = _stir(accelerated, steps[0], seed)
    poked = _poke(accelerated, steps[0], seed)
    swayed = _Swayed()
    if origin is not None and passes.is_swayed:
        swayed = _swayed(accelerated, origin, steps, seed)
    return Observation(
        losses=tuple(losses),
        norms=gradient.norms,
        samples=gradient.samples,
        moved=moved,
        buffers=buffers,
        updates=updates,
        journey=journey,
        noise=loss_noise,
        gradient_noise=gradient_noise,
        swayed=swayed.losses,
        swayed_updates=swayed.updates,
        swayed_journey=swayed.journey,
        swayed_buffers=swayed.buffers,
        accounting=Accounting(
            **counter.total(view.copies),
            drawn=drawn,
            is_repeatable=is_repeatable,
            world_size=accelerated.context.world.size,
            num_micro_batches=step._num_micro_batches,
        ),
        liveness=ParameterUsage(
            ties=_ties(accelerated),
            apart=apart,
            foreign=parameter_usage.foreign(accelerated),
            evaluating=modes,
            stir=stir,
            rates=tuple(rates),
            last_epoch=counted if isinstance(counted, int) else None,
            clipped_norm=poked.clipped_norm,
            rests=poked.rests,
        ),
    )


def nudge(accelerated: Accelerated) -> None:
    """Moves each weight by up to four units in its last place, the same on all ranks.

    What follows shows how far rounding alone takes a program. Sharded weights stay as
    they are.

    Args:
        accelerated: The built program, before its first step.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in parameter_usage.trained(accelerated).values():
            if not tensor.is_floating_point() or hasattr(tensor, "full_tensor"):
                continue
            drift = 2.0 * torch.rand(tensor.shape, generator=generator) - 1.0
            unit = torch.finfo(tensor.dtype).eps
            tensor.mul_((1.0 + _NUDGE * unit * drift).to(tensor))


class _StepClock:
    """Times the first steps, the same on every rank.

    Args:
        device: Where the steps run.
        watch: Told the seconds of the steps so far after each.
    """

    def __init__(
        self,
        device: torch.device,
        watch: Callable[[Sequence[float]], None] | None,
    ) -> None:
        self._wait = accelerator_of(device).synchronize
        self._watch = watch
        self._started_s = 0.0
        self._seconds: list[float] = []

    def start(self) -> None:
        self._started_s = self._now_s()

    def stop(self) -> None:
        self._seconds.append(max(gathered(self._now_s() - self._started_s)))
        if self._watch is not None:
            self._watch(self._seconds)

    def steps_until(self, until_s: float) -> float:
        """Returns how many more such steps fit; the first one also warmed up."""
        left_s = float(min(gathered(until_s - self._now_s())))
        return max(left_s, 0.0) / max(statistics.median(self._seconds[1:]), 1e-9)

    def _now_s(self) -> float:
        self._wait()
        return time.monotonic()


@contextmanager
def timed_passes(
    accelerated: Accelerated, told: Callable[[float], None] | None = None
) -> Iterator[list[float]]:
    """Times the passes over batches inside; yields the seconds of each so far.

    Args:
        accelerated: The built program.
        told: Called with the seconds of each pass.
    """
    step: Any = accelerated.train_step
    accumulate, wait = step.accumulate, accelerator_of(accelerated.device).synchronize
    times: list[float] = []

    def timed(batch: Any) -> torch.Tensor:
        start = time.perf_counter()
        loss: torch.Tensor = accumulate(batch)
        wait()
        times.append(time.perf_counter() - start)
        if told is not None:
            told(times[-1])
        return loss

    step.accumulate = timed
    try:
        yield times
    finally:
        step.accumulate = accumulate


def passes_seconds(times: Sequence[float]) -> float:
    """Returns what passes took in all, without what was compiled in some of them.

    Args:
        times: Seconds of each pass; more than the median is not the pass itself.

    Example:
        >>> passes_seconds([9.0, 0.5, 0.25, 0.5])
        1.75
    """
    if not times:
        return 0.0
    usual = statistics.median(times)
    return sum(min(seconds, usual) for seconds in times)


class _Gradient(NamedTuple):
    """The gradient of each parameter: its norm, and some of its values."""

    norms: dict[str, float]
    samples: dict[str, tuple[float, ...]]

    @classmethod
    def of(cls, view: View) -> _Gradient:
        # One after the other: all of them together may not fit a second time.
        named = view.gradients()
        number = view.number(named)
        norms, samples = {}, {}
        for name, gradient in view.whole(named):
            whole = _real(gradient.to_dense())
            norms[name] = float(whole.norm())
            samples[name] = _picked(whole, number)
        return cls(view.united(norms), view.united(samples))

    def away_from(self, other: _Gradient) -> float:
        """Returns the largest relative difference of a parameter that matters."""
        floor = 1e-3 * max(self.norms.values(), default=0.0)
        gaps = [0.0]
        for name, norm in self.norms.items():
            if norm > floor and name in other.norms:
                a = torch.tensor(self.samples[name])
                b = torch.tensor(other.samples[name])
                gaps.append(abs(norm - other.norms[name]) / norm)
                gaps.append(1.0 - float(torch.cosine_similarity(a, b, dim=0)))
        return max(gaps)


class _Counter:
    """What goes through the forward on this rank."""

    def __init__(self) -> None:
        self.rows = 0
        self.content = 0

    def add(self, batch: Any) -> None:
        self.rows += batch_size(batch)
        self.content += int(row_checksums(batch).sum())

    def total(self, copies: int) -> dict[str, int]:
        """Returns the sums over all ranks; nothing where ranks share samples.

        Args:
            copies: How many ranks read each sample.
        """
        if copies > 1:
            return {}
        parts = gathered((self.rows, self.content))
        return {
            "rows": sum(rows for rows, _ in parts),
            "content": sum(content for _, content in parts) % 2**63,
        }


@contextmanager
def _counted(step: Any) -> Iterator[_Counter]:
    """Counts the samples that the step sends through its forward inside."""
    counter = _Counter()
    with _before_each_forward(step, counter.add):
        yield counter


@contextmanager
def _before_each_forward(step: Any, call: Callable[[Any], None]) -> Iterator[None]:
    """Shows each micro-batch to a function before the step's forward gets it."""
    forward = step._forward

    def calling(model: torch.nn.Module, batch: Any) -> Any:
        call(batch)
        return forward(model, batch)

    step._forward = calling
    try:
        yield
    finally:
        step._forward = forward


def _noise(
    accelerated: Accelerated, batch: Any, seed: int, passes: int
) -> tuple[float, float]:
    """Returns how far loss and gradient are apart under another and the same seed."""
    found = []
    for again in (seed, seed + 1, seed)[:passes]:
        loss = _pass(accelerated, batch, again)
        found.append((loss, _Gradient.of(View(accelerated))))
        accelerated.optimizer.zero_grad(set_to_none=True)
    (first, gradient), *others = found
    return (
        max(abs(loss - first) for loss, _ in others) / max(abs(first), 1e-30),
        max(gradient.away_from(other) for _, other in others),
    )


def _stir(accelerated: Accelerated, batch: Any, seed: int) -> float | None:
    """Returns how much dropout changes the loss from seed to seed."""
    if not parameter_usage.dropouts(_Together(accelerated.models())):
        return None
    losses = []
    for other in (seed, seed + 1):
        losses.append(_pass(accelerated, batch, other))
        accelerated.optimizer.zero_grad(set_to_none=True)
    return abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-30)


def _poke(accelerated: Accelerated, batch: Any, seed: int) -> parameter_usage.Poked:
    with without_dropout(_Together(accelerated.models())):
        _pass(accelerated, batch, seed)
        accelerated.train_step.second_pass(batch)
        return parameter_usage.poke(accelerated)


def _origin(accelerated: Accelerated) -> dict[str, Any] | None:
    """Returns a copy of all state; None if it cannot be had, or not be put back."""
    if any(hasattr(p, "full_tensor") for p in accelerated.module.parameters()):
        return None
    try:
        return _on_host(accelerated.state_dict())
    except Exception:  # noqa: BLE001
        # An optimizer of others may have no state dict: bounds are not widened then.
        return None


@dataclass(frozen=True, slots=True)
class _Swayed:
    """The program's own run from weights that were rounded to bfloat16."""

    losses: tuple[float, ...] = ()
    updates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    journey: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def _swayed(
    accelerated: Accelerated, origin: dict[str, Any], steps: Sequence[Any], seed: int
) -> _Swayed:
    """Trains from the start again, with weights rounded to bfloat16."""
    try:
        accelerated.load_state_dict(origin)
    except Exception:  # noqa: BLE001
        # As above; nothing is observed after this.
        return _Swayed()
    watched = parameter_usage.trained(accelerated)
    with torch.no_grad():
        for tensor in watched.values():
            tensor.copy_(tensor.cpu().bfloat16().to(tensor.dtype))
    view = View(accelerated)
    start, step = _samples(view, watched), accelerated.train_step
    with without_dropout(accelerated.module):
        torch.manual_seed(seed)
        losses = [_mean(step(batch)) for batch in steps[:FIRST_STEPS]]
        updates, buffers = _travel(start, _samples(view, watched)), _buffers(view)
        losses += [_mean(step(batch)) for batch in steps[FIRST_STEPS:]]
    journey = _travel(start, _samples(view, watched))
    return _Swayed(tuple(losses), updates, journey, buffers)


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = map_tensors(lambda t: t.detach().cpu().clone(), state)
    return copied


def _pass(accelerated: Accelerated, batch: Any, seed: int) -> float:
    torch.manual_seed(seed)
    return _mean(accelerated.train_step.accumulate(batch))


def _changed(
    view: View, before: Mapping[str, int], after: Mapping[str, int]
) -> frozenset[str]:
    """Returns the names of what changed on any rank."""
    mine = [view.name(name) for name in before if before[name] != after[name]]
    return frozenset(name for names in gathered(mine) for name in names)


def _travel(
    start: Mapping[str, Sequence[float]], end: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(b - a for a, b in zip(values, end[name], strict=True))
        for name, values in start.items()
    }


def _buffers(view: View) -> dict[str, tuple[float, ...]]:
    real = {n: b for n, b in view.buffers().items() if not b.is_complex()}
    return _samples(view, real)


def _samples(
    view: View, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[float, ...]]:
    number = view.number(tensors)
    return view.united(
        {name: _picked(_real(tensor), number) for name, tensor in view.whole(tensors)}
    )


class _Together(torch.nn.Module):
    """What a rank has of a model, to be looked through as one module."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.models = torch.nn.ModuleList(models)


def _ties(accelerated: Accelerated) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of names that share a parameter, over all stages as well."""
    found = [
        group for model in accelerated.models() for group in parameter_usage.ties(model)
    ]
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


def _mean(loss: torch.Tensor) -> float:
    """Returns the mean over ranks, which is the loss of the global batch."""
    value = loss.detach().float().clone()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return float(value)
