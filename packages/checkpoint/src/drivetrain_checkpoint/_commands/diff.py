"""The command `diff`, which compares two checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_checkpoint._commands import common
from drivetrain_checkpoint._formats.detect import open_source
from drivetrain_checkpoint._formats.diff import differences

if TYPE_CHECKING:
    import argparse


def diff(args: argparse.Namespace) -> int:
    """Prints how two checkpoints differ; returns 1 if they do."""
    options = dict(args.options)
    one = open_source(args.one, step=args.step_one, options=options)
    two = open_source(args.two, step=args.step_two, options=options)
    with common.progress(args, "compare", is_bytes=False) as tell:
        found = list(differences(one, two, tell))
    if args.json:
        common.say_json([difference._asdict() for difference in found])
    elif found:
        rows = [(difference.name, difference.because) for difference in found]
        common.say_table(("NAME", "DIFFERENCE"), rows)
    else:
        common.say(f"{len(one.tensors)} tensors and all plain data are equal")
    return 1 if found else 0
