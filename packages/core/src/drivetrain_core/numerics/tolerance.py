"""How far a plan may be from the baseline, and how that is measured."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core._choice import Numerics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How far a plan may be from the baseline.

    Args:
        loss: Relative difference of any loss.
        mean_loss: Relative difference of the mean loss of a whole trajectory, in which
            what is random about the differences cancels.
        sway: How much of the program's own sway widens the bounds of the losses and of
            the way.
        norm: Relative difference of one gradient's norm.
        turn: One minus the cosine between one gradient and the baseline's.
        total_norm: Relative difference of the norm of all gradients together.
        buffer: Relative difference of the values of one buffer.
        way: Share of the way of all parameters that may be missing or too much.
        own_way: The same of one parameter; wider, since an optimizer that divides by
            the gradient's size makes steps of rounding noise.
    """

    loss: float
    mean_loss: float
    sway: float
    norm: float
    turn: float
    total_norm: float
    buffer: float
    way: float
    own_way: float


_BOUNDS = {
    Numerics[name.upper()]: Tolerance(**row)
    for name, row in tomllib.loads(
        (files(__package__) / "tolerance.toml").read_text(encoding="utf-8")
    ).items()
}

MOST_SLACK = 0.4
"""What no noise widens a bound beyond."""

_NOISE_FACTOR = 4.0


def tolerance_of(numerics: Numerics, noise: float, gradient_noise: float) -> Tolerance:
    """Returns the bounds of a kind of plan, widened by the program's own noise.

    A model that is random beyond dropout cannot be held to less than its own noise;
    beyond a cap nothing would be held to anything.

    Args:
        numerics: What the plan declares to do to the numbers.
        noise: How far the baseline's loss is from itself, relative.
        gradient_noise: How far its gradient is, of the parameter where it is worst.
    """
    bound = _BOUNDS[numerics]
    loss = min(_NOISE_FACTOR * noise, MOST_SLACK)
    rest = min(_NOISE_FACTOR * max(noise, gradient_noise), MOST_SLACK)
    return Tolerance(
        loss=bound.loss + loss,
        mean_loss=bound.mean_loss + loss,
        sway=bound.sway,
        norm=bound.norm + rest,
        turn=bound.turn + rest,
        total_norm=bound.total_norm + rest,
        buffer=bound.buffer + rest,
        way=bound.way + rest,
        own_way=bound.own_way + rest,
    )


def gap(expected: float, got: float) -> float:
    """Returns the relative difference."""
    return abs(got - expected) / max(abs(expected), 1e-30)


def total(norms: Mapping[str, float]) -> float:
    """Returns the norm of all together."""
    return math.sqrt(sum(norm * norm for norm in norms.values()))


def distance(expected: Sequence[float], got: Sequence[float]) -> float:
    """Returns the norm of the difference over that of the expected values."""
    if len(expected) != len(got):
        return math.inf
    apart = math.sqrt(sum((x - y) ** 2 for x, y in zip(expected, got, strict=True)))
    size = math.sqrt(sum(x * x for x in expected))
    return apart / size if size else apart


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the cosine of the angle between two vectors; 1 if one is zero."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    size = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return dot / size if size else 1.0


def projection(expected: Sequence[float], got: Sequence[float]) -> float:
    """Returns which share of a way another one goes along it; 1 if there is none.

    Example:
        >>> projection((2.0, 0.0), (1.0, 5.0))
        0.5
    """
    size = sum(x * x for x in expected)
    if not size:
        return 1.0
    return sum(x * y for x, y in zip(expected, got, strict=True)) / size
