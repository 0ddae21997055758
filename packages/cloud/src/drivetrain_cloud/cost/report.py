"""A comparison of strategies as people read it: what is said on a page and a terminal."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.cost.trace import CapacityTrace
from drivetrain_cloud.spot.capacity import Market

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_cloud.cost.compare import Range, Summary
    from drivetrain_cloud.cost.input_sensitivity import Effect

REFERENCE = (
    "Saving is per sample that counts, against the same job on nodes on demand that "
    "nothing happens to; lost work, waiting, starting and nodes on demand are paid for. "
    "Intervals are the least and the most of all runs."
)
"""What a saving is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyComparison:
    """All that was simulated.

    Args:
        summaries: Of each job, size and strategy; there is at least one.
        effects: Of other inputs, on the last summary.
        targets: Savings, of which it is shown at what price they are had.
    """

    summaries: Sequence[Summary]
    effects: Sequence[Effect] = ()
    targets: Sequence[float] = ()

    @property
    def jobs(self) -> list[str]:
        """Returns the names of the jobs."""
        return list(dict.fromkeys(one.scenario.profile.name for one in self.summaries))

    @property
    def sizes(self) -> list[int]:
        """Returns the numbers of nodes."""
        return sorted({one.scenario.nodes for one in self.summaries})

    def of(self, job: str, nodes: int | None = None) -> list[Summary]:
        """Returns the summaries of one job, and of one size if that is given."""
        return [
            one
            for one in self.summaries
            if one.scenario.profile.name == job and nodes in {None, one.scenario.nodes}
        ]


def range_text(found: Range) -> str:
    """Returns shares as text, with the interval where it is one.

    Example:
        >>> from drivetrain_cloud.cost import Range
        >>> range_text(Range(mean=0.5, low=0.25, high=0.75))
        '50.0% (25.0 to 75.0)'
    """
    mean = f"{100 * found.mean:.1f}%"
    if found.low == found.high:
        return mean
    low, high = (f"{100 * value:.1f}" for value in (found.low, found.high))
    return mean if low == high else f"{mean} ({low} to {high})"


def saving_rows(
    comparison: StrategyComparison, job: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the saving of a job's strategies by number of nodes: columns and rows."""
    sizes = comparison.sizes
    cells: dict[str, dict[int, str]] = {}
    for one in comparison.of(job):
        row = cells.setdefault(one.scenario.strategy.name, {})
        row[one.scenario.nodes] = range_text(one.saving)
    columns = ("strategy", *(f"{size} nodes" for size in sizes))
    return columns, [
        (name, *(row.get(size, "") for size in sizes)) for name, row in cells.items()
    ]


def detail_rows(
    summaries: Sequence[Summary],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns what strategies cost and what became of the time: columns and rows."""
    currency = summaries[0].scenario.prices.currency
    columns = (
        "strategy",
        f"{currency} per million samples",
        "of full speed",
        "waste",
        "on demand",
        "taken",
        "ended early",
    )
    scenario = summaries[0].scenario
    _, on_demand, _ = most_saving(StrategyComparison(summaries=summaries))
    hourly = on_demand * scenario.nodes
    reference = f"{hourly / 3600 / scenario.full_speed * 1e6:.3g}"
    return columns, [
        ("all on demand", reference, "100%", "0%", "100%", "0", ""),
        *(_details(one) for one in summaries),
    ]


def _details(one: Summary) -> tuple[str, ...]:
    return (
        one.scenario.strategy.name,
        f"{one.per_million.mean:.3g}",
        f"{one.goodput.mean:.1%}",
        f"{one.waste.mean:.1%}",
        f"{one.on_demand_share.mean:.1%}",
        f"{one.taken:.0f}",
        _ended(one),
    )


def target_rows(
    comparison: StrategyComparison, targets: Sequence[float]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns what spot nodes may cost for some savings: columns and rows.

    Args:
        comparison: What was simulated.
        targets: Savings, as shares.
    """
    spot, on_demand, _ = most_saving(comparison)
    columns = ("job", "nodes", "strategy", *(f"to save {one:.0%}" for one in targets))
    rows = []
    for one in comparison.summaries:
        prices = [spot * one.price_factor_for(target) for target in targets]
        rows.append(
            (
                one.scenario.profile.name,
                str(one.scenario.nodes),
                one.scenario.strategy.name,
                *(
                    f"{price / on_demand:.1%} of on demand" if price >= 0 else "never"
                    for price in prices
                ),
            )
        )
    return columns, rows


def _ended(one: Summary) -> str:
    parts = []
    if one.num_failed:
        parts.append(f"{one.num_failed} gave up")
    if one.num_unfinished - one.num_failed > 0:
        parts.append(f"{one.num_unfinished - one.num_failed} not done")
    return f"{', '.join(parts)} of {one.runs}" if parts else ""


def most_saving(comparison: StrategyComparison) -> tuple[float, float, float]:
    """Returns the two prices at the beginning, and the saving that none can pass."""
    scenario = comparison.summaries[0].scenario
    spot, on_demand = (
        scenario.prices.at(scenario.offer, market, scenario.begins).per_hour
        for market in Market
    )
    return spot, on_demand, 1 - spot / on_demand if on_demand else 0.0


def assumptions(comparison: StrategyComparison) -> list[tuple[str, str, str]]:
    """Returns what was assumed, as rows of what, how much, and from where."""
    scenario = comparison.summaries[0].scenario
    rows = []
    for market in Market:
        price = scenario.prices.at(scenario.offer, market, scenario.begins)
        rows.append(
            (
                f"{market} price of {scenario.offer}",
                f"{price.per_hour:g} {price.currency} per hour",
                f"{price.source}; valid from {price.valid_from:%Y-%m-%d}",
            )
        )
    begins = datetime.fromtimestamp(scenario.begins, UTC)
    rows.append(
        ("begin", f"{begins:%Y-%m-%d %H:%M} UTC", "prices follow their changes")
    )
    traces = scenario.traces
    if isinstance(traces, CapacityTrace):
        text = f"{traces.reclaims} of {traces.mean_available():.1f} nodes are taken"
        rows.append(
            ("trace", f"{text} in {traces.end_s / 86400:.1f} days", traces.source)
        )
    else:
        shape = ", ".join(
            f"{f.name} {getattr(traces, f.name):g}" for f in fields(traces)
        )
        rows.append(("trace", shape, "drawn for each run, with its seed"))
        places = sorted({one.scenario.places for one in comparison.summaries})
        rows.append(("spot nodes of the pool", ", ".join(map(str, places)), "assumed"))
    cloud = scenario.cloud
    rows.append(("start of a node", f"{cloud.start_s:g} s", "assumed; it is paid for"))
    rows.append(
        ("notice", f"{cloud.notice_s:g} s", "assumed; AWS says so 120 s before")
    )
    for job in comparison.jobs:
        profile = comparison.of(job)[0].scenario.profile
        for field in fields(profile):
            if field.name not in {"name", "notes"}:
                value = getattr(profile, field.name)
                note = profile.notes.get(field.name, "assumed")
                rows.append((f"{job}: {field.name}", f"{value:g}", note))
    return rows


def as_plain(comparison: StrategyComparison) -> dict[str, Any]:
    """Returns a comparison as what JSON can hold."""
    spot, on_demand, most = most_saving(comparison)
    return {
        "currency": comparison.summaries[0].scenario.prices.currency,
        "spot_per_hour": spot,
        "on_demand_per_hour": on_demand,
        "most_saving": most,
        "results": [_plain(one) for one in comparison.summaries],
        "sensitivity": [
            {
                "input": one.name,
                "factor": one.factor,
                "saving": _plain_range(one.summary.saving),
            }
            for one in comparison.effects
        ],
        "assumptions": [
            {"what": what, "value": value, "source": source}
            for what, value, source in assumptions(comparison)
        ],
    }


def _plain(one: Summary) -> dict[str, Any]:
    return {
        "job": one.scenario.profile.name,
        "nodes": one.scenario.nodes,
        "strategy": one.scenario.strategy.name,
        "runs": one.runs,
        **{
            name: _plain_range(getattr(one, name))
            for name in ("saving", "per_million", "goodput", "waste", "on_demand_share")
        },
        "spent": {kind.value: share for kind, share in one.spent.items()},
        "hours": one.hours,
        "taken": one.taken,
        "failed": one.num_failed,
        "unfinished": one.num_unfinished,
        "spot_part": one.spot_part,
        "on_demand_part": one.on_demand_part,
    }


def _plain_range(found: Range) -> dict[str, float | None]:
    # JSON has no number that is infinite, as a sample costs where none was made.
    return {
        name: value if abs(value) < float("inf") else None
        for name in ("mean", "low", "high")
        for value in (getattr(found, name),)
    }
