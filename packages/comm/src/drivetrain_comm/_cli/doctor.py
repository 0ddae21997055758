"""`drivetrain comm doctor`: what would make a start slow, or fail."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from drivetrain_comm._resolver import Finding, startup_findings
from drivetrain_comm.backend import _native
from drivetrain_core.tables import print_table

if TYPE_CHECKING:
    import argparse


def run(args: argparse.Namespace) -> int:
    """Carries out the command, and returns the exit status."""
    lacks = _native.missing_because()
    engine = Finding(
        name="engine",
        level="warn" if lacks else "ok",
        because=lacks or "the native engine is there",
        fix="install the package again, with a C++ compiler" if lacks else "",
    )
    found = [engine, *startup_findings(world_size=args.ranks, master=args.master)]
    if args.json:
        plain = [{"kind": "finding", **asdict(one)} for one in found]
        print(json.dumps(plain, indent=2))
    else:
        rows = [["what", "state", "because", "what helps"]]
        rows += [[one.name, one.level, one.because, one.fix or ""] for one in found]
        print_table(f"before a job of {args.ranks} ranks", rows)
    return int("bad" in [one.level for one in found])
