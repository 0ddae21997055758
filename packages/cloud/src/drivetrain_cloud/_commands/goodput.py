"""The command `drivetrain-cloud goodput`: how much of a training's time would count."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import UsageError, as_wrong_use, integer, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from drivetrain_cloud.goodput import GoodputConfig, Point, Summary

__all__ = ["populate_goodput_parser"]

_GPUS = 12_288
_OF_ONE_JOB = ("sensitivity", "sweep")


def populate_goodput_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    job = parser.add_argument_group("the job")
    size = job.add_mutually_exclusive_group()
    size.add_argument("--cluster", metavar="FILE", help="a cluster's description, YAML")
    size.add_argument(
        "--gpus", type=integer(1), metavar="N", help=f"by default {_GPUS:,}"
    )
    job.add_argument(
        "--gpus-per-node", type=integer(1), metavar="N", help="by default 8"
    )
    job.add_argument(
        "--recovery",
        default="drivetrain",
        metavar="NAME,...",
        help="whose recovery times: drivetrain, torchrun, dlrover, megascale, byterobust; "
        "several are compared (default: %(default)s)",
    )
    job.add_argument(
        "--mtbf-gpu-h",
        type=number(above=0),
        metavar="HOURS",
        help="mean hours of one GPU between interruptions; by default Llama 3's, 50,676",
    )
    for name, least, says in (
        ("nodes-per-copy", 1, "that hold one copy of the model together"),
        ("min-nodes", 1, "go on with so many"),
        ("standbys", 0, "nodes that stand by"),
        ("spares", 0, "that can be provided"),
    ):
        job.add_argument(f"--{name}", type=integer(least), metavar="N", help=says)
    job.add_argument(
        "--step-s", type=number(above=0), metavar="SECONDS", help="by default 10"
    )
    job.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any input, as restart_s=60; --inputs lists them",
    )
    run = parser.add_argument_group("what is simulated")
    run.add_argument("--days", type=number(above=0), default=90.0, metavar="N")
    run.add_argument(
        "--seeds", type=integer(1), default=5, metavar="N", help="runs of each job"
    )
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=A,B,C",
        help="an input with several values; twice for all combinations",
    )
    run.add_argument(
        "--sensitivity",
        action="store_true",
        help="each input a quarter, half, twice and four times as large",
    )
    run.add_argument(
        "--published", action="store_true", help="figures of others, and ours for them"
    )
    run.add_argument(
        "--inputs", action="store_true", help="all inputs, with where they are from"
    )
    parser.add_argument("--plot", metavar="FILE", help="a plot, .svg, .png or .pdf")
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    parser.set_defaults(run=_goodput)


def _goodput(arguments: argparse.Namespace) -> int:
    from drivetrain_core.services import ClusterSpec

    # What is wrong with a file is no wrong use.
    if arguments.cluster is not None:
        arguments.cluster = ClusterSpec.load(arguments.cluster)
    names = {
        "num_nodes": "--gpus",
        "num_standbys": "--standbys",
        "num_spares": "--spares",
    }
    with as_wrong_use(arguments, **names):
        return _shown(arguments)


def _shown(arguments: argparse.Namespace) -> int:
    """Shows what was asked for, and returns the exit status."""
    from drivetrain_cloud.goodput import check_plot_path

    chosen = [
        name for name in (*_OF_ONE_JOB, "published", "inputs") if _is(arguments, name)
    ]
    if len(chosen) > 1:
        message = f"give one of {', '.join('--' + name for name in chosen)}"
        raise UsageError(message)
    if arguments.plot is not None:
        if chosen and chosen[0] in {"published", "inputs"}:
            message = f"--{chosen[0]} has no plot"
            raise UsageError(message)
        check_plot_path(arguments.plot)
    show = {
        "published": _show_published,
        "inputs": _show_inputs,
        "sensitivity": _show_sensitivity,
        "sweep": _show_sweep,
    }
    return show[chosen[0]](arguments) if chosen else _show_jobs(arguments)


def _is(arguments: argparse.Namespace, name: str) -> bool:
    return bool(getattr(arguments, name))


# Jobs.


def _jobs(arguments: argparse.Namespace) -> dict[str, GoodputConfig]:
    """Returns the jobs that the options describe, by name of the system."""
    names = [name.strip() for name in arguments.recovery.split(",")]
    if len(set(names)) != len(names):
        message = f"--recovery names a system twice: {arguments.recovery}"
        raise UsageError(message)
    return {name: _job(arguments, name) for name in names}


def _one_job(arguments: argparse.Namespace, option: str) -> tuple[str, GoodputConfig]:
    jobs = _jobs(arguments)
    if len(jobs) != 1:
        message = f"{option} needs one system, got --recovery {arguments.recovery}"
        raise UsageError(message)
    return next(iter(jobs.items()))


def _job(arguments: argparse.Namespace, name: str) -> GoodputConfig:
    from drivetrain_cloud.goodput import preset, usual_failures, with_input

    with as_wrong_use(arguments, "--recovery"):
        system = preset(name)
    options = {
        key: value
        for key, value in (
            ("nodes_per_copy", arguments.nodes_per_copy),
            ("min_nodes", arguments.min_nodes),
            ("num_standbys", arguments.standbys),
            ("num_spares", arguments.spares),
            ("step_s", arguments.step_s),
        )
        if value is not None
    }
    if arguments.cluster is not None:
        config = _of_cluster(arguments, system, options)
    else:
        if arguments.mtbf_gpu_h is not None:
            options["modes"] = usual_failures(arguments.mtbf_gpu_h)
        per_node = 8 if arguments.gpus_per_node is None else arguments.gpus_per_node
        gpus = _GPUS if arguments.gpus is None else arguments.gpus
        if gpus % per_node:
            message = (
                f"--gpus must be a multiple of --gpus-per-node, got {gpus} and "
                f"{per_node}"
            )
            raise UsageError(message)
        config = system.config(
            num_nodes=gpus // per_node, devices_per_node=per_node, **options
        )
    for text in arguments.set:
        key, values = _assignment("--set", text)
        if len(values) != 1:
            message = f"--set takes one value, got {text!r}; --sweep takes several"
            raise UsageError(message)
        with as_wrong_use(arguments, "--set"):
            config = with_input(config, key, values[0])
    return config


def _of_cluster(
    arguments: argparse.Namespace, system: Any, options: dict[str, Any]
) -> GoodputConfig:
    from drivetrain_cloud.goodput import GoodputConfig

    if arguments.gpus_per_node is not None:
        message = "--gpus-per-node is what --cluster says: give one of them"
        raise UsageError(message)
    usual = {name: one.value for name, one in system.job.items()}
    if arguments.mtbf_gpu_h is not None:
        usual["mtbf_gpu_h"] = arguments.mtbf_gpu_h
    return GoodputConfig.from_cluster(
        arguments.cluster,
        recovery=system.profile(),
        checkpoint=system.plan(),
        **{**usual, **options},
    )


def _assignment(option: str, text: str) -> tuple[str, list[float]]:
    name, equals, values = text.partition("=")
    try:
        numbers = [float(one) for one in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        message = f"{option} needs NAME=NUMBER, as in mtbf_h=2.5, got {text!r}"
        raise UsageError(message)
    return name.strip(), numbers


# What is shown.


def _show_jobs(arguments: argparse.Namespace) -> int:
    from drivetrain_cloud.goodput import plot_losses, simulate_many

    jobs = _jobs(arguments)
    report = _reporter(arguments)
    found = {}
    for done, (name, job) in enumerate(jobs.items()):
        report(done, len(jobs))
        found[name] = simulate_many(
            job, days=arguments.days, seeds=range(arguments.seeds)
        )
    report(len(jobs), len(jobs))
    if arguments.plot is not None:
        plot_losses(arguments.plot, found)
    if arguments.json:
        _say(json.dumps({name: _plain(jobs[name], one) for name, one in found.items()}))
        return 0
    for name, summary in found.items():
        _say_job(name, jobs[name], summary, arguments)
    return 0


def _say_job(
    name: str, job: GoodputConfig, summary: Summary, arguments: argparse.Namespace
) -> None:
    _say(
        f"{name}: {job.num_devices:,} GPUs on {job.num_nodes:,} nodes, a failure each "
        f"{job.mtbf_s / 3600:.2f} h, {arguments.days:g} days, {arguments.seeds} runs"
    )
    _say(
        f"  {summary.goodput:.2%} of the time counts "
        f"({summary.lowest:.2%} to {summary.highest:.2%})"
    )
    rows = [
        (loss.value, f"{share:.3%}")
        for loss, share in summary.lost_shares.items()
        if share
    ]
    _table(("lost to", "of the time"), rows)
    counts = [(mode, f"{num:.1f}") for mode, num in summary.num_failures.items()]
    _table(("failures", "in a run"), counts)


def _show_sweep(arguments: argparse.Namespace) -> int:
    from drivetrain_cloud.goodput import plot_sweep, sweep

    name, job = _one_job(arguments, "--sweep")
    values: dict[str, Sequence[float]] = {}
    for text in arguments.sweep:
        key, numbers = _assignment("--sweep", text)
        if key in values:
            message = f"--sweep names {key} twice"
            raise UsageError(message)
        values[key] = numbers
    points = sweep(
        job,
        values,
        days=arguments.days,
        seeds=range(arguments.seeds),
        report=_reporter(arguments),
    )
    if arguments.plot is not None:
        plot_sweep(arguments.plot, points)
    if arguments.json:
        _say(json.dumps([{**p.inputs, **_shares(p.summary)} for p in points]))
        return 0
    _say(f"{name}, {job.num_devices:,} GPUs")
    _table((*values, "counts", "from", "to", "mostly lost to"), map(_row, points))
    return 0


def _row(point: Point) -> tuple[str, ...]:
    summary = point.summary
    loss, share = next(iter(summary.lost_shares.items()))
    ranges = (summary.goodput, summary.lowest, summary.highest)
    return (
        *(f"{value:g}" for value in point.inputs.values()),
        *(f"{one:.2%}" for one in ranges),
        f"{loss.value}, {share:.2%}",
    )


def _show_sensitivity(arguments: argparse.Namespace) -> int:
    from drivetrain_cloud.goodput import (
        get_input,
        plot_sensitivity,
        sensitivity,
        simulate_many,
    )

    name, job = _one_job(arguments, "--sensitivity")
    factors = (0.25, 0.5, 2.0, 4.0)
    seeds = range(arguments.seeds)
    usual = simulate_many(job, days=arguments.days, seeds=seeds).goodput
    found = sensitivity(
        job,
        factors=factors,
        days=arguments.days,
        seeds=seeds,
        report=_reporter(arguments),
    )
    if arguments.plot is not None:
        plot_sensitivity(arguments.plot, found, factors=factors, usual=usual)
    if arguments.json:
        plain = {"goodput": usual, "factors": factors, "inputs": found}
        _say(json.dumps(plain))
        return 0
    _say(f"{name}, {job.num_devices:,} GPUs: {usual:.2%} of the time counts")
    _table(
        ("input", "value", *(f"x {factor:g}" for factor in factors)),
        (
            (key, f"{get_input(job, key):g}", *(f"{one:.2%}" for one in shares))
            for key, shares in found.items()
        ),
    )
    return 0


def _show_published(arguments: argparse.Namespace) -> int:
    from drivetrain_cloud.goodput import published_cases

    report = _reporter(arguments)
    cases = published_cases()
    found = []
    for done, case in enumerate(cases):
        report(done, len(cases))
        found.append(case.run(range(arguments.seeds)))
    report(len(cases), len(cases))
    if arguments.json:
        plain = [
            {
                "case": one.case.name,
                "source": one.case.source,
                "published": one.case.figure,
                "goodput": one.goodput,
                "error_points": one.error_points,
                "is_test": one.case.is_test,
                "inputs": {
                    name: {"value": i.value, "origin": i.origin, "note": i.note}
                    for name, i in one.case.inputs.items()
                },
            }
            for one in found
        ]
        _say(json.dumps(plain))
        return 0
    _table(
        ("case", "published", "simulated", "points", "fitted", "of"),
        (
            (
                one.case.name,
                f"{'> ' if one.case.is_bound else ''}{one.case.figure:.1%}",
                f"{one.goodput:.1%}",
                f"{one.error_points:+.1f}",
                "its own" if one.case.is_own_fit else one.case.fitted_to or "nothing",
                one.case.source,
            )
            for one in found
        ),
    )
    return 0


def _show_inputs(arguments: argparse.Namespace) -> int:
    from drivetrain_cloud.goodput import get_input, input_names, preset

    rows = []
    for name, job in _jobs(arguments).items():
        system = preset(name)
        sources = {**system.recovery, **system.checkpoint, **system.job}
        for key in input_names():
            value, source = get_input(job, key), sources.get(key)
            # One that was set on the command line has no source but that.
            is_theirs = source is not None and source.value == value
            rows.append(
                (
                    name,
                    key,
                    value,
                    source.origin.value if source and is_theirs else "",
                    source.note if source and is_theirs else "",
                )
            )
    if arguments.json:
        keys = ("recovery", "input", "value", "origin", "note")
        _say(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return 0
    _table(
        ("recovery", "input", "value", "origin", "note"),
        ((name, key, f"{value:g}", *rest) for name, key, value, *rest in rows),
    )
    return 0


def _plain(job: GoodputConfig, summary: Summary) -> dict[str, Any]:
    return {
        "gpus": job.num_devices,
        "nodes": job.num_nodes,
        "mtbf_h": job.mtbf_s / 3600,
        **_shares(summary),
        "failures": summary.num_failures,
    }


def _shares(summary: Summary) -> dict[str, Any]:
    return {
        "goodput": summary.goodput,
        "lowest": summary.lowest,
        "highest": summary.highest,
        "lost": {loss.value: share for loss, share in summary.lost_shares.items()},
    }


def _reporter(arguments: argparse.Namespace) -> Callable[[int, int], None]:
    """Returns what shows how far long work is, where somebody looks."""
    is_shown = sys.stderr.isatty() and not arguments.json

    def report(done: int, total: int) -> None:
        if is_shown:
            end = "" if done < total else "\r\x1b[K"
            sys.stderr.write(f"\r{done} of {total} jobs simulated{end}")
            sys.stderr.flush()

    return report


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        _say("  " + "  ".join(cells).rstrip())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
