"""Options of the command `drivetrain-elastic master`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.commands import deferred, number
from drivetrain_elastic._commands._address_options import address
from drivetrain_elastic._commands._blocked_signals import blocked_signals

if TYPE_CHECKING:
    import argparse


def populate_master_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--journal",
        metavar="FILE|URL",
        help="a file of SQLite, or redis://HOST:PORT/NUMBER?job=NAME, with which several "
        "masters stand ready and one serves; by default DRIVETRAIN_ELASTIC_JOURNAL, where "
        "other users do not see a password",
    )
    parser.add_argument(
        "--address",
        type=address,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to listen; port 0 takes one that is free (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the job's token, readable by its owner only; made when it is missing; all "
        "masters of a job need the same",
        required=True,
    )
    parser.add_argument(
        "--patience-s",
        type=number(0, can_be_inf=True),
        default=60.0,
        metavar="SECONDS",
        help="how long a worker may hold shards without a word",
    )
    parser.add_argument(
        "--tls-certificate",
        metavar="FILE",
        help="the master's certificate and those above it, PEM; needed to listen for "
        "other machines",
    )
    parser.add_argument("--tls-key", metavar="FILE", help="of the certificate, PEM")
    parser.add_argument(
        "--metrics",
        type=address,
        metavar="HOST:PORT",
        help="serve the state of the job there, for Prometheus; whoever reaches it reads it",
    )
    parser.add_argument(
        "--with-parent",
        action="store_true",
        help="end when the process that started this one does",
    )
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    # Before any library starts a thread, so that no thread takes the signal: one that
    # comes while the master starts ends it as well.
    with blocked_signals():
        return deferred("drivetrain_elastic._commands._master:serve")(arguments)
