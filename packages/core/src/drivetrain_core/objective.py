"""What a search maximises: throughput, samples a unit of money, or the user's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import ProgramError

if TYPE_CHECKING:
    from drivetrain_core._measurement import Measurement
    from drivetrain_core.services.cluster_spec import ClusterSpec, Price

Objective = Callable[["Measurement"], float]
"""Returns the value of a measurement; positive, and higher is better."""


def throughput(measurement: Measurement) -> float:
    """Returns the samples a second."""
    return measurement.samples_per_s


def samples_per_cost(cluster: ClusterSpec, *, spot: bool = False) -> Objective:
    """Returns an objective: samples for one unit of the cluster's currency.

    Args:
        cluster: A description whose groups of nodes all have a price.
        spot: Whether the prices of nodes that may be reclaimed are paid.

    Raises:
        ProgramError: A group of nodes has no such price.
    """
    per_hour = 0.0
    for group in cluster.nodes:
        rate = _rate(group.price, spot)
        if rate is None:
            kind = "spot" if spot else "on-demand"
            message = f"the nodes {group.name!r} of the cluster have no {kind} price"
            raise ProgramError(message)
        per_hour += rate * group.count

    def value(measurement: Measurement) -> float:
        return measurement.samples_per_s * 3600.0 / per_hour

    return value


def _rate(price: Price | None, spot: bool) -> float | None:
    if price is None:
        return None
    return price.spot_per_hour if spot else price.on_demand_per_hour


def read_objective(given: object) -> Objective:
    """Returns the objective that a user named or wrote.

    Raises:
        ProgramError: It is neither `"throughput"` nor a function.
    """
    if given == "throughput":
        return throughput
    if callable(given):
        return given
    message = (
        "objective must be 'throughput' or a function of a Measurement that returns a "
        f"number, got {given!r}"
    )
    raise ProgramError(message)


def score_of(objective: Objective, measurement: Measurement, step_s: float) -> float:
    """Returns the objective's value if every step took as long as given.

    Raises:
        ProgramError: The value is no positive number.

    Example:
        >>> from drivetrain_core import Measurement
        >>> measured = Measurement(step_times_s=(0.4, 0.5), samples_per_step=8)
        >>> score_of(throughput, measured, 0.25)
        32.0
    """
    steady = dataclasses.replace(measurement, step_times_s=(step_s,))
    try:
        value: Any = objective(steady)
    except Exception as error:
        message = f"objective raised {type(error).__name__}: {error}"
        raise ProgramError(message) from error
    # A number of numpy or torch is one as well.
    plain = value.item() if hasattr(value, "item") else value
    number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if number and math.isfinite(plain) and plain > 0:
        return float(plain)
    message = f"objective must return a positive number, got {value!r}"
    raise ProgramError(message)
