"""The command `drivetrain-cloud cost`: what a run has cost, node by node."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drivetrain_cloud.cost import (
    UnknownPriceError,
    bill_of,
    read_prices,
    read_usage,
    shipped_prices,
)
from drivetrain_cloud.spot.capacity import JobPhase, Market
from drivetrain_core.commands import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from drivetrain_cloud.cost import Bill, PriceList, UsageRecord


def prices_of(paths: Sequence[str] | None) -> PriceList:
    """Returns the prices of some files, or those that come with the package.

    Args:
        paths: As `--prices` were given.
    """
    return shipped_prices() if paths is None else read_prices(*paths)


@contextlib.contextmanager
def naming_offer() -> Iterator[None]:
    """Adds to an error of prices what to do about it on the command line.

    Raises:
        UsageError: A node has no price.
    """
    try:
        yield
    except UnknownPriceError as error:
        message = (
            f"{error}; --offer NAME says what the prices call these nodes, and --prices "
            "FILE takes other prices"
        )
        raise UsageError(message) from error


def show_cost(record: UsageRecord, prices: PriceList) -> None:
    """Writes the bill of a job to the terminal.

    Args:
        record: Of the job.
        prices: At which it is paid.
    """
    bill = _bill(record, prices, record.reference_speed)
    _show(record, bill, prices, has_reference=bool(record.reference_speed))


def _bill(record: UsageRecord, prices: PriceList, speed: float) -> Bill:
    return bill_of(
        record.usage.nodes,
        prices,
        now=record.until_s,
        samples=record.samples if speed else 0.0,
        reference_speed=speed or 1.0,
        reference_nodes=record.reference_nodes,
    )


def _with_offer(record: UsageRecord, offer: str) -> UsageRecord:
    """Returns a record whose nodes are all called so."""
    nodes = tuple(replace(use, offer=offer) for use in record.usage.nodes)
    return replace(record, usage=replace(record.usage, nodes=nodes))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    record = read_usage(arguments.usage)
    if arguments.offer is not None:
        record = _with_offer(record, arguments.offer)
    prices = prices_of(arguments.prices)
    speed = arguments.reference_speed or record.reference_speed
    with naming_offer():
        bill = _bill(record, prices, speed)
    if arguments.json:
        plain = _plain(record, bill, prices, has_reference=bool(speed))
        print(json.dumps(plain))
    else:
        _show(record, bill, prices, has_reference=bool(speed))
    return 0


def _plain(
    record: UsageRecord, bill: Bill, prices: PriceList, *, has_reference: bool
) -> dict[str, Any]:
    has_samples = record.samples > 0
    return {
        "job": record.job,
        "currency": bill.currency,
        "cost": bill.cost,
        "samples": record.samples,
        "per_sample": bill.cost / record.samples if has_samples else None,
        "saving": bill.saving if has_reference and has_samples else None,
        "nodes": [
            {
                "node": one.use.node,
                "market": one.use.market.value,
                "offer": one.use.offer,
                "hours": one.hours,
                "cost": one.cost,
                "on_demand_cost": one.on_demand_cost,
                "was_taken": one.use.was_taken,
            }
            for one in bill.nodes
        ],
        "phase_hours": _phase_hours(record),
        "prices": _sources(record, prices),
    }


def _phase_hours(record: UsageRecord) -> dict[str, float]:
    hours: dict[str, float] = {}
    for one in record.usage.phases:
        end_s = record.until_s if one.end_s is None else one.end_s
        hours[one.phase.value] = hours.get(one.phase.value, 0.0) + (
            (end_s - one.begin_s) / 3600
        )
    return hours


def _sources(record: UsageRecord, prices: PriceList) -> list[dict[str, Any]]:
    """Returns the prices of each offer when its first node came, and their sources.

    That on demand is always among them: what is saved is counted against it.
    """
    found = {}
    for use in sorted(record.usage.nodes, key=lambda use: use.begin_s):
        for market in dict.fromkeys((use.market, Market.ON_DEMAND)):
            key = use.offer, market
            if key in found or not use.offer:
                continue
            price = prices.at(use.offer, market, use.begin_s)
            found[key] = {
                "offer": use.offer,
                "market": market.value,
                "per_hour": price.per_hour,
                "valid_from": price.valid_from.isoformat(),
                "source": price.source,
            }
    return list(found.values())


def _show(
    record: UsageRecord, bill: Bill, prices: PriceList, *, has_reference: bool
) -> None:
    console = Console(highlight=False)
    table = Table(title=escape(record.job), title_justify="left", title_style="bold")
    for column in ("node", "terms", "offer", "hours", bill.currency, "on demand", ""):
        is_number = column in {"hours", bill.currency, "on demand"}
        # A name that is cut off may be that of another offer.
        table.add_column(
            column, justify="right" if is_number else "left", overflow="fold"
        )
    for one in bill.nodes:
        table.add_row(
            escape(one.use.node),
            one.use.market.value,
            escape(one.use.offer),
            f"{one.hours:.3f}",
            f"{one.cost:.4f}",
            f"{one.on_demand_cost:.4f}",
            "taken away" if one.use.was_taken else "",
        )
    console.print(table)

    def say(text: str) -> None:
        console.print(text, markup=False)

    phases = ", ".join(
        f"{hours:.3f} h {name}"
        for name, hours in _phase_hours(record).items()
        if name != JobPhase.ENDED.value
    )
    say(f"{bill.cost:.4f} {bill.currency} for {record.samples:,.0f} samples; {phases}")
    if record.samples > 0:
        say(
            f"{1e6 * bill.cost / record.samples:.4f} {bill.currency} per million samples"
        )
    if has_reference and record.samples > 0:
        say(
            f"{bill.saving:.1%} saved against {record.reference_nodes} nodes on demand "
            f"that nothing happens to, which cost {bill.reference_cost:.4f} "
            f"{bill.currency}"
        )
    else:
        say("no saving: the record has no samples or no speed (--reference-speed)")
    for price in _sources(record, prices):
        say(
            f"{price['offer']}, {price['market']}: {price['per_hour']:g} {bill.currency} "
            f"per hour, {price['source']}, valid from {price['valid_from']}"
        )
