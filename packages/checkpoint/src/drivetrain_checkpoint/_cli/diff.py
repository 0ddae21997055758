"""The command `diff`, which compares two checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._cli import common

if TYPE_CHECKING:
    import argparse

__all__ = ["add"]


def add(commands: Any) -> None:
    """Adds the command."""
    text = "compare two checkpoints of any format; exit status 1 if they differ"
    diff = common.add_command(commands, "diff", text, _diff)
    diff.add_argument("one", type=common.place, help="a checkpoint")
    diff.add_argument("two", type=common.place, help="another")
    common.add_step(diff, "--step-one", "which one of a folder; the newest")
    common.add_step(diff, "--step-two", "likewise")


def _diff(args: argparse.Namespace) -> int:
    # They need torch, which other commands do without.
    from drivetrain_checkpoint._diff import differences
    from drivetrain_checkpoint._foreign.detect import open_source

    one = open_source(args.one, step=args.step_one, options=args.options)
    two = open_source(args.two, step=args.step_two, options=args.options)
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
