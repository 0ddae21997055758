"""Options of the command `drivetrain-elastic check`: of one node, or of several."""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

from drivetrain_core.commands import deferred, integer, number
from drivetrain_elastic._commands._address_options import addresses

# Which options have which default and range is in one place only, the configuration.
_NUMBERS = (
    ("measure-s", number(), "SECONDS", "how long each check measures"),
    ("limit-s", number(), "SECONDS", "after how long a check is killed"),
    ("round-s", number(), "SECONDS", "how long nodes wait for each other in a round"),
    (
        "join-s",
        number(),
        "SECONDS",
        "how long nodes that are there wait for the others",
    ),
    (
        "num-threads",
        integer(1),
        "N",
        "of the CPU that compute; by default all that it may use",
    ),
)


def populate_check_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.description = (
        "Checks this node, and with --nodes also the others and the network between them: "
        "run it on all of them at once. Ends with 0 if all nodes have passed, and with 1 "
        "if one is faulty or slow, or if it cannot be told."
    )
    parser.add_argument(
        "--nodes",
        type=integer(1),
        default=1,
        metavar="N",
        help="how many nodes (%(default)s)",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="this node's name; by default the host's"
    )
    parser.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        type=addresses,
        metavar="HOST:PORT",
        help="where a master is, at which the nodes meet",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the master's token; by default DRIVETRAIN_ELASTIC_TOKEN",
    )
    parser.add_argument(
        "--init-method",
        type=_rendezvous_url,
        metavar="URL",
        help="without a master: file:///PATH on a disk that all share, not there yet, or "
        "tcp://HOST:PORT of one of the nodes, in a network where everybody is trusted",
    )
    parser.add_argument(
        "--id",
        default="0",
        metavar="NAME",
        help="of this check; two checks at one master need different ones",
    )
    parser.add_argument(
        "--checks", metavar="A,B,...", help="which checks to make; by default all"
    )
    for name, kind, metavar, says in _NUMBERS:
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=says)
    parser.add_argument(
        "--folder", metavar="DIR", help="where a file is written and read, for the disk"
    )
    parser.add_argument("--address", help="this node's, as others see it")
    parser.add_argument(
        "--switches",
        metavar="FILE",
        help="JSON: under which switch each node is; neighbours are checked first",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the commands that measure RDMA and NCCL on this node, and run none",
    )
    parser.add_argument(
        "--sysfs",
        default="/sys",
        metavar="DIR",
        help="with --dry-run: what was recorded of another node's (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_check)


def _rendezvous_url(text: str) -> str:
    """Returns the URL of a rendezvous without a master."""
    url = urlsplit(text)
    if url.scheme == "file" and url.path and not url.netloc:
        return text
    try:
        is_place = url.scheme == "tcp" and bool(url.hostname) and bool(url.port)
    except ValueError:
        is_place = False
    if not is_place:
        message = f"must be file:///PATH or tcp://HOST:PORT, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return text


def _check(arguments: argparse.Namespace) -> int:
    # What several nodes need imports torch.
    is_alone = arguments.nodes == 1 or arguments.dry_run
    how = "_check_node" if is_alone else "_check_nodes"
    return deferred(f"drivetrain_elastic._commands.{how}:run")(arguments)
