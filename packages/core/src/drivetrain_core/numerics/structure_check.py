"""Structure check: what any plan must keep, whatever it does to the numbers.

Each check is a function of baseline, plan, and whether the algorithm may differ. It
returns what is wrong, or an empty text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_core.numerics.observation import Observation

# Clipping by a norm that was summed in another order or from bf16 values.
_CLIPPED_BOUND = 0.05

# Of the largest gradient, and of the longest way: what is smaller in both is what rounding
# leaves of zero, such as a bias before BatchNorm under SGD. Half of it may move nothing.
_ROUNDING_SHARE = 1e-6

# Dropout under another generator makes another loss, and hardly ever the same one.
_STIR_SHARE = 1e-4


def some(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are.

    Example:
        >>> some(["a", "b", "c", "d"])
        'a, b, c and 1 more'
    """
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def not_finite(seen: Observation) -> str:
    """Returns what of an observation is infinite or NaN; empty if nothing is."""
    for index, loss in enumerate(seen.losses):
        if not math.isfinite(loss):
            return f"the loss at step {index + 1} is {loss}"
    bad = [name for name, norm in seen.norms.items() if not math.isfinite(norm)]
    if bad:
        return f"the gradient is not finite for {some(bad)}"
    values = (seen.updates, seen.journey, seen.drift)
    bad = [n for v in values for n, x in v.items() if not all(map(math.isfinite, x))]
    return f"it becomes infinite or NaN: {some(bad)}" if bad else ""


def _finite(baseline: Observation, plan: Observation, free: bool) -> str:
    del baseline, free
    return not_finite(plan)


def _same_samples(baseline: Observation, plan: Observation, free: bool) -> str:
    expected, got = baseline.accounting, plan.accounting
    if free or not (expected.rows and got.rows):
        return ""
    if got.rows != expected.rows:
        return (
            f"{got.rows} samples go through the forward of a step on "
            f"{got.world_size} rank(s), the global batch has {expected.rows}"
        )
    if got.content != expected.content:
        return "a step trains on other samples than those of the global batch"
    return ""


def _same_data(baseline: Observation, plan: Observation, free: bool) -> str:
    expected, got = baseline.accounting, plan.accounting
    if free:
        return ""
    pairs = list(zip(expected.drawn, got.drawn, strict=False))
    for index, (theirs, ours) in enumerate(pairs):
        batch = f"batch {index + 1} of the loader"
        if len(ours) != len(theirs):
            return f"{batch} has {len(ours)} samples, the program's has {len(theirs)}"
        distinct = len(set(ours))
        if len(set(theirs)) == len(theirs) and 2 * distinct <= len(ours):
            return f"{batch} holds only {distinct} different samples of {len(ours)}"
        if ours == theirs or not expected.is_repeatable:
            continue
        if ours in expected.drawn:
            return f"{batch} is batch {expected.drawn.index(ours) + 1} of the program's"
        missing = len(set(theirs) - set(ours))
        return f"{batch} holds other samples than the program's, {missing} are missing"
    return ""


def _alive(baseline: Observation, plan: Observation, free: bool) -> str:
    del free
    missing = [name for name in baseline.norms if name not in plan.norms]
    if missing:
        return f"{len(missing)} parameter(s) get no gradient: {some(missing)}"
    foreign = plan.liveness.foreign
    cause = f"the optimizer holds {foreign} tensor(s) that are not the model's"
    ways = {n: max(map(abs, x), default=0.0) for n, x in baseline.updates.items()}
    frozen = sorted(baseline.moved - plan.moved - (_tiny(baseline.norms) & _tiny(ways)))
    if frozen:
        because = f"{len(frozen)} parameter(s) do not train: {some(frozen)}"
        return f"{because}; {cause}" if foreign else because
    if foreign:
        return cause
    floor = 1e-4 * max(baseline.norms.values(), default=0.0)
    new = [n for n, x in plan.norms.items() if n not in baseline.norms and x > floor]
    if new and baseline.norms:
        return f"{len(new)} parameter(s) train that the program keeps: {some(new)}"
    return ""


def _tiny(sizes: Mapping[str, float]) -> set[str]:
    """Returns what is as small, beside the largest, as rounding makes of zero."""
    floor = _ROUNDING_SHARE * max(sizes.values(), default=0.0)
    return {name for name, size in sizes.items() if size <= floor}


def _tied(baseline: Observation, plan: Observation, free: bool) -> str:
    del free
    found: list[set[str]] = []
    for names in map(set, plan.liveness.ties):
        # Ties within a stage of a pipeline, and ties between stages, are told apart.
        joined = [other for other in found if other & names]
        found = [names.union(*joined), *(o for o in found if o not in joined)]
    for group in baseline.liveness.ties:
        if not any(set(group) <= names for names in found):
            return f"the tie of {' and '.join(group)} is broken"
    return ""


def _replicated(baseline: Observation, plan: Observation, free: bool) -> str:
    del baseline, free
    names = plan.liveness.apart
    cause = "where a step leaves some out, ddp needs find_unused_parameters=True"
    return f"the ranks drift apart in {some(names)}; {cause}" if names else ""


def _steered(baseline: Observation, plan: Observation, free: bool) -> str:
    expected, got = baseline.liveness, plan.liveness
    frozen = sorted(got.evaluating - expected.evaluating)
    if frozen:
        names = some([name or "the model" for name in frozen])
        return f"{len(frozen)} module(s) are left in evaluation mode: {names}"
    if expected.stir is not None and (got.stir or 0.0) < _STIR_SHARE * expected.stir:
        return "dropout does nothing"
    if expected.rests and got.rests is False:
        return "the optimizer does not follow the learning rate of its groups"
    if free:
        return ""
    if expected.rates and got.rates and not _near(expected.rates, got.rates):
        return (
            f"the learning rate is {got.rates[-1]}, the program's {expected.rates[-1]}"
        )
    if got.last_epoch != expected.last_epoch:
        return f"the scheduler has counted {got.last_epoch} steps, the program's {expected.last_epoch}"
    if expected.clipped_norm is not None:
        left = got.clipped_norm
        if left is None or abs(left / expected.clipped_norm - 1.0) > _CLIPPED_BOUND:
            shown = "nothing" if left is None else f"a norm of {left:.3g}"
            return (
                f"of a huge gradient {shown} gets to the optimizer, in the program "
                f"{expected.clipped_norm:.3g}: clipping differs"
            )
    return ""


def _near(expected: Sequence[Sequence[float]], got: Sequence[Sequence[float]]) -> bool:
    """Returns whether the rates are the same; a plan may order its groups otherwise."""
    return all(
        sorted(set(a)) == sorted(set(b)) for a, b in zip(expected, got, strict=False)
    )


SOUND = (_finite, _same_samples, _same_data, _tied, _alive, _replicated, _steered)
"""All checks, in order."""
