"""Options of `drivetrain simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, integer

if TYPE_CHECKING:
    import argparse

_DEVICES_AT_MOST = 1 << 17


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `drivetrain simulate`, and sets what it runs."""
    parser.description = "predict training on a cluster"
    parser.set_defaults(run=deferred("drivetrain_parallel.simulate.command:run"))
    add = parser.add_argument
    add("--cluster", default="h100", help="a name or a file (default: %(default)s)")
    add("--model", help="a name, or sizes as layers=32,hidden=4096,...")
    add(
        "--gpus",
        type=integer(1, _DEVICES_AT_MOST),
        help="how many to use (default: all that a mesh names)",
    )
    add("--mesh", help="such as pipeline=8,tensor=8; shard takes the rest")
    add(
        "--global-batch", type=integer(1), help="samples of a step (default: 4 per GPU)"
    )
    add("--micro-batch", type=integer(1), help="samples of a pass (default: searched)")
    add("--seq", type=integer(1), help="tokens of a sample (default: the model's)")
    add("--schedule", help="of the pipeline (default: searched)")
    add(
        "--stages-per-rank",
        type=integer(1),
        help="stages of a rank (default: searched)",
    )
    add("--checkpointing", help="none, selective or full (default: searched)")
    add("--zero", type=integer(0, 3), help="0 to 3 (default: 2 and 3 are tried)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of a step, such as overlap_tensor=0.9",
    )
    add(
        "--top",
        type=integer(1),
        default=5,
        help="meshes to show (default: %(default)s)",
    )
    add("--refused", action="store_true", help="show meshes that cannot run, and why")
    add("--published", action="store_true", help="predict what others have published")
    add("--ablation", action="store_true", help="predict MegaScale's ablation")
    add("--json", action="store_true", help="print JSON")
