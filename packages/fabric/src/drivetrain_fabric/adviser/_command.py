"""The command `drivetrain fabric advise`: what to set on this network, and who says so."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from drivetrain_core import DistributedError
from drivetrain_core.commands import as_wrong_use, integer, number
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
_MOST = 10**9
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
    text = f"of the job (the default: {_DEFAULT_RANKS})"
    parser.add_argument("--ranks", type=integer(1, _MOST), help=text)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--as",
        dest="form",
        choices=("table", "env", "diff"),
        default="table",
        help="a table, lines for a shell, or what changes (the default: %(default)s)",
    )
    form.add_argument("--json", action="store_true", help="print JSON")
    _populate_facts(parser)
    parser.set_defaults(run=_run)


def _populate_facts(parser: argparse.ArgumentParser) -> None:
    facts = parser.add_argument_group(
        "what a host cannot see; given by hand, it counts more than what is read"
    )
    facts.add_argument("--nccl-version", metavar="2.29.7", help="of NCCL")
    for option, kind, text in (
        ("delay-ms", number(0, 60_000), "of a message to another host, one way"),
        ("gbps", number(above=0, most=_MOST), "what a card sends, in Gbit/s"),
        (
            "flow-gbps",
            number(above=0, most=_MOST),
            "what one TCP connection carries, in Gbit/s",
        ),
        (
            "paths",
            integer(1, _MOST),
            "over how many equal ways switches spread connections",
        ),
        ("dscp", integer(0, 63), "the mark of packets that switches do not drop"),
    ):
        facts.add_argument(f"--{option}", type=kind, help=text)
    facts.add_argument(
        "--measured", metavar="FILE", help="what drivetrain comm tune --json printed"
    )
    facts.add_argument("--cluster", metavar="FILE", help="the cluster, as YAML")
    facts.add_argument(
        "--root", metavar="DIR", help="a copy of another host's sys, proc and etc"
    )


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
