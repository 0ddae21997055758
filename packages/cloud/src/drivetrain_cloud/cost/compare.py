"""Compares strategies: what a sample costs with each, over several traces."""

from __future__ import annotations

import math
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drivetrain_cloud.cost.bill import bill_of
from drivetrain_cloud.cost.trace import CapacityTrace, TraceShape, draw_trace
from drivetrain_cloud.cost.trace_replay import CloudTimes, Replay, Spent, replay
from drivetrain_cloud.spot.capacity import Market
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from drivetrain_cloud.cost.job_profile import JobProfile
    from drivetrain_cloud.cost.money import PriceList
    from drivetrain_cloud.cost.strategies import Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A job that is replayed, with all that is assumed about its surroundings.

    Args:
        profile: Of the job.
        strategy: What it does; its `config.nodes` are what the job asks for.
        prices: What nodes cost.
        offer: What they are in the list of prices.
        traces: How spot nodes come and go: a shape, of which each run draws its own
            trace, or one trace for all.
        places: How many spot nodes the pool of a drawn trace has.
        days: How long a drawn trace is.
        cloud: How quickly the cloud gives and takes.
        hours: How long the job would take if nothing happened to it; by default it goes
            on until the trace ends.
        begin: When it begins, in seconds since 1970; by default with the prices.

    Raises:
        ProgramError: A number is out of its range.
    """

    profile: JobProfile
    strategy: Strategy
    prices: PriceList
    offer: str
    traces: TraceShape | CapacityTrace
    places: int
    days: float = 30.0
    cloud: CloudTimes = field(default_factory=CloudTimes)
    hours: float = math.inf
    begin: float | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if self.places < 1 or not self.days > 0 or not self.hours > 0:
            message = (
                "a simulation needs places, days and hours above 0, got "
                f"{self.places}, {self.days} and {self.hours}"
            )
            raise ProgramError(message)

    @property
    def nodes(self) -> int:
        """Returns how many nodes the job asks for."""
        return self.strategy.config.nodes

    @property
    def full_speed(self) -> float:
        """Returns its samples a second with all of them."""
        return self.profile.samples_per_s(self.nodes, self.nodes)

    @property
    def begins(self) -> float:
        """Returns when it begins, in seconds since 1970."""
        return self.prices.begin(self.offer) if self.begin is None else self.begin

    def trace(self, seed: int) -> CapacityTrace:
        """Returns the trace of a run."""
        if isinstance(self.traces, CapacityTrace):
            return self.traces
        return draw_trace(self.traces, self.places, days=self.days, seed=seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one run, and what it cost.

    Args:
        replay: What became of it.
        cost: Of all its nodes.
        saving: Against as many samples on nodes on demand that nothing happens to.
        per_million: The cost of a million samples that count.
        goodput: The share of full speed that it had, over its whole time.
        on_demand_share: The share of its node time that was bought on demand.
        on_demand_cost: What that cost.
        reference_cost: What the saving is a share of.
    """

    replay: Replay
    cost: float
    saving: float
    per_million: float
    goodput: float
    on_demand_share: float
    on_demand_cost: float
    reference_cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A number of several runs.

    Args:
        mean: Of all.
        low: The least.
        high: The most.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Range:
        """Returns the range of some values, of which there is at least one."""
        found = list(values)
        return cls(mean=statistics.fmean(found), low=min(found), high=max(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What became of several runs of a scenario.

    Args:
        scenario: What was simulated.
        runs: How often.
        saving: As in `Outcome`, likewise the next three.
        per_million: The same.
        goodput: The same.
        on_demand_share: The same.
        waste: The share of paid node time that was no training that counts.
        spent: The shares of paid node time, means.
        hours: How long the job lasted, mean.
        taken: Nodes that were taken away from it, mean.
        spot_part: What was paid for spot nodes, over what the saving is a share of.
        on_demand_part: The same for nodes on demand.
        num_failed: Runs that gave up.
        num_unfinished: Runs that have not made all their samples.
    """

    scenario: Scenario
    runs: int
    saving: Range
    per_million: Range
    goodput: Range
    on_demand_share: Range
    waste: Range
    spent: dict[Spent, float]
    hours: float
    taken: float
    spot_part: float
    on_demand_part: float
    num_failed: int
    num_unfinished: int

    def price_factor_for(self, saving: float) -> float:
        """Returns by what spot prices must be multiplied for another saving.

        Args:
            saving: The mean that is wanted; nan if not even free spot nodes give it.
        """
        factor = (1 - saving - self.on_demand_part) / self.spot_part
        return factor if factor >= 0 else math.nan


def simulate(scenario: Scenario, seed: int) -> Outcome:
    """Replays one run and returns what it cost.

    Args:
        scenario: What is replayed.
        seed: Of the trace and the draws; the same gives the same.

    Raises:
        UnknownPriceError: There is no price for some of its time.

    Example:
        >>> from drivetrain_cloud.cost import (
        ...     PROFILES, SHAPES, Scenario, shipped_prices, usual_strategies)
        >>> resize = usual_strategies(4)[2]
        >>> found = simulate(Scenario(
        ...     profile=PROFILES["resnet50"], strategy=resize, prices=shipped_prices(),
        ...     offer="example/zone-a/gpu-8", traces=SHAPES["calm"], places=5, days=2.0,
        ... ), seed=0)
        >>> 0.6 < found.saving < 0.7
        True
    """
    samples = scenario.full_speed * scenario.hours * 3600
    found = replay(
        scenario.trace(seed),
        scenario.profile,
        scenario.strategy,
        cloud=scenario.cloud,
        samples=samples,
        seed=seed,
    )
    begins = scenario.begins
    bill = bill_of(
        (
            replace(
                use, begin_s=begins + use.begin_s, end_s=begins + (use.end_s or 0.0)
            )
            for use in found.uses
        ),
        scenario.prices,
        now=begins + found.seconds,
        samples=found.samples,
        reference_speed=scenario.full_speed,
        reference_nodes=scenario.nodes,
        offer=scenario.offer,
    )
    on_demand, spot = bill.hours(Market.ON_DEMAND), bill.hours(Market.SPOT)
    return Outcome(
        replay=found,
        cost=bill.cost,
        saving=bill.saving,
        per_million=1e6 * bill.per_sample,
        goodput=found.samples / scenario.full_speed / found.seconds,
        on_demand_share=on_demand / (on_demand + spot) if on_demand else 0.0,
        on_demand_cost=sum(
            node.cost for node in bill.nodes if node.use.market == Market.ON_DEMAND
        ),
        reference_cost=bill.reference_cost,
    )


def simulate_all(
    scenarios: Sequence[Scenario],
    *,
    seeds: Sequence[int],
    processes: int = 1,
    report: Callable[[int, int], None] = lambda *_: None,
) -> list[Summary]:
    """Simulates scenarios, each with all seeds; all see the same traces.

    Args:
        scenarios: What is simulated.
        seeds: One for each run.
        processes: How many work at a time; with more than one, a script that calls this
            must not do so when it is imported.
        report: Called with how many of how many are done.

    Raises:
        ProgramError: There is nothing to do.
    """
    if not scenarios or not seeds:
        message = "a simulation needs at least one scenario and one seed"
        raise ProgramError(message)
    jobs = [(scenario, tuple(seeds)) for scenario in scenarios]
    found: list[Summary] = []
    if processes <= 1 or len(jobs) == 1:
        for job in jobs:
            report(len(found), len(jobs))
            found.append(_summary(job))
    else:
        # A fork of a process with threads may hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for summary in pool.map(_summary, jobs):
                found.append(summary)
                report(len(found), len(jobs))
    report(len(jobs), len(jobs))
    return found


def _summary(job: tuple[Scenario, tuple[int, ...]]) -> Summary:
    scenario, seeds = job
    runs = [simulate(scenario, seed) for seed in seeds]
    replays = [run.replay for run in runs]
    on_demand_cost = sum(run.on_demand_cost for run in runs)
    reference_cost = sum(run.reference_cost for run in runs) or math.nan
    total_s = sum(sum(one.node_s.values()) for one in replays) or 1.0
    return Summary(
        scenario=scenario,
        runs=len(runs),
        saving=Range.of(run.saving for run in runs),
        per_million=Range.of(run.per_million for run in runs),
        goodput=Range.of(run.goodput for run in runs),
        on_demand_share=Range.of(run.on_demand_share for run in runs),
        waste=Range.of(one.waste for one in replays),
        spent={
            kind: sum(one.node_s[kind] for one in replays) / total_s for kind in Spent
        },
        hours=statistics.fmean(one.seconds / 3600 for one in replays),
        taken=statistics.fmean(one.taken for one in replays),
        spot_part=(sum(run.cost for run in runs) - on_demand_cost) / reference_cost,
        on_demand_part=on_demand_cost / reference_cost,
        num_failed=sum(bool(one.gave_up) for one in replays),
        num_unfinished=sum(
            not one.is_done and math.isfinite(scenario.hours) for one in replays
        ),
    )
