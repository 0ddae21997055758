"""The command `drivetrain fabric advise`: what to set on this network, and who says so."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from drivetrain_core import DistributedError
from drivetrain_core.commands import add_options, as_wrong_use
from drivetrain_core.services import ClusterSpec
from drivetrain_fabric.adviser import (
    advise,
    as_diff,
    as_env,
    gather,
    with_cluster,
    with_given,
    with_measured,
)
from drivetrain_fabric.adviser._draw import report_tables

if TYPE_CHECKING:
    import argparse

    from drivetrain_fabric.adviser import Facts, Report

_DEFAULT_RANKS = 8
# Options that are arguments of `with_given`.
_GIVEN = ("nccl_version", "delay_ms", "gbps", "flow_gbps", "paths", "dscp")


def populate_advise(commands: Any) -> None:
    """Adds the command `advise`, which sets `run` as other commands do.

    Args:
        commands: The sub-commands of `drivetrain fabric`.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "advise",
        help="say what to set for NCCL, Gloo and the kernel on this network",
        allow_abbrev=False,
    )
    add_options(parser, files(__package__) / "options.toml")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    facts = _facts(args)
    report = advise(facts)
    if not args.json and args.form != "table":
        form = as_env if args.form == "env" else as_diff
        sys.stdout.write(form(facts, report))
        return 0
    if args.json:
        sys.stdout.write(f"{json.dumps(_plain(report), indent=2)}\n")
    else:
        _print(report)
    return int("bad" in [one.level for one in report.advice])


def _facts(args: argparse.Namespace) -> Facts:
    if args.root is not None and not Path(args.root).is_dir():
        message = f"--root {args.root}: there is no such folder"
        raise DistributedError(message)
    # The variables are those of this host, not of one whose files were copied.
    facts = gather() if args.root is None else gather(args.root, environment={})
    if args.cluster is not None:
        facts = with_cluster(facts, ClusterSpec.load(args.cluster))
    if args.measured is not None:
        facts = with_measured(facts, args.measured)
    ranks = args.ranks
    if ranks is None and facts.ranks is None:
        ranks = _DEFAULT_RANKS
    given = {name: getattr(args, name) for name in _GIVEN}
    with as_wrong_use(args, "--nccl-version"):
        return with_given(facts, ranks=ranks, **given)


def _plain(report: Report) -> list[dict[str, Any]]:
    """Returns all that is said in one list; each has a kind, a name and a level."""
    about = {
        "kind": "about",
        "name": "network",
        "level": "ok",
        "because": f"{report.nccl}, {report.transport}",
        "longest_flap": report.longest_flap,
    }
    return [
        about,
        *({"kind": "advice", "name": a.setting, **asdict(a)} for a in report.advice),
        *({"kind": "problem", "level": "warn", **asdict(p)} for p in report.problems),
        *(
            {"kind": "gap", "name": f"{g.subject} (gap)", "level": "ok", **asdict(g)}
            for g in report.gaps
        ),
    ]


def _print(report: Report) -> None:
    if not report.advice:
        sys.stdout.write(f"nothing to set for {report.nccl}, {report.transport}\n")
    if report.longest_flap:
        sys.stdout.write(f"{report.longest_flap}\n")
    console = Console(file=sys.stdout)
    for table in report_tables(report):
        console.print(table)
