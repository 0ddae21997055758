"""`drivetrain comm compile`: a collective for a given graph of links."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from drivetrain_comm._cli.common import human, size
from drivetrain_comm.compiler import COLLECTIVES, compile_schedule, load_graph, to_msccl
from drivetrain_comm.selection._cost import MESSAGE_S
from drivetrain_core.commands import UsageError, integer, number
from drivetrain_core.tables import print_table

if TYPE_CHECKING:
    from drivetrain_comm.compiler import Compiled, LinkGraph


def populate(commands: Any) -> None:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compile",
        help="find the fastest schedule of a collective on given links",
        allow_abbrev=False,
    )
    parser.add_argument("links", help="a file that describes them (JSON)")
    parser.add_argument(
        "--collective",
        default="all_reduce",
        choices=COLLECTIVES,
        help="the default: %(default)s",
    )
    parser.add_argument(
        "--size",
        type=size,
        default="64M",
        help="such as 8M, for gradients that of a bucket (the default: %(default)s)",
    )
    parser.add_argument("--root", type=integer(0), default=0, help="of a broadcast")
    parser.add_argument(
        "--message-us",
        type=number(0),
        default=MESSAGE_S * 1e6,
        help="what a message takes beside its bytes (the default: %(default)g)",
    )
    parser.add_argument(
        "--budget",
        type=number(0),
        default=30.0,
        metavar="SECONDS",
        help="to search in (the default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=_schedule_file,
        metavar="FILE",
        help="where to write it: .json for this package, .xml for MSCCL's executor",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _schedule_file(text: str) -> str:
    if Path(text).suffix not in (".json", ".xml"):
        message = f"must end in .json or .xml, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return text


def _run(args: argparse.Namespace) -> int:
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
