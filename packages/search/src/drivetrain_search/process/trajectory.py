"""Trajectory of a built program: its first steps, and what it does beyond them.

Further steps, noise, and a run from rounded weights widen or sharpen what a plan is held
to. They are made as far as there is time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.extending import map_tensors
from drivetrain_core.numerics import observe, parameter_usage
from drivetrain_core.numerics.observation import FIRST_STEPS
from drivetrain_search.process.meters import StepClock
from drivetrain_search.process.pace import ALL_PASSES, passes_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_core import Accelerated
    from drivetrain_core.numerics.observation import Observation

_NUDGE = 4.0


def observe_trajectory(
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
    num_steps = max(num_steps, FIRST_STEPS)
    steps = [batches[i % len(batches)] for i in range(num_steps)]
    clock = StepClock(accelerated.device, watch)
    module = observe.whole_model(accelerated)
    has_dropout = bool(parameter_usage.dropouts(module))
    # On the host: the device may have no room for the parameters twice.
    origin = _origin(accelerated) if noise else None
    with observe.without_dropout(module):
        travel = observe.Travel(accelerated)
        seen = observe.observe_steps(
            accelerated, steps[:FIRST_STEPS], travel, seed=seed, around=clock.step
        )
        passes = ALL_PASSES
        if until_s is not None:
            passes = passes_within(
                clock.steps_until(until_s),
                has_dropout=has_dropout,
                may_sway=origin is not None,
            )
        steps = steps[: passes.steps]
        if further := _further(accelerated, steps):
            losses = (*seen.losses, *further)
            seen = replace(seen, losses=losses, journey=travel.so_far())
        if noise and passes.noise:
            seen = replace(seen, **_noise(accelerated, steps[0], seed, passes.noise))
    accounting = replace(seen.accounting, drawn=drawn, is_repeatable=is_repeatable)
    seen = replace(seen, accounting=accounting)
    seen = observe.with_parameter_usage(accelerated, seen, steps[0], seed=seed)
    if origin is not None and passes.is_swayed:
        seen = replace(seen, **_swayed(accelerated, origin, steps, seed))
    return seen


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


def _further(accelerated: Accelerated, steps: Sequence[Any]) -> list[float]:
    """Trains beyond the first of the steps, and returns the losses there."""
    step = accelerated.train_step
    return [observe.mean_loss(step(batch)) for batch in steps[FIRST_STEPS:]]


def _noise(
    accelerated: Accelerated, batch: Any, seed: int, passes: int
) -> dict[str, Any]:
    """Returns how far loss and gradient are apart under another and the same seed."""
    found = []
    for again in (seed, seed + 1, seed)[:passes]:
        loss = observe.seeded_loss(accelerated, batch, again)
        found.append((loss, observe.Gradient.of(accelerated)))
        accelerated.optimizer.zero_grad(set_to_none=True)
    (first, gradient), *others = found
    gap = max(abs(loss - first) for loss, _ in others)
    return {
        "noise": gap / max(abs(first), 1e-30),
        "gradient_noise": max(_distance(gradient, other) for _, other in others),
    }


def _distance(one: observe.Gradient, other: observe.Gradient) -> float:
    """Returns the largest relative difference of a parameter that matters."""
    floor = 1e-3 * max(one.norms.values(), default=0.0)
    gaps = [0.0]
    for name, norm in one.norms.items():
        if norm > floor and name in other.norms:
            a = torch.tensor(one.samples[name])
            b = torch.tensor(other.samples[name])
            gaps.append(abs(norm - other.norms[name]) / norm)
            gaps.append(1.0 - float(torch.cosine_similarity(a, b, dim=0)))
    return max(gaps)


def _origin(accelerated: Accelerated) -> dict[str, Any] | None:
    """Returns a copy of all state; None if it cannot be had, or not be put back."""
    if any(hasattr(p, "full_tensor") for p in accelerated.module.parameters()):
        return None
    try:
        state = accelerated.state_dict()
        return dict(map_tensors(lambda t: t.detach().cpu().clone(), state))
    except Exception:  # noqa: BLE001
        # An optimizer of others may have no state dict: bounds are not widened then.
        return None


def _swayed(
    accelerated: Accelerated, origin: dict[str, Any], steps: Sequence[Any], seed: int
) -> dict[str, Any]:
    """Trains from the start again, with weights rounded to bfloat16."""
    try:
        accelerated.load_state_dict(origin)
    except Exception:  # noqa: BLE001
        # As above; nothing is observed after this.
        return {}
    with torch.no_grad():
        for tensor in parameter_usage.trained(accelerated).values():
            tensor.copy_(tensor.cpu().bfloat16().to(tensor.dtype))
    travel, step = observe.Travel(accelerated), accelerated.train_step
    with observe.without_dropout(accelerated.module):
        torch.manual_seed(seed)
        losses = [observe.mean_loss(step(batch)) for batch in steps[:FIRST_STEPS]]
        updates, buffers = travel.so_far(), observe.sampled_buffers(accelerated)
        losses += _further(accelerated, steps)
    return {
        "swayed": tuple(losses),
        "swayed_updates": updates,
        "swayed_journey": travel.so_far(),
        "swayed_buffers": buffers,
    }
