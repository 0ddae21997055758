"""Options of the command `drivetrain-cloud simulate-spot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, integer, number

if TYPE_CHECKING:
    import argparse


def populate_simulate_spot_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--job",
        default="resnet50,bert-large",
        metavar="NAME,...",
        help="profiles of jobs (default: %(default)s)",
    )
    job.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any number of the profiles, as restore_s=120",
    )
    job.add_argument(
        "--nodes",
        default="2,4,8,16",
        metavar="N,...",
        help="nodes that the job asks for (default: %(default)s)",
    )
    job.add_argument(
        "--hours",
        type=number(above=0),
        metavar="HOURS",
        help="how long the job would take if nothing happened to it; by default it goes "
        "on until the trace ends",
    )
    strategy = parser.add_argument_group("what it does")
    strategy.add_argument(
        "--strategy",
        metavar="NAME,...",
        help="restart, wait-full, resize, wait-full+fallback, resize+fallback; by "
        "default all",
    )
    strategy.add_argument(
        "--min-nodes",
        type=integer(1),
        metavar="N",
        help="by default half of the nodes",
    )
    strategy.add_argument(
        "--max-wait-s",
        type=number(0, can_be_inf=True),
        default=600.0,
        metavar="SECONDS",
        help="after which nodes on demand fill the gap, where they do (default: "
        "%(default)s)",
    )
    cloud = parser.add_argument_group("the cloud")
    cloud.add_argument(
        "--trace",
        default="busy",
        metavar="NAME|FILE",
        help="calm, busy, daily or hostile, of which each run draws its own; or a CSV of "
        "seconds and available nodes (default: %(default)s)",
    )
    cloud.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any number of a drawn trace's shape, as up_h=5: up_h, down_h, weibull, "
        "longest_h, bursts_per_day, burst_share or daily_swing",
    )
    cloud.add_argument(
        "--pool-ratio",
        type=number(above=0),
        default=1.25,
        metavar="X",
        help="spot nodes of the pool for each that the job asks for (default: "
        "%(default)s)",
    )
    cloud.add_argument(
        "--days",
        type=number(above=0),
        default=30.0,
        metavar="N",
        help="how long a drawn trace is (default: %(default)g)",
    )
    for name, value, says in (
        ("start-s", 180.0, "how long a node that is granted takes to start"),
        ("notice-s", 120.0, "how long before its end a node hears of it"),
    ):
        cloud.add_argument(
            f"--{name}",
            type=number(0),
            default=value,
            metavar="SECONDS",
            help=f"{says} (default: %(default)g)",
        )
    cloud.add_argument(
        "--prices",
        action="append",
        metavar="FILE",
        help="CSV or a cloud's JSON, once or more; by default an example",
    )
    cloud.add_argument("--offer", metavar="NAME", help="what nodes are in the prices")
    cloud.add_argument(
        "--begin",
        metavar="TIME",
        help="as 2026-06-01T00:00:00Z; by default the first time that has prices",
    )
    parser.add_argument(
        "--seeds",
        type=integer(1),
        default=3,
        metavar="N",
        help="runs of each (default: %(default)s)",
    )
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="other inputs too, for the last job, size and strategy",
    )
    parser.add_argument(
        "--target",
        default="",
        metavar="SHARE,...",
        help="savings, as 0.81,0.92: at what price of spot nodes they are had",
    )
    parser.add_argument("--html", metavar="FILE", help="a page with plots")
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    parser.set_defaults(run=deferred("drivetrain_cloud._commands.simulate_spot:run"))
