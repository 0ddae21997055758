"""`drivetrain comm compile`: a collective for a given graph of links."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from drivetrain_comm._cli.common import human
from drivetrain_comm.compiler import compile_schedule, load_graph, to_msccl
from drivetrain_core.commands import UsageError
from drivetrain_core.tables import print_table

if TYPE_CHECKING:
    import argparse

    from drivetrain_comm.compiler import Compiled, LinkGraph


def run(args: argparse.Namespace) -> int:
    """Carries out the command, and returns the exit status."""
    graph = load_graph(args.links)
    if args.root not in graph.ranks:
        message = f"--root must be one of {graph.num_ranks} ranks, got {args.root}"
        raise UsageError(message)
    if args.root and args.collective != "broadcast":
        message = f"--root is for a broadcast, and this is {args.collective}"
        raise UsageError(message)
    found = compile_schedule(
        graph,
        args.collective,
        args.size,
        root=args.root,
        message_s=args.message_us * 1e-6,
        budget_s=args.budget,
    )
    if args.out:
        as_xml = Path(args.out).suffix == ".xml"
        text = to_msccl(found.schedule) if as_xml else found.schedule.to_json()
        Path(args.out).write_text(text, encoding="utf-8")
        sys.stderr.write(f"wrote {args.out}: {found.schedule.name}\n")
    if args.json:
        print(json.dumps(_report(graph, args, found), indent=2))
        return 0
    rows = [["schedule", "chunks", "milliseconds", "of the bound"]]
    rows += [
        [
            one.name,
            str(one.num_chunks),
            f"{one.seconds * 1e3:.4g}",
            f"{one.seconds / found.bound.seconds:.3f} x",
        ]
        for one in found.best_of_each()
    ]
    name = escape(graph.name)
    print_table(f"{args.collective} of {human(args.size)} on {name}", rows)
    print(
        f"no schedule takes less than {found.bound.seconds * 1e3:.4g} ms: "
        f"{found.bound.because}"
    )
    return 0


def _report(
    graph: LinkGraph, args: argparse.Namespace, found: Compiled
) -> dict[str, Any]:
    return {
        "graph": graph.name,
        "collective": args.collective,
        "size_bytes": args.size,
        "seconds": found.seconds,
        "bound": asdict(found.bound),
        "candidates": [asdict(one) for one in found.candidates],
    }
