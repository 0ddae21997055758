"""The commands that look at checkpoints: `ls`, `inspect` and `verify`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._cli import common
from drivetrain_checkpoint._pick import pick
from drivetrain_checkpoint._saves import scan
from drivetrain_checkpoint._verify import verify

if TYPE_CHECKING:
    import argparse

__all__ = ["add"]


def add(commands: Any) -> None:
    """Adds the commands."""
    text = "list the committed checkpoints of a folder"
    listing = common.add_command(commands, "ls", text, _list)
    text = "where checkpoints are saved, a path or an URL"
    listing.add_argument("folder", type=common.place, help=text)
    inspect = common.add_command(
        commands, "inspect", "list the tensors of a checkpoint", _inspect
    )
    common.add_checkpoint(inspect)
    text = "compare every byte of a checkpoint with its checksums"
    check = common.add_command(commands, "verify", text, _verify)
    common.add_checkpoint(check)


def _list(args: argparse.Namespace) -> int:
    rows = []
    storage = common.storage_at(common.existing(args.folder), args)
    whole, damaged = scan(storage)
    for saved in whole:
        size = sum(storage.files(saved.name).values())
        at = time.strftime(
            "%Y-%m-%d %H:%M:%S", time.localtime(saved.root.saved_at_ns / 1e9)
        )
        ranks = saved.root.world_size
        rows.append((saved.root.step, saved.root.job, at, ranks, size, saved.name))
    if args.json:
        names = ("step", "job", "saved", "ranks", "bytes", "folder")
        common.say_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        common.say_table(("STEP", "JOB", "SAVED", "RANKS", "BYTES", "FOLDER"), rows)
    for error in damaged.values():
        sys.stderr.write(f"{error}\n")
    return 1 if damaged else 0


def _inspect(args: argparse.Namespace) -> int:
    place = common.existing(args.checkpoint)
    picked = pick(place, args.step, args.options)
    layout = picked.layout
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
        root = picked.root
        common.say_json({"step": root.step, "job": root.job, "tensors": tensors})
    else:
        header = ("TENSOR", "DTYPE", "SHAPE", "MESH", "PLACEMENTS")
        common.say_table(header, sorted(rows, key=str))
    return 0


def _verify(args: argparse.Namespace) -> int:
    place = common.existing(args.checkpoint)
    storage = common.storage_at(place, args)
    if args.step is not None or storage.names():
        place = pick(place, args.step, args.options).url
    with common.progress(args, "verify") as tell:
        problems = verify(place, storage_options=args.options, progress=tell)
    if args.json:
        common.say_json([problem._asdict() for problem in problems])
    elif problems:
        for problem in problems:
            common.say(f"{problem.file}: {problem.because}")
    else:
        common.say(f"{place}: every byte is as it was saved")
    return 1 if problems else 0
