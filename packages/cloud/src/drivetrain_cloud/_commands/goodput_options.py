"""Options of the command `drivetrain-cloud goodput`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, integer, number

if TYPE_CHECKING:
    import argparse

USUAL_GPUS = 12_288
"""How many GPUs a job has by default."""


def populate_goodput_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    job = parser.add_argument_group("the job")
    size = job.add_mutually_exclusive_group()
    size.add_argument("--cluster", metavar="FILE", help="a cluster's description, YAML")
    size.add_argument(
        "--gpus", type=integer(1), metavar="N", help=f"by default {USUAL_GPUS:,}"
    )
    job.add_argument(
        "--gpus-per-node", type=integer(1), metavar="N", help="by default 8"
    )
    job.add_argument(
        "--recovery",
        default="drivetrain",
        metavar="NAME,...",
        help="whose recovery times: drivetrain, torchrun, dlrover, megascale, byterobust; "
        "several are compared (default: %(default)s)",
    )
    job.add_argument(
        "--mtbf-gpu-h",
        type=number(above=0),
        metavar="HOURS",
        help="mean hours of one GPU between interruptions; by default Llama 3's, 50,676",
    )
    for name, dest, least, says in (
        (
            "nodes-per-copy",
            "nodes_per_copy",
            1,
            "that hold one copy of the model together",
        ),
        ("min-nodes", "min_nodes", 1, "go on with so many"),
        ("standbys", "num_standbys", 0, "nodes that stand by"),
        ("spares", "num_spares", 0, "that can be provided"),
    ):
        job.add_argument(
            f"--{name}", dest=dest, type=integer(least), metavar="N", help=says
        )
    job.add_argument(
        "--step-s", type=number(above=0), metavar="SECONDS", help="by default 10"
    )
    job.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any input, as restart_s=60; --inputs lists them",
    )
    run = parser.add_argument_group("what is simulated")
    run.add_argument("--days", type=number(above=0), default=90.0, metavar="N")
    run.add_argument(
        "--seeds", type=integer(1), default=5, metavar="N", help="runs of each job"
    )
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=A,B,C",
        help="an input with several values; twice for all combinations",
    )
    run.add_argument(
        "--sensitivity",
        action="store_true",
        help="each input a quarter, half, twice and four times as large",
    )
    run.add_argument(
        "--inputs", action="store_true", help="all inputs, with where they are from"
    )
    parser.add_argument("--plot", metavar="FILE", help="a plot, .svg, .png or .pdf")
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    parser.set_defaults(run=deferred("drivetrain_cloud._commands.goodput:run"))
