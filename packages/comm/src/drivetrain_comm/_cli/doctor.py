"""`drivetrain comm doctor`: what would make a start slow, or fail."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drivetrain_comm._resolver import Finding, startup_findings
from drivetrain_comm.backend import _native
from drivetrain_core.commands import UsageError, integer
from drivetrain_core.moved_commands import run_moved
from drivetrain_core.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULT_RANKS = 8
_MOST = 10**9
# Options that are those of `drivetrain fabric advise` now.
_MOVED = (
    *("--as", "--nccl-version", "--delay-ms", "--gbps", "--flow-gbps", "--paths"),
    *("--dscp", "--measured", "--cluster", "--root"),
)


def populate(commands: Any) -> None:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="look for what makes a start slow, or fail, on this host",
        allow_abbrev=False,
    )
    text = f"of the job (the default: {_DEFAULT_RANKS})"
    parser.add_argument("--ranks", type=integer(1, _MOST), help=text)
    parser.add_argument("--master", metavar="HOST", help="where rank 0 runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    for option in _MOVED:
        parser.add_argument(
            option,
            dest="moved",
            action="append",
            type=_with(option),
            help=argparse.SUPPRESS,
        )
    parser.set_defaults(run=_run)


def _with(option: str) -> Callable[[str], tuple[str, str]]:
    return lambda value: (option, value)


def _run(args: argparse.Namespace) -> int:
    if args.moved:
        return _advise(args)
    ranks = args.ranks or _DEFAULT_RANKS
    lacks = _native.missing_because()
    engine = Finding(
        name="engine",
        level="warn" if lacks else "ok",
        because=lacks or "the native engine is there",
        fix="install the package again, with a C++ compiler" if lacks else "",
    )
    found = [engine, *startup_findings(world_size=ranks, master=args.master)]
    if args.json:
        plain = [{"kind": "finding", **asdict(one)} for one in found]
        print(json.dumps(plain, indent=2))
    else:
        rows = [["what", "state", "because", "what helps"]]
        rows += [[one.name, one.level, one.because, one.fix or ""] for one in found]
        print_table(f"before a job of {ranks} ranks", rows)
    return int("bad" in [one.level for one in found])


def _advise(args: argparse.Namespace) -> int:
    option = args.moved[0][0]
    if args.master is not None:
        message = (
            f"--master is of this command, and {option} is now of drivetrain fabric "
            "advise: call one after the other"
        )
        raise UsageError(message)
    words = [word for pair in args.moved for word in pair]
    # What was not given, the advice takes from the cluster or the environment.
    words += [] if args.ranks is None else [f"--ranks={args.ranks}"]
    words += ["--json"] if args.json else []
    return run_moved(f"{args.parser.prog} {option}", "fabric advise", words)
