"""Several simulated trainings of one job, and how much they differ."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.goodput._ledger import Loss
from drivetrain_cloud.goodput._simulation import Run, simulate
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_cloud.goodput._config import GoodputConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What several trainings came to.

    Attributes:
        runs: The trainings.
    """

    runs: tuple[Run, ...]

    @property
    def goodput(self) -> float:
        """The mean share of the time that counts."""
        return statistics.fmean(run.goodput for run in self.runs)

    @property
    def lowest(self) -> float:
        """The share of the training that had the least luck."""
        return min(run.goodput for run in self.runs)

    @property
    def highest(self) -> float:
        """The share of the one that had the most."""
        return max(run.goodput for run in self.runs)

    @property
    def lost_shares(self) -> dict[Loss, float]:
        """The mean shares of the time that were lost, the largest first."""
        shares = {
            loss: statistics.fmean(
                run.lost_s.get(loss, 0.0) / run.wall_s for run in self.runs
            )
            for loss in Loss
        }
        return dict(sorted(shares.items(), key=lambda entry: -entry[1]))

    @property
    def num_failures(self) -> dict[str, float]:
        """The mean numbers of failures, by name of the mode."""
        names = self.runs[0].num_failures
        return {
            name: statistics.fmean(run.num_failures[name] for run in self.runs)
            for name in names
        }


def simulate_many(
    config: GoodputConfig, *, days: float = 90.0, seeds: Iterable[int] = range(5)
) -> Summary:
    """Simulates one job several times.

    Args:
        config: The job.
        days: How long each runs.
        seeds: Of each.

    Raises:
        ProgramError: There are no seeds, or `days` is out of range.

    Example:
        >>> from drivetrain_cloud.goodput import preset
        >>> found = simulate_many(preset("megascale").config(num_nodes=1536), days=30)
        >>> found.lowest <= found.goodput <= found.highest
        True
    """
    runs = tuple(simulate(config, days=days, seed=seed) for seed in seeds)
    if not runs:
        message = "seeds must have at least one, got none"
        raise ProgramError(message)
    return Summary(runs=runs)
