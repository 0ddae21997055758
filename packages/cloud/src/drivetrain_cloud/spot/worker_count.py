"""How many workers a job should ask for: as many as are worth what they cost.

How many can train on the nodes that there are is `fail_tolerance`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.config import Recovery
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_cloud.spot.config import SpotConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """How fast a job was with some number of workers.

    Args:
        samples_per_s: Median of what was measured.
        steps: How many were measured.
        measured_s: When the last of them was.
    """

    samples_per_s: float
    steps: int
    measured_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CountConfig:
    """What a worker must be worth.

    Args:
        least: The least workers.
        most: The most.
        unit: Workers come and go by so many.
        min_marginal: What share of the speed of one of the least workers an added one
            must bring.
        max_cost_ratio: How much more a sample may cost than with the cheapest number of
            workers that was measured.
        steps: How many steps say how fast a number of workers is.
        valid_s: How long a measurement counts.

    Raises:
        ProgramError: The numbers contradict each other.
    """

    least: int
    most: int
    unit: int = 1
    min_marginal: float = 0.5
    max_cost_ratio: float = 1.5
    steps: int = 20
    valid_s: float = 3600.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not 1 <= self.least <= self.most or self.unit < 1:
            message = (
                "the number of workers needs 1 <= least <= most and a unit of at least "
                f"1, got {self.least}, {self.most} and {self.unit}"
            )
            raise ProgramError(message)
        if self.steps < 1 or not self.valid_s > 0:
            message = (
                "a measurement needs steps of at least 1 and a valid_s of more than 0, "
                f"got {self.steps} and {self.valid_s}"
            )
            raise ProgramError(message)
        if (self.most - self.least) % self.unit:
            message = (
                f"from {self.least} to {self.most} workers are no whole number of "
                f"units of {self.unit}"
            )
            raise ProgramError(message)
        if not (0 <= self.min_marginal <= 1 and self.max_cost_ratio >= 1):
            message = (
                "min_marginal must be from 0 to 1 and max_cost_ratio at least 1, got "
                f"{self.min_marginal} and {self.max_cost_ratio}"
            )
            raise ProgramError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How many workers there should be now.

    Args:
        workers: How many.
        reason: Why, for people.
    """

    workers: int
    reason: str


def choose_count(
    now_s: float,
    current: int,
    speeds: Mapping[int, Speed],
    config: CountConfig,
    *,
    worker_price: float = 1.0,
    fixed_price: float = 0.0,
) -> Choice:
    """Returns how many workers a job should have: one unit more, less, or as many.

    What one unit more brings is measured by having it for a while. It stays if it
    brings at least `min_marginal` of what the first workers do, and a sample does not
    become too dear; a measurement that is too old is made again.

    Args:
        now_s: The time, on the clock of the measurements.
        current: How many there are.
        speeds: What was measured, by number of workers.
        config: What a worker must be worth.
        worker_price: Of one worker for a second, in any currency.
        fixed_price: Of what the job needs besides.

    Raises:
        ProgramError: A price is none.

    Example:
        >>> speeds = {n: Speed(samples_per_s=s, steps=50, measured_s=0.0)
        ...           for n, s in {2: 200.0, 3: 290.0, 4: 310.0}.items()}
        >>> config = CountConfig(least=2, most=8)
        >>> choose_count(1.0, 4, speeds, config)
        Choice(workers=3, reason='the last of 4 workers brings 20 % of one of the first')
    """
    if not (0 <= worker_price < math.inf and 0 <= fixed_price < math.inf):
        message = f"prices must be numbers from 0, got {worker_price} and {fixed_price}"
        raise ProgramError(message)
    if current < config.least:
        return Choice(workers=config.least, reason=f"at least {config.least}")
    if current > config.most:
        return Choice(workers=config.most, reason=f"at most {config.most}")
    valid = {
        number: speed
        for number, speed in speeds.items()
        if now_s - speed.measured_s <= config.valid_s
        and speed.steps >= config.steps
        # What is no speed says nothing: nobody pays for more by it.
        and 0 < speed.samples_per_s < math.inf
        and number >= 1
    }
    if current not in valid:
        return Choice(workers=current, reason=f"{current} workers are being measured")
    prices = {
        number: (worker_price * number + fixed_price) / speed.samples_per_s
        for number, speed in valid.items()
    }
    problem = _problem(current, valid, prices, config)
    if problem:
        return Choice(workers=current - config.unit, reason=problem)
    more = current + config.unit
    if more > config.most:
        return Choice(workers=current, reason=f"at most {config.most} workers")
    if more not in valid:
        reason = f"what {more} workers bring is not known"
        return Choice(workers=more, reason=reason)
    problem = _problem(more, valid, prices, config)
    if problem:
        return Choice(workers=current, reason=problem)
    return Choice(workers=more, reason=f"{more} workers are worth their price")


def _problem(
    number: int,
    speeds: Mapping[int, Speed],
    prices: Mapping[int, float],
    config: CountConfig,
) -> str:
    """Says why a number of workers is too large; "" if it is not, or is not known."""
    less = number - config.unit
    if less < config.least:
        return ""
    first = min(speeds)
    if less in speeds:
        each = speeds[first].samples_per_s / first * config.unit
        gain = speeds[number].samples_per_s - speeds[less].samples_per_s
        share = gain / each
        if share < config.min_marginal:
            return (
                f"the last of {number} workers brings {share:.0%} of one of the first"
            ).replace("%", " %")
    best = min(prices, key=lambda one: prices[one])
    # What costs nothing is never too dear.
    ratio = prices[number] / prices[best] if prices[best] > 0 else 1.0
    if number > best and ratio > config.max_cost_ratio:
        return f"a sample costs {ratio:.2f} times what it does with {best} workers"
    return ""


def first_wants(config: SpotConfig, count: CountConfig) -> SpotConfig:
    """Returns what a job wants at first whose number of workers follows what they bring.

    Args:
        config: What it wants otherwise.
        count: What a worker must be worth.

    Raises:
        ProgramError: It waits for a number of nodes that is fixed.
    """
    if config.recovery != Recovery.RESIZE:
        message = (
            "a job that waits for all of its nodes has a fixed number of them: its "
            "number can follow what nodes bring with recovery by resizing only"
        )
        raise ProgramError(message)
    nodes = min(max(config.nodes, count.least), count.most)
    nodes = count.least + (nodes - count.least) // count.unit * count.unit
    if (config.unit, count.least % count.unit) != (count.unit, 0):
        message = (
            f"nodes come and go by {config.unit}: the least nodes must be a multiple of "
            f"that, and so must what comes and goes by what they bring; got "
            f"{count.least} and {count.unit}"
        )
        raise ProgramError(message)
    return wants(config, nodes)


def wants(config: SpotConfig, workers: int) -> SpotConfig:
    """Returns the same wants for another number of workers.

    Example:
        >>> from drivetrain_cloud.spot import SpotConfig
        >>> config = wants(SpotConfig(nodes=4, min_nodes=2), 3)
        >>> config.nodes, config.min_nodes, config.most
        (3, 2, 3)
    """
    least = min(config.min_nodes, workers)
    return replace(config, nodes=workers, min_nodes=least, max_nodes=workers)
