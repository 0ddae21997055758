"""The command `drivetrain-cloud simulate-spot`: what strategies save on spot nodes."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_cloud._commands.cost import prices_of
from drivetrain_core.commands import UsageError, as_wrong_use, integer, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from drivetrain_cloud.cost import (
        CapacityTrace,
        JobProfile,
        PriceList,
        Scenario,
        Strategy,
        StrategyComparison,
        TraceShape,
    )

__all__ = ["populate_simulate_spot_parser"]


def populate_simulate_spot_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--job",
        default="resnet50,bert-large",
        metavar="NAME,...",
        help="profiles of jobs (default: %(default)s)",
    )
    job.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any number of the profiles, as restore_s=120",
    )
    job.add_argument(
        "--nodes",
        default="2,4,8,16",
        metavar="N,...",
        help="nodes that the job asks for (default: %(default)s)",
    )
    job.add_argument(
        "--hours",
        type=number(above=0),
        metavar="HOURS",
        help="how long the job would take if nothing happened to it; by default it goes "
        "on until the trace ends",
    )
    strategy = parser.add_argument_group("what it does")
    strategy.add_argument(
        "--strategy",
        metavar="NAME,...",
        help="restart, wait-full, resize, wait-full+fallback, resize+fallback; by "
        "default all",
    )
    strategy.add_argument(
        "--min-nodes",
        type=integer(1),
        metavar="N",
        help="by default half of the nodes",
    )
    strategy.add_argument(
        "--max-wait-s",
        type=number(0, can_be_inf=True),
        default=600.0,
        metavar="SECONDS",
        help="after which nodes on demand fill the gap, where they do (default: "
        "%(default)s)",
    )
    cloud = parser.add_argument_group("the cloud")
    cloud.add_argument(
        "--trace",
        default="busy",
        metavar="NAME|FILE",
        help="calm, busy, daily or hostile, of which each run draws its own; or a CSV of "
        "seconds and available nodes (default: %(default)s)",
    )
    cloud.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any number of a drawn trace's shape, as up_h=5: up_h, down_h, weibull, "
        "longest_h, bursts_per_day, burst_share or daily_swing",
    )
    cloud.add_argument(
        "--pool-ratio",
        type=number(above=0),
        default=1.25,
        metavar="X",
        help="spot nodes of the pool for each that the job asks for (default: "
        "%(default)s)",
    )
    cloud.add_argument(
        "--days",
        type=number(above=0),
        default=30.0,
        metavar="N",
        help="how long a drawn trace is (default: %(default)g)",
    )
    for name, value, says in (
        ("start-s", 180.0, "how long a node that is granted takes to start"),
        ("notice-s", 120.0, "how long before its end a node hears of it"),
    ):
        cloud.add_argument(
            f"--{name}",
            type=number(0),
            default=value,
            metavar="SECONDS",
            help=f"{says} (default: %(default)g)",
        )
    cloud.add_argument(
        "--prices",
        action="append",
        metavar="FILE",
        help="CSV or a cloud's JSON, once or more; by default an example",
    )
    cloud.add_argument("--offer", metavar="NAME", help="what nodes are in the prices")
    cloud.add_argument(
        "--begin",
        metavar="TIME",
        help="as 2026-06-01T00:00:00Z; by default the first time that has prices",
    )
    parser.add_argument(
        "--seeds",
        type=integer(1),
        default=3,
        metavar="N",
        help="runs of each (default: %(default)s)",
    )
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="other inputs too, for the last job, size and strategy",
    )
    parser.add_argument(
        "--target",
        default="",
        metavar="SHARE,...",
        help="savings, as 0.81,0.92: at what price of spot nodes they are had",
    )
    parser.add_argument("--html", metavar="FILE", help="a page with plots")
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    parser.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    from drivetrain_cloud.cost import write_page

    # What is wrong with a file is no wrong use.
    prices, trace = prices_of(arguments.prices), _trace_of_file(arguments)
    with as_wrong_use(arguments):
        comparison = _compared(arguments, prices, trace)
    if arguments.html is not None:
        write_page(comparison, arguments.html)
    if arguments.json:
        from drivetrain_cloud.cost.report import as_plain

        sys.stdout.write(json.dumps(as_plain(comparison)) + "\n")
    else:
        _show(comparison)
    return 0


def _compared(
    arguments: argparse.Namespace, prices: PriceList, trace: CapacityTrace | None
) -> StrategyComparison:
    """Simulates what the options describe."""
    from drivetrain_cloud.cost import StrategyComparison, sensitivity, simulate_all

    if arguments.html is not None:
        _check_place(Path(arguments.html))
    targets = _targets(arguments)
    scenarios = _scenarios(arguments, prices, trace)
    seeds = range(arguments.seeds)
    # Starting more processes takes longer than a few short runs.
    is_long = arguments.days * arguments.seeds * len(scenarios) > 300
    processes = (os.cpu_count() or 1) if is_long else 1
    report = _reporter(arguments)
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
    from drivetrain_cloud.cost import CapacityTrace, CloudTimes, Scenario
    from drivetrain_cloud.notices.sighting import BadAnswerError, wall_time

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
    from drivetrain_cloud.cost import PROFILES, with_number

    found = []
    for name in _names("--job", arguments.job):
        if name not in PROFILES:
            message = f"--job: there is no job {name!r}, but {', '.join(PROFILES)}"
            raise UsageError(message)
        profile = PROFILES[name]
        for text in arguments.set:
            with as_wrong_use(arguments, "--set"):
                profile = with_number(profile, *_assignment("--set", text))
        found.append(profile)
    return found


def _strategies(arguments: argparse.Namespace, nodes: int) -> list[Strategy]:
    from drivetrain_cloud.cost import usual_strategies

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
    from drivetrain_cloud.cost import SHAPES, read_trace

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
    from dataclasses import fields, replace

    from drivetrain_cloud.cost import SHAPES, TraceShape

    shape = SHAPES[arguments.trace]
    known = [one.name for one in fields(TraceShape)]
    for text in arguments.shape:
        name, value = _assignment("--shape", text)
        if name not in known:
            message = f"--shape: there is no {name!r}; it has {', '.join(known)}"
            raise UsageError(message)
        change: dict[str, Any] = {name: value}
        with as_wrong_use(arguments, "--shape"):
            shape = replace(shape, **change)
    return shape


def _assignment(option: str, text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
    if not equals:
        message = f"{option} needs NAME=NUMBER, as in up_h=5, got {text!r}"
        raise UsageError(message)
    return name.strip(), number


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
    from rich.console import Console
    from rich.table import Table

    from drivetrain_cloud.cost.report import (
        REFERENCE,
        assumptions,
        detail_rows,
        most_saving,
        range_text,
        saving_rows,
        target_rows,
    )

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


def _reporter(arguments: argparse.Namespace) -> Callable[[int, int], None]:
    """Returns what shows how far long work is, where somebody looks."""
    is_shown = sys.stderr.isatty() and not arguments.json

    def report(done: int, total: int) -> None:
        if is_shown:
            end = "" if done < total else "\r\x1b[K"
            sys.stderr.write(f"\r{done} of {total} scenarios simulated{end}")
            sys.stderr.flush()

    return report
