"""The command `drivetrain-checkpoint`, also `drivetrain checkpoint`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._client import Client
from drivetrain_checkpoint._layout import Layout
from drivetrain_checkpoint._saves import list_saved, read_root
from drivetrain_checkpoint._settings import Settings
from drivetrain_checkpoint._storage.open import open_storage, resolve
from drivetrain_checkpoint._verify import located, verify
from drivetrain_core import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "populate_parser"]


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = commands.add_parser(
        "ls", help="list the committed checkpoints of a folder", allow_abbrev=False
    )
    listing.add_argument("folder")
    listing.set_defaults(run=_list)
    inspect = commands.add_parser(
        "inspect", help="list the tensors of a checkpoint", allow_abbrev=False
    )
    inspect.add_argument("checkpoint")
    inspect.set_defaults(run=_inspect)
    check = commands.add_parser(
        "verify",
        help="compare every byte of a checkpoint with its checksums",
        allow_abbrev=False,
    )
    check.add_argument("checkpoint")
    check.set_defaults(run=_verify)
    daemon = commands.add_parser(
        "daemon", help="look at the daemon of this node, or stop it", allow_abbrev=False
    )
    daemon.add_argument("action", choices=["status", "stop"])
    daemon.add_argument("folder", help="where the job's checkpoints go")
    daemon.add_argument("--job", default="default", help="the job's name")
    daemon.set_defaults(run=_daemon)
    for command in (listing, inspect, check, daemon):
        command.add_argument(
            "--json", action="store_true", help="print JSON, for other programs"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     main(["ls", folder])
        STEP  SAVED  RANKS  BYTES  FOLDER
        0
    """
    parser = argparse.ArgumentParser(
        prog="drivetrain-checkpoint", description="Checkpoints.", allow_abbrev=False
    )
    populate_parser(parser)
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"drivetrain-checkpoint: {error}\n")
        return 1
    return status


def _list(args: argparse.Namespace) -> int:
    rows = []
    storage = open_storage(resolve(args.folder))
    for saved in list_saved(storage):
        size = sum(storage.files(saved.name).values())
        at = time.strftime(
            "%Y-%m-%d %H:%M:%S", time.localtime(saved.root.saved_at_ns / 1e9)
        )
        ranks = saved.root.world_size
        rows.append((saved.root.step, at, ranks, size, saved.name))
    if args.json:
        names = ("step", "saved", "ranks", "bytes", "folder")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return 0
    _print_table(("STEP", "SAVED", "RANKS", "BYTES", "FOLDER"), rows)
    return 0


def _inspect(args: argparse.Namespace) -> int:
    root = read_root(*located(args.checkpoint))
    layout = Layout.from_plain(root.layout)
    rows = [
        (
            t.name,
            t.dtype,
            list(t.shape),
            list(layout.meshes[t.mesh].shape),
            t.placements,
        )
        for t in layout.tensors
    ]
    if args.json:
        names = ("name", "dtype", "shape", "mesh", "placements")
        tensors = [dict(zip(names, row, strict=True)) for row in rows]
        print(json.dumps({"step": root.step, "job": root.job, "tensors": tensors}))
        return 0
    _print_table(
        ("TENSOR", "DTYPE", "SHAPE", "MESH", "PLACEMENTS"), sorted(rows, key=str)
    )
    return 0


def _verify(args: argparse.Namespace) -> int:
    problems = verify(args.checkpoint)
    if args.json:
        print(json.dumps([problem._asdict() for problem in problems]))
    elif problems:
        for problem in problems:
            print(f"{problem.file}: {problem.because}")
    else:
        print(f"{args.checkpoint}: every byte is as it was saved")
    return 1 if problems else 0


def _daemon(args: argparse.Namespace) -> int:
    client = Client(Settings(job=args.job, url=resolve(args.folder)))
    if not client.is_running():
        print("{}" if args.json else f"no daemon serves job {args.job!r} here")
        return 1
    answer = client.ask({"op": args.action})
    if args.json or args.action == "status":
        print(json.dumps(answer, indent=None if args.json else 2))
    return 0


def _print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
