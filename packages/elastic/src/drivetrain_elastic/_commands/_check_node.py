"""The command `drivetrain-elastic check` of one node, and how a node is shown."""

from __future__ import annotations

import json
import socket
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_core.commands import as_wrong_use, reason_of
from drivetrain_health.checks import CheckConfig, check_node, plan_commands

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from drivetrain_health.checks import NodeReport


def run(arguments: argparse.Namespace) -> int:
    """Checks this node alone, and returns the exit status."""
    if arguments.dry_run:
        print("\n".join(plan_commands(arguments.sysfs)))
        return 0
    config = config_of(arguments)
    report = check_node(config, node=arguments.node or socket.gethostname())
    if arguments.json:
        print(json.dumps(plain_report(report)), flush=True)
    else:
        _print_report(report, config.num_threads)
    return 0 if report.is_good and report.is_checked else 1


def config_of(arguments: argparse.Namespace) -> CheckConfig:
    """Returns what is checked, and for how long.

    Args:
        arguments: Of the command.
    """
    options = {
        one.name: value
        for one in fields(CheckConfig)
        if (value := getattr(arguments, one.name, None)) is not None
    }
    if arguments.checks is not None:
        options["checks"] = tuple(one.strip() for one in arguments.checks.split(","))
    if arguments.switches is not None:
        options["switches"] = _switches(arguments.switches)
    with as_wrong_use(arguments):
        return CheckConfig(**options)


def _switches(path: str) -> dict[str, str]:
    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        message = f"--switches {path} cannot be read: {reason_of(error)}"
        raise ProgramError(message) from error
    if not isinstance(table, dict) or not all(
        isinstance(s, str) for s in table.values()
    ):
        message = (
            f"{path} must hold one table, from names of nodes to names of switches"
        )
        raise ProgramError(message)
    return table


def plain_report(report: NodeReport) -> dict[str, Any]:
    """Returns what was measured on a node, for JSON."""
    found = {
        **report._asdict(),
        "is_good": report.is_good,
        "is_checked": report.is_checked,
    }
    del found["received"]
    return found


def _print_report(report: NodeReport, num_threads: int) -> None:
    rows = [("measure", report.node)]
    rows += [(name, f"{rate:.4g}") for name, rate in report.measures.items()]
    print_columns(rows)
    print_threads(report, num_threads)
    for build, digest in report.digests.items():
        print(f"bits {digest}: {build}")
    print_faults(report)
    if not report.is_checked:
        print("nothing was checked")
    else:
        print(f"{report.node} {'has passed' if report.is_good else 'has FAILED'}")


def print_faults(report: NodeReport) -> None:
    """Prints what is wrong with a node, or was not checked."""
    for name, why in report.failures.items():
        print(f"{report.node} failed in {name}: {why}")
    for why in (report.network_failure, report.wrong_bits):
        if why:
            print(f"{report.node} failed: {why}")
    for name, why in report.skipped.items():
        print(f"skipped {name}: {why}")
    for name, why in report.not_made.items():
        print(f"not made {name}: {why}")


def print_threads(report: NodeReport, num_threads: int) -> None:
    """Prints how many threads have computed, if any have."""
    if "compute_gflops" in report.measures:
        print(f"threads {num_threads}")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows whose columns after the first are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [
            text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)
        ]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())
