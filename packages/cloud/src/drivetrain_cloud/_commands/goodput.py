"""The command `drivetrain-cloud goodput`: how much of a training's time would count."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drivetrain_cloud._commands.common import assignment, reporter
from drivetrain_cloud.goodput import (
    GoodputConfig,
    check_plot_path,
    get_input,
    input_names,
    plot_losses,
    plot_sensitivity,
    plot_sweep,
    preset,
    sensitivity,
    simulate_many,
    sweep,
    usual_failures,
    with_input,
)
from drivetrain_core.commands import UsageError, as_wrong_use
from drivetrain_core.services import ClusterSpec
from drivetrain_core.tables import aligned

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from drivetrain_cloud.goodput import Point, Summary

_SIZES = ("nodes_per_copy", "min_nodes", "num_standbys", "num_spares", "step_s")

_USUAL_GPUS = 12_288


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    # What is wrong with a file is no wrong use.
    if arguments.cluster is not None:
        arguments.cluster = ClusterSpec.load(arguments.cluster)
    with as_wrong_use(arguments, num_nodes="--gpus"):
        return _shown(arguments)


def _shown(arguments: argparse.Namespace) -> int:
    """Shows what was asked for, and returns the exit status."""
    show = {
        "sensitivity": _print_sensitivity,
        "sweep": _print_sweep,
        "inputs": _print_inputs,
    }
    chosen = [name for name in show if getattr(arguments, name)]
    if len(chosen) > 1:
        message = f"give one of {', '.join('--' + name for name in chosen)}"
        raise UsageError(message)
    if arguments.plot is not None:
        if chosen == ["inputs"]:
            message = "--inputs has no plot"
            raise UsageError(message)
        check_plot_path(arguments.plot)
    return show[chosen[0]](arguments) if chosen else _print_jobs(arguments)


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
    with as_wrong_use(arguments, "--recovery"):
        system = preset(name)
    options = {
        key: value for key in _SIZES if (value := getattr(arguments, key)) is not None
    }
    if arguments.cluster is not None:
        config = _of_cluster(arguments, system, options)
    else:
        if arguments.mtbf_gpu_h is not None:
            options["modes"] = usual_failures(arguments.mtbf_gpu_h)
        per_node = 8 if arguments.gpus_per_node is None else arguments.gpus_per_node
        gpus = _USUAL_GPUS if arguments.gpus is None else arguments.gpus
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
        key, values = assignment("--set", text, "mtbf_h=2.5")
        if len(values) != 1:
            message = f"--set takes one value, got {text!r}; --sweep takes several"
            raise UsageError(message)
        with as_wrong_use(arguments, "--set"):
            config = with_input(config, key, values[0])
    return config


def _of_cluster(
    arguments: argparse.Namespace, system: Any, options: dict[str, Any]
) -> GoodputConfig:
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


# What is shown.


def _print_jobs(arguments: argparse.Namespace) -> int:
    jobs = _jobs(arguments)
    report = reporter(arguments, "jobs")
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
        print(
            json.dumps({name: _plain(jobs[name], one) for name, one in found.items()})
        )
        return 0
    for name, summary in found.items():
        _print_job(name, jobs[name], summary, arguments)
    return 0


def _print_job(
    name: str, job: GoodputConfig, summary: Summary, arguments: argparse.Namespace
) -> None:
    print(
        f"{name}: {job.num_devices:,} GPUs on {job.num_nodes:,} nodes, a failure each "
        f"{job.mtbf_s / 3600:.2f} h, {arguments.days:g} days, {arguments.seeds} runs"
    )
    print(
        f"  {summary.goodput:.2%} of the time counts "
        f"({summary.lowest:.2%} to {summary.highest:.2%})"
    )
    rows = [
        (loss.value, f"{share:.3%}")
        for loss, share in summary.lost_shares.items()
        if share
    ]
    _print_table(("lost to", "of the time"), rows)
    counts = [(mode, f"{num:.1f}") for mode, num in summary.num_failures.items()]
    _print_table(("failures", "in a run"), counts)


def _print_sweep(arguments: argparse.Namespace) -> int:
    name, job = _one_job(arguments, "--sweep")
    values: dict[str, Sequence[float]] = {}
    for text in arguments.sweep:
        key, numbers = assignment("--sweep", text, "mtbf_h=2.5")
        if key in values:
            message = f"--sweep names {key} twice"
            raise UsageError(message)
        values[key] = numbers
    points = sweep(
        job,
        values,
        days=arguments.days,
        seeds=range(arguments.seeds),
        report=reporter(arguments, "jobs"),
    )
    if arguments.plot is not None:
        plot_sweep(arguments.plot, points)
    if arguments.json:
        print(json.dumps([{**p.inputs, **_shares(p.summary)} for p in points]))
        return 0
    print(f"{name}, {job.num_devices:,} GPUs")
    _print_table((*values, "counts", "from", "to", "mostly lost to"), map(_row, points))
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


def _print_sensitivity(arguments: argparse.Namespace) -> int:
    name, job = _one_job(arguments, "--sensitivity")
    factors = (0.25, 0.5, 2.0, 4.0)
    seeds = range(arguments.seeds)
    usual = simulate_many(job, days=arguments.days, seeds=seeds).goodput
    found = sensitivity(
        job,
        factors=factors,
        days=arguments.days,
        seeds=seeds,
        report=reporter(arguments, "jobs"),
    )
    if arguments.plot is not None:
        plot_sensitivity(arguments.plot, found, factors=factors, usual=usual)
    if arguments.json:
        plain = {"goodput": usual, "factors": factors, "inputs": found}
        print(json.dumps(plain))
        return 0
    print(f"{name}, {job.num_devices:,} GPUs: {usual:.2%} of the time counts")
    _print_table(
        ("input", "value", *(f"x {factor:g}" for factor in factors)),
        (
            (key, f"{get_input(job, key):g}", *(f"{one:.2%}" for one in shares))
            for key, shares in found.items()
        ),
    )
    return 0


def _print_inputs(arguments: argparse.Namespace) -> int:
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
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return 0
    _print_table(
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


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for line in aligned([head, *rows]):
        print(f"  {line}")
