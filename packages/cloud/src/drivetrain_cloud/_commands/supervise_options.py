"""Options of the command `drivetrain-cloud supervise`."""

from __future__ import annotations

import argparse
import math

from drivetrain_cloud.spot.config import AfterMaxWait, Recovery
from drivetrain_core.commands import deferred, integer, number

_OFFER = "example/zone-a/gpu-8"


def populate_supervise_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.description = (
        "Trains on nodes that are processes of this machine, and are taken away and given "
        "back as a trace says. Each hears of it from a metadata endpoint of its own, as on "
        "a cloud. Without a script, a byte-level language model is trained."
    )
    _add_wants(parser)
    _add_pool(parser)
    _add_worth(parser)
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help="for the journal, checkpoints of the example, the output of each node and the "
        "record of who was there (usage.json); by default one that is deleted at the end, "
        "if the job ends well",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="a line for each decision, and no table, as always where the output is no "
        "terminal",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name"
    )
    parser.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="the training script"
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script"
    )
    parser.set_defaults(run=deferred("drivetrain_cloud._commands.supervise:run"))


def _add_wants(parser: argparse.ArgumentParser) -> None:
    """Adds what the job wants."""
    wants = parser.add_argument_group("what the job wants")
    for name, default, least, says in (
        ("nodes", 4, 1, "nodes that are asked for"),
        ("min-nodes", 1, 1, "fewer do not train"),
        (
            "max-nodes",
            None,
            1,
            "idle nodes are taken up to so many; by default --nodes",
        ),
        ("unit", 1, 1, "training runs on a multiple of so many nodes"),
        ("tolerate", 0, 0, "nodes that may be missing, with --recovery wait-full"),
    ):
        wants.add_argument(
            f"--{name}",
            type=integer(least),
            default=default,
            metavar="N",
            help=says if default is None else f"{says} (%(default)s)",
        )
    wants.add_argument(
        "--recovery",
        choices=[one.value for one in Recovery],
        default=Recovery.RESIZE.value,
        help="go on with the nodes that are left, or wait for all (%(default)s)",
    )
    wants.add_argument(
        "--after-max-wait",
        choices=[one.value for one in AfterMaxWait],
        default=AfterMaxWait.FAIL.value,
        help="what happens when nodes do not come for --max-wait-s (%(default)s)",
    )
    for name, seconds, says in (
        ("max-wait-s", 600.0, "how long the job may not train for want of nodes"),
        ("resume-after-s", math.inf, "when a suspended job asks for nodes again"),
        ("settle-s", 2.0, "how long a node that came is watched before it trains"),
        ("grow-after-s", 5.0, "the least time between changes that only add nodes"),
        ("return-after-s", 60.0, "after what time spot nodes replace those on demand"),
        ("margin-s", 2.0, "what is kept of each notice for the unforeseen"),
    ):
        wants.add_argument(
            f"--{name}",
            type=number(0, can_be_inf=True),
            default=seconds,
            metavar="SECONDS",
            help=f"{says} (%(default)g)",
        )


def _add_pool(parser: argparse.ArgumentParser) -> None:
    """Adds what nodes there are."""
    pool = parser.add_argument_group("what nodes there are")
    pool.add_argument(
        "--nproc-per-node",
        type=integer(1),
        default=1,
        metavar="N",
        help="workers on each node (%(default)s)",
    )
    pool.add_argument(
        "--trace",
        metavar="FILE",
        help="how many spot nodes there can be: a CSV with the columns seconds and available; "
        "by default one goes every 30 s, and is back 15 s later",
    )
    pool.add_argument(
        "--cloud",
        type=_cloud,
        action="append",
        metavar="NAME=SECONDS",
        help="as which cloud a node's endpoint answers (aws, gcp, azure, alibaba), and how "
        "long before it is taken away; may be given again, for the next nodes "
        "(aws=20 azure=10)",
    )
    pool.add_argument(
        "--boot-s",
        type=number(0),
        default=0.0,
        metavar="SECONDS",
        help="how long a node takes until its agent starts (%(default)g)",
    )
    pool.add_argument(
        "--seed",
        type=integer(),
        default=0,
        metavar="N",
        help="of which node is taken away (%(default)s)",
    )


def _add_worth(parser: argparse.ArgumentParser) -> None:
    """Adds what nodes cost and bring."""
    worth = parser.add_argument_group("what nodes cost and bring")
    worth.add_argument(
        "--fit-nodes",
        action="store_true",
        help="the number of nodes follows what they bring, from --min-nodes to --max-nodes",
    )
    worth.add_argument(
        "--min-marginal",
        type=number(0, 1),
        default=0.5,
        metavar="SHARE",
        help="of the speed of one of the first nodes that the last one brings at least "
        "(%(default)s)",
    )
    worth.add_argument(
        "--max-cost-ratio",
        type=number(1),
        default=1.5,
        metavar="X",
        help="how much more a sample costs at most than with the cheapest number of nodes "
        "(%(default)s)",
    )
    worth.add_argument(
        "--prices",
        action="append",
        metavar="FILE",
        help="as of `cost`; by default those of the example, which are nobody's",
    )
    worth.add_argument(
        "--offer",
        default=_OFFER,
        metavar="NAME",
        help="what the prices call a node (%(default)s)",
    )


def _cloud(text: str) -> tuple[str, float]:
    """Returns a name and seconds.

    Example:
        >>> _cloud("aws=120")
        ('aws', 120.0)
    """
    # What reads the answers of clouds is of no use where none is named.
    from drivetrain_cloud.notices.known_clouds import CLOUDS

    name, equals, seconds = text.partition("=")
    if not equals or name not in CLOUDS:
        message = (
            f"takes one of {', '.join(CLOUDS)} and seconds, as in aws=120, got {text!r}"
        )
        raise argparse.ArgumentTypeError(message)
    return name, number(above=0)(seconds)
