"""`drivetrain comm doctor`: what would make a start slow, or fail, on this host."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drivetrain_comm import _native
from drivetrain_comm._cli.common import print_table
from drivetrain_comm._resolver import Finding, startup_findings
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    import argparse

__all__ = ["populate"]


def populate(commands: Any) -> None:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="look for what makes a start slow, or fail, on this host",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--ranks", type=int, default=8, help="of the job (the default: %(default)s)"
    )
    parser.add_argument("--master", metavar="HOST", help="where rank 0 runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.ranks < 1:
        message = f"--ranks must be at least 1, got {args.ranks}"
        raise DistributedError(message)
    lacks = _native.missing_because()
    engine = Finding(
        name="engine",
        level="warn" if lacks else "ok",
        because=lacks or "the native engine is there",
        fix="install the package again, with a C++ compiler" if lacks else "",
    )
    found = [engine, *startup_findings(world_size=args.ranks, master=args.master)]
    is_bad = any(one.level == "bad" for one in found)
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return int(is_bad)
    rows = [["what", "state", "because", "what helps"]]
    rows += [[one.name, one.level, one.because, one.fix or ""] for one in found]
    print_table(f"before a job of {args.ranks} ranks", rows)
    return int(is_bad)
