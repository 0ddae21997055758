"""What a search maximises: throughput, samples a unit of money, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
