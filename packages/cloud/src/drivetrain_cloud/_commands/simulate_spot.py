"""The command `drivetrain-cloud simulate-spot`: what strategies save on spot nodes."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from drivetrain_cloud._commands.common import assignment, reporter
from drivetrain_cloud._commands.cost import prices_of
from drivetrain_cloud.cost import (
    PROFILES,
    SHAPES,
    CapacityTrace,
    CloudTimes,
    Scenario,
    StrategyComparison,
    TraceShape,
    read_trace,
    sensitivity,
    simulate_all,
    usual_strategies,
    with_number,
    write_page,
)
from drivetrain_cloud.cost.report import (
    REFERENCE,
    as_plain,
    assumptions,
    detail_rows,
    most_saving,
    range_text,
    saving_rows,
    target_rows,
)
from drivetrain_cloud.notices.sighting import BadAnswerError, wall_time
from drivetrain_core.commands import UsageError, as_wrong_use

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from drivetrain_cloud.cost import JobProfile, PriceList, Strategy


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    # What is wrong with a file is no wrong use.
    prices, trace = prices_of(arguments.prices), _trace_of_file(arguments)
    with as_wrong_use(arguments):
        comparison = _compared(arguments, prices, trace)
    if arguments.html is not None:
        write_page(comparison, arguments.html)
    if arguments.json:
        print(json.dumps(as_plain(comparison)))
    else:
        _show(comparison)
    return 0


def _compared(
    arguments: argparse.Namespace, prices: PriceList, trace: CapacityTrace | None
) -> StrategyComparison:
    """Simulates what the options describe."""
    if arguments.html is not None:
        _check_place(Path(arguments.html))
    targets = _targets(arguments)
    scenarios = _scenarios(arguments, prices, trace)
    seeds = range(arguments.seeds)
    # Starting more processes takes longer than a few short runs.
    is_long = arguments.days * arguments.seeds * len(scenarios) > 300
    processes = (os.cpu_count() or 1) if is_long else 1
    report = reporter(arguments, "scenarios")
    summaries = simulate_all(scenarios, seeds=seeds, processes=processes, report=report)
    effects = []
    if arguments.sensitivity:
        effects = sensitivity(
            scenarios[-1], seeds=seeds, processes=processes, report=report
        )
    return StrategyComparison(summaries=summaries, effects=effects, targets=targets)


def _check_place(path: Path) -> None:
    """Says before long work what writing would say after it."""
    if path.is_dir() or not path.parent.is_dir():
        message = f"--html must name a file in a folder that is there, got {path}"
        raise UsageError(message)


# What is simulated.


def _scenarios(
    arguments: argparse.Namespace, prices: PriceList, trace: CapacityTrace | None
) -> list[Scenario]:
    offer = _offer(arguments, prices)
    traces = trace or _drawn_traces(arguments)
    cloud = CloudTimes(start_s=arguments.start_s, notice_s=arguments.notice_s)
    begin = None
    if arguments.begin is not None:
        try:
            begin = wall_time(arguments.begin).timestamp()
        except BadAnswerError as error:
            message = f"--begin: {error}"
            raise UsageError(message) from None
    hours = math.inf if arguments.hours is None else arguments.hours
    return [
        Scenario(
            profile=profile,
            strategy=strategy,
            prices=prices,
            offer=offer,
            traces=traces,
            places=max(1, math.ceil(arguments.pool_ratio * nodes)),
            days=traces.end_s / 86400
            if isinstance(traces, CapacityTrace)
            else arguments.days,
            cloud=cloud,
            hours=hours,
            begin=begin,
        )
        for profile in _profiles(arguments)
        for nodes in _sizes(arguments)
        for strategy in _strategies(arguments, nodes)
    ]


def _names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) != len(names):
        message = f"{option} names something twice: {text}"
        raise UsageError(message)
    return names


def _sizes(arguments: argparse.Namespace) -> list[int]:
    sizes = []
    for text in _names("--nodes", arguments.nodes):
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            message = f"--nodes needs numbers such as 2,4,8, got {arguments.nodes!r}"
            raise UsageError(message)
        sizes.append(int(text))
    return sizes


def _targets(arguments: argparse.Namespace) -> list[float]:
    if not arguments.target:
        return []
    try:
        targets = [float(text) for text in _names("--target", arguments.target)]
    except ValueError:
        targets = [math.nan]
    if not all(0 <= one < 1 for one in targets):
        message = f"--target needs shares such as 0.81,0.92, got {arguments.target!r}"
        raise UsageError(message)
    return targets


def _profiles(arguments: argparse.Namespace) -> list[JobProfile]:
    found = []
    for name in _names("--job", arguments.job):
        if name not in PROFILES:
            message = f"--job: there is no job {name!r}, but {', '.join(PROFILES)}"
            raise UsageError(message)
        profile = PROFILES[name]
        for text in arguments.set:
            with as_wrong_use(arguments, "--set"):
                key, (value,) = assignment("--set", text, "up_h=5", most=1)
                profile = with_number(profile, key, value)
        found.append(profile)
    return found


def _strategies(arguments: argparse.Namespace, nodes: int) -> list[Strategy]:
    usual = {
        one.name: one
        for one in usual_strategies(
            nodes, min_nodes=arguments.min_nodes, max_wait_s=arguments.max_wait_s
        )
    }
    if arguments.strategy is None:
        return list(usual.values())
    names = _names("--strategy", arguments.strategy)
    for name in names:
        if name not in usual:
            message = f"--strategy: there is none {name!r}, but {', '.join(usual)}"
            raise UsageError(message)
    return [usual[name] for name in names]


def _trace_of_file(arguments: argparse.Namespace) -> CapacityTrace | None:
    """Returns the trace that a file holds; None where traces are drawn."""
    if arguments.trace in SHAPES:
        return None
    if arguments.shape:
        message = f"--shape is for drawn traces: {', '.join(SHAPES)}"
        raise UsageError(message)
    if not Path(arguments.trace).exists():
        message = (
            f"--trace is {', '.join(SHAPES)}, or a file, and there is no file "
            f"{arguments.trace!r}"
        )
        raise UsageError(message)
    return read_trace(arguments.trace)


def _drawn_traces(arguments: argparse.Namespace) -> TraceShape:
    shape = SHAPES[arguments.trace]
    known = [one.name for one in fields(TraceShape)]
    for text in arguments.shape:
        name, (value,) = assignment("--shape", text, "up_h=5", most=1)
        if name not in known:
            message = f"--shape: there is no {name!r}; it has {', '.join(known)}"
            raise UsageError(message)
        change: dict[str, Any] = {name: value}
        with as_wrong_use(arguments, "--shape"):
            shape = replace(shape, **change)
    return shape


def _offer(arguments: argparse.Namespace, prices: PriceList) -> str:
    """Returns what the prices call the nodes."""
    if arguments.offer is not None:
        offer: str = arguments.offer
        return offer
    if arguments.prices is None:
        return "example/zone-a/gpu-8"
    if len(prices.offers) > 1:
        message = f"--offer must say which of {', '.join(prices.offers)} nodes are"
        raise UsageError(message)
    return prices.offers[0]


# What is shown.


def _show(comparison: StrategyComparison) -> None:
    console = Console(highlight=False)

    def table(
        title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
    ) -> None:
        shown = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            shown.add_column(column, no_wrap=column == "strategy")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)

    spot, on_demand, most = most_saving(comparison)
    currency = comparison.summaries[0].scenario.prices.currency
    console.print(
        f"Spot {spot:g}, on demand {on_demand:g} {currency} per hour of a node: none can "
        f"save more than {most:.1%}.",
        markup=False,
    )
    console.print(REFERENCE, markup=False)
    largest = comparison.sizes[-1]
    for job in comparison.jobs:
        table(f"{job}: saving", *saving_rows(comparison, job))
        rows = comparison.of(job, largest)
        table(f"{job}, {largest} nodes", *detail_rows(rows))
    if comparison.effects:
        usual = comparison.summaries[-1]
        cells: dict[str, list[str]] = {}
        factors = list(dict.fromkeys(one.factor for one in comparison.effects))
        for one in comparison.effects:
            cells.setdefault(one.name, []).append(range_text(one.summary.saving))
        table(
            f"saving of {usual.scenario.profile.name}, {usual.scenario.nodes} nodes, "
            f"{usual.scenario.strategy.name}, with other inputs",
            ("input", *(f"x {factor:g}" for factor in factors)),
            [(name, *row) for name, row in cells.items()],
        )
    if comparison.targets:
        table("what spot nodes may cost", *target_rows(comparison, comparison.targets))
    console.print("Assumed:")
    for what, value, source in assumptions(comparison):
        console.print(f"  {what}: {value} ({source})", markup=False, soft_wrap=True)
