"""Are the numbers still right? Compares a plan's behaviour with the baseline's.

A loss alone is not enough: an optimizer that holds stale parameters, or a wrong scale
of the gradient, leaves the first loss untouched. So it is asked, in this order: is
everything finite, are the samples the program's, does every parameter train and obey
what steers it, are the gradients of each parameter the same, the way that the parameters
went, the losses, and the buffers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from math import fsum
from typing import TYPE_CHECKING, Any

from drivetrain_core._choice import Numerics, Ok, Reject
from drivetrain_core._errors import Code
from drivetrain_core.numerics.observation import Observation
from drivetrain_core.numerics.structure_check import SOUND, some
from drivetrain_core.numerics.tolerance import (
    MOST_SLACK,
    Tolerance,
    cosine,
    distance,
    gap,
    projection,
    tolerance_of,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Observation", "Tolerance", "compare", "differences"]

# Gradients this much smaller than the largest one are rounding noise themselves.
_NEGLIGIBLE_NORM = 1e-4

# What rounding alone does to a loss, once, bounds what it does all the time, by this factor.
_NUDGES = 4.0

# An optimizer that divides by a gradient's size takes steps of rounding noise where there
# is no gradient, as of a bias before batch normalization: buffers see where they went, and
# are held to so many times what the program's own sway does to them, within a limit.
_SWAYS, _MOST_SWAYED = 2.0, 0.05

# What moves twice, or not at all, is astray by all of its way; rounding of the values
# themselves is no way.
MOST_ASTRAY, _ROUNDED_DRIFT = 0.5, 1e-3

# A loss near zero is compared with this part of the largest one: a small model learns
# the few batches by heart, and the rest is rounding.
_LOSS_FLOOR = 0.1


def differences(baseline: Observation, plan: Observation) -> dict[str, Any]:
    """Returns the largest relative differences, for the plan file."""
    names = [name for name in _telling(baseline) if name in plan.norms]
    gaps = {name: gap(baseline.norms[name], plan.norms[name]) for name in names}
    worst = max(gaps, key=lambda name: gaps[name], default="")
    cosines = [cosine(baseline.samples[n], plan.samples[n]) for n in names]
    return {
        "loss_rel": float(f"{max(_loss_gaps(baseline, plan), default=0.0):.2e}"),
        "worst_grad": worst,
        "worst_grad_rel": float(f"{gaps.get(worst, 0.0):.2e}"),
        "smallest_cosine": round(min(cosines, default=1.0), 6),
        "num_steps": len(plan.losses),
    }


def compare(
    baseline: Observation, plan: Observation, numerics: Numerics
) -> Ok | Reject:
    """Says whether a plan trains the same model as the baseline.

    Of two observations of different length, the steps that both have are compared.

    Args:
        baseline: The user's own program.
        plan: The same batches under the plan.
        numerics: What the plan declares to do to the numbers; it sets the bounds.

    Returns:
        `Ok` with the differences, or a `Reject` that names the worst parameters.

    Example:
        >>> good = Observation(losses=(2.0, 1.5), norms={"w": 1.0},
        ...     samples={"w": (0.6, 0.8)}, moved=frozenset({"w"}))
        >>> stale = Observation(losses=(2.0, 2.0), norms={"w": 1.0},
        ...     samples={"w": (0.6, 0.8)}, moved=frozenset())
        >>> compare(good, stale, Numerics.EXACT).because
        '1 parameter(s) do not train: w'
    """
    # A change of algorithm is the user's own word; only its sanity is checked.
    free = numerics is Numerics.CHANGES_ALGORITHM
    for sound in SOUND:
        because = sound(baseline, plan, free)
        if because:
            return _reject(because)
    if free:
        return Ok("another algorithm")
    bound = tolerance_of(numerics, baseline.noise, baseline.gradient_noise)
    for same in _SAME:
        because = same(baseline, plan, bound)
        if because:
            return _reject(because)
    return Ok(f"loss within {max(_loss_gaps(baseline, plan), default=0.0):.1e}")


def _same_gradients(baseline: Observation, plan: Observation, bound: Tolerance) -> str:
    turned, resized = [], []
    telling = _telling(baseline)
    if not telling:  # An optimizer that is stepped in the backward leaves none.
        return ""
    for name in telling:
        turn = 1.0 - cosine(baseline.samples[name], plan.samples[name])
        if turn > bound.turn:
            turned.append((turn, name))
        size = gap(baseline.norms[name], plan.norms[name])
        if size > bound.norm:
            resized.append((size, name))
    if turned or (resized and not _scaled_alike(baseline, plan, bound.norm)):
        worst = sorted(turned, reverse=True) + sorted(resized, reverse=True)
        names = list(dict.fromkeys(name for _, name in worst))
        return f"the gradient differs for {some(names)}"
    factor = total(plan.norms) / max(total(baseline.norms), 1e-30)
    if abs(factor - 1.0) > bound.total_norm:
        return (
            f"every gradient is {factor:.3f} times the baseline's: "
            f"{_accounting_of(factor, plan, bound.total_norm)}"
        )
    return ""


def _accounting_of(factor: float, plan: Observation, bound: float) -> str:
    """Says which accounting a factor of all gradients speaks of."""
    ranks, parts = plan.accounting.world_size, plan.accounting.num_micro_batches
    causes = (
        (ranks, f"they are summed over the {ranks} ranks, not averaged"),
        (1.0 / ranks, f"they are divided by the {ranks} ranks twice"),
        (parts, f"they are summed over the {parts} micro-batches, not averaged"),
        (1.0 / parts, f"they are divided by the {parts} micro-batches twice"),
        (ranks * parts, "they are summed over ranks and micro-batches, not averaged"),
    )
    for expected, cause in causes:
        if expected != 1 and abs(factor / expected - 1.0) <= 2.0 * bound:
            return f"the global batch is not accounted for right, {cause}"
    return "the global batch is not accounted for right"


def _scaled_alike(baseline: Observation, plan: Observation, bound: float) -> bool:
    """Returns whether the plan's gradients are the baseline's times one factor."""
    factors = [plan.norms[name] / baseline.norms[name] for name in _telling(baseline)]
    return len(factors) > 1 and max(factors) <= min(factors) * (1.0 + 2.0 * bound)


def _same_losses(baseline: Observation, plan: Observation, bound: Tolerance) -> str:
    sways = _apart_so_far(baseline, baseline.swayed)
    nudges = _apart_so_far(baseline, baseline.nudged)
    own = [bound.sway * s + _NUDGES * n for s, n in zip(sways, nudges, strict=True)]
    for index, away in enumerate(_loss_gaps(baseline, plan)):
        allowed = min(bound.loss + own[index], MOST_SLACK)
        if not away <= allowed:
            return (
                f"the loss differs at step {index + 1} by {away:.1e} of its value, "
                f"allowed is {allowed:.0e}"
            )
    number = min(len(baseline.losses), len(plan.losses))
    if not baseline.journey or not plan.journey:
        return ""
    expected, got = fsum(baseline.losses[:number]), fsum(plan.losses[:number])
    size = max(abs(expected), _LOSS_FLOOR * fsum(map(abs, baseline.losses[:number])))
    away = abs(got - expected) / max(size, 1e-30)
    allowed = min(bound.mean_loss + own[number - 1], MOST_SLACK)
    if not away <= allowed:
        return f"the mean loss differs by {away:.1e}, allowed is {allowed:.0e}"
    return ""


def _apart_so_far(baseline: Observation, losses: tuple[float, ...]) -> list[float]:
    """Returns how far a small change of the weights took each loss at most so far."""
    gaps = _loss_gaps(baseline, replace(baseline, losses=losses))
    gaps += [0.0] * (len(baseline.losses) - len(gaps))
    return list(accumulate(gaps, max))


def _same_way(baseline: Observation, plan: Observation, bound: Tolerance) -> str:
    """Compares how far the parameters went along the baseline's way.

    An optimizer whose updates round away, that misses its schedule, or that gets
    another gradient than was looked at, shows here before the loss does. A program that
    goes another way itself when its weights are rounded once is held to less.
    """
    for expected, got, swayed in (
        (baseline.updates, plan.updates, baseline.swayed_updates),
        (baseline.journey, plan.journey, baseline.swayed_journey),
    ):
        if not expected or not got:
            continue
        telling = _telling(baseline) or list(expected)
        names = [n for n in telling if n in expected and n in got]
        shares = {name: projection(expected[name], got[name]) for name in names}
        worst = sorted(names, key=lambda n: abs(shares[n] - 1.0), reverse=True)
        whole = projection(_chained(expected, names), _chained(got, names))
        if abs(whole - 1.0) > bound.way + _leeway(expected, swayed, names, bound):
            return f"the parameters go {whole:.1%} of the baseline's way: {some(worst)}"
        lost = [
            name
            for name in worst
            if abs(shares[name] - 1.0)
            > bound.own_way + _leeway(expected, swayed, [name], bound)
        ]
        if lost:
            return f"{some(lost)} go {shares[lost[0]]:.1%} of the baseline's way"
    return ""


def _leeway(
    expected: Mapping[str, Sequence[float]],
    swayed: Mapping[str, Sequence[float]],
    names: Sequence[str],
    bound: Tolerance,
) -> float:
    """Returns what the program's own sway adds to the bound of the way."""
    if any(name not in swayed for name in names):
        return 0.0
    share = projection(_chained(expected, names), _chained(swayed, names))
    return min(bound.sway * abs(share - 1.0), MOST_SLACK)


def _same_buffers(baseline: Observation, plan: Observation, bound: Tolerance) -> str:
    # A forward that runs twice, as under recomputation, updates its buffers twice.
    strayed = [
        name
        for name, values in baseline.buffers.items()
        if distance(values, plan.buffers.get(name, ()))
        > bound.buffer + _own_sway(values, baseline.swayed_buffers.get(name))
    ]
    return f"the buffer differs for {some(strayed)}" if strayed else ""


def _same_drift(baseline: Observation, plan: Observation, bound: Tolerance) -> str:
    # A running mean that moves by a thousandth a step hardly differs if it moves twice.
    strayed = []
    for name, way in baseline.drift.items():
        got, values = plan.drift.get(name, way), baseline.buffers[name]
        apart = math.dist(way, got)
        rounding = _ROUNDED_DRIFT * bound.buffer * math.hypot(*values)
        if apart > max(MOST_ASTRAY * math.hypot(*way), rounding):
            strayed.append(name)
    return f"the forward moves {some(strayed)} otherwise" if strayed else ""


def _own_sway(values: Sequence[float], swayed: Sequence[float] | None) -> float:
    if swayed is None:
        return 0.0
    return min(_MOST_SWAYED, _SWAYS * distance(values, swayed))


_SAME = (_same_gradients, _same_way, _same_losses, _same_buffers, _same_drift)


def _reject(because: str) -> Reject:
    return Reject(Code.NUMERICS, because, "drop the optimization, or report it")


def _telling(observation: Observation) -> list[str]:
    largest = max(observation.norms.values(), default=0.0)
    floor = largest * _NEGLIGIBLE_NORM
    return [name for name, norm in observation.norms.items() if norm > floor]


def _loss_gaps(baseline: Observation, plan: Observation) -> list[float]:
    floor = _LOSS_FLOOR * max((abs(x) for x in baseline.losses), default=0.0)
    pairs = zip(baseline.losses, plan.losses, strict=False)
    return [abs(b - a) / max(abs(a), floor, 1e-30) for a, b in pairs]


def _chained(
    values: Mapping[str, Sequence[float]], names: Sequence[str]
) -> list[float]:
    return [value for name in names for value in values[name]]
