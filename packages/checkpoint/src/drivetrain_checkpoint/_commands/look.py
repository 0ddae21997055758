"""The commands that look at checkpoints: `ls`, `inspect` and `verify`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._commands import common
from drivetrain_checkpoint._storage.catalog import scan
from drivetrain_checkpoint._storage.verify import verify

if TYPE_CHECKING:
    import argparse


def list_committed(args: argparse.Namespace) -> int:
    """Prints the committed checkpoints of a folder; returns 1 if one is damaged."""
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
    for one in damaged:
        sys.stderr.write(f"{one.error}\n")
    return 1 if damaged else 0


def inspect(args: argparse.Namespace) -> int:
    """Prints the tensors of a checkpoint."""
    checkpoint = common.open_existing(args.checkpoint, args)
    meshes = checkpoint.layout.meshes
    rows = [
        (t.name, t.dtype, list(t.shape), list(meshes[t.mesh].shape), t.placements)
        for t in checkpoint.layout.tensors
    ]
    if args.json:
        names = ("name", "dtype", "shape", "mesh", "placements")
        tensors = [dict(zip(names, row, strict=True)) for row in rows]
        root = checkpoint.root
        common.say_json({"step": root.step, "job": root.job, "tensors": tensors})
    else:
        header = ("TENSOR", "DTYPE", "SHAPE", "MESH", "PLACEMENTS")
        common.say_table(header, sorted(rows, key=str))
    return 0


def verify_checkpoint(args: argparse.Namespace) -> int:
    """Compares a checkpoint with its checksums; returns 1 if it is damaged."""
    place = common.existing(args.checkpoint)
    if args.step is not None or common.storage_at(place, args).names():
        place = common.open_existing(place, args).url
    with common.progress(args, "verify") as tell:
        problems = verify(place, storage_options=dict(args.options), progress=tell)
    if args.json:
        common.say_json([problem._asdict() for problem in problems])
    elif problems:
        for problem in problems:
            common.say(f"{problem.file}: {problem.because}")
    else:
        common.say(f"{place}: every byte is as it was saved")
    return 1 if problems else 0
