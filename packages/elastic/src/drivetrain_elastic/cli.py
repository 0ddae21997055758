"""The command `drivetrain-elastic`, also `drivetrain elastic`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_core.commands import run_command
from drivetrain_elastic._check_command import populate_check_parser
from drivetrain_elastic._cost_command import populate_cost_parser
from drivetrain_elastic._demo_command import populate_demo_parser
from drivetrain_elastic._diagnose_command import populate_diagnose_parser
from drivetrain_elastic._goodput_command import populate_goodput_parser
from drivetrain_elastic._operator_command import populate_operator_parser
from drivetrain_elastic._run_command import populate_run_parser
from drivetrain_elastic._simulate_spot_command import populate_simulate_spot_parser
from drivetrain_elastic._status_command import client_of, populate_status_parsers
from drivetrain_elastic._supervise_command import populate_supervise_parser
from drivetrain_elastic.faults import cli as faults_cli

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_elastic.journal import Lease

__all__ = ["main", "populate_parser"]


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="train on this node, whatever dies", allow_abbrev=False
    )
    populate_run_parser(run)

    demo = commands.add_parser(
        "demo",
        help="train, kill workers, and see training go on",
        allow_abbrev=False,
    )
    populate_demo_parser(demo)

    master = commands.add_parser(
        "master", help="serve a job until a signal ends it", allow_abbrev=False
    )
    master.add_argument(
        "--journal",
        metavar="FILE|URL",
        help="a file of SQLite, or redis://HOST:PORT/NUMBER?job=NAME, with which several "
        "masters stand ready and one serves; by default DRIVETRAIN_ELASTIC_JOURNAL, where "
        "other users do not see a password",
    )
    master.add_argument(
        "--address",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to listen; port 0 takes one that is free (default: %(default)s)",
    )
    master.add_argument(
        "--token-file",
        metavar="FILE",
        help="the job's token, readable by its owner only; made when it is missing; all "
        "masters of a job need the same",
        required=True,
    )
    master.add_argument(
        "--patience-s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long a worker may hold shards without a word",
    )
    master.add_argument(
        "--tls-certificate",
        metavar="FILE",
        help="the master's certificate and those above it, PEM; needed to listen for "
        "other machines",
    )
    master.add_argument("--tls-key", metavar="FILE", help="of the certificate, PEM")
    master.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve the state of the job there, for Prometheus; whoever reaches it reads it",
    )
    master.add_argument(
        "--with-parent",
        action="store_true",
        help="end when the process that started this one does",
    )
    master.set_defaults(run=_serve)

    populate_status_parsers(commands)
    for name, help_text, ask in (
        ("leave", "let a node go at the end of a step", _leave),
        ("stop", "end the job", _stop),
        ("readmit", "let a machine that was excluded take part again", _readmit),
    ):
        one = commands.add_parser(name, help=help_text, allow_abbrev=False)
        one.add_argument("--address", metavar="HOST:PORT", help="of the master")
        one.add_argument("--token-file", metavar="FILE")
        one.set_defaults(run=ask)
        if ask is _readmit:
            one.add_argument("machine", metavar="MACHINE")
            continue
        one.add_argument("--reason", default="somebody asked for it", metavar="TEXT")
        if ask is _leave:
            one.add_argument("node", metavar="NODE")
            one.add_argument(
                "--within-s",
                type=float,
                default=30.0,
                metavar="SECONDS",
                help="after which its workers are ended",
            )
    for name, help_text, populate in (
        ("check", "find faulty nodes before they train", populate_check_parser),
        ("diagnose", "say why something has failed", populate_diagnose_parser),
        ("goodput", "simulate what failures cost", populate_goodput_parser),
        ("supervise", "train on nodes that may go", populate_supervise_parser),
        ("operator", "look after the jobs of a cluster", populate_operator_parser),
        ("cost", "say what a run has cost", populate_cost_parser),
        (
            "simulate-spot",
            "simulate what strategies on spot nodes cost",
            populate_simulate_spot_parser,
        ),
    ):
        populate(commands.add_parser(name, help=help_text, allow_abbrev=False))
    faults = commands.add_parser(
        "faults", help="make faults, to see what survives them", allow_abbrev=False
    )
    faults_cli.populate_parser(faults)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["status", "--token-file", "none"])
        1
    """
    parser = argparse.ArgumentParser(
        prog="drivetrain-elastic",
        description="Training that outlives its machines.",
        allow_abbrev=False,
    )
    populate_parser(parser)
    args = parser.parse_args(argv)
    return run_command("drivetrain-elastic", args.run, args)


@contextlib.contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Has signals wait for whoever asks for them, for this thread and those it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        # One that came too late to be asked for has nothing left to end.
        while signals - before and _is_ended(signals - before, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(arguments: argparse.Namespace) -> int:
    ending = {signal.SIGTERM, signal.SIGINT}
    # Before any library starts a thread, so that no thread takes the signal: one that
    # comes while the master starts ends it as well.
    with _blocked(ending):
        return _serve_until(arguments, ending)


def _serve_until(arguments: argparse.Namespace, ending: set[signal.Signals]) -> int:
    from pathlib import Path

    from drivetrain_elastic import Master
    from drivetrain_elastic._agent._parent import end_with_parent
    from drivetrain_elastic._secret import make_token, read_token, write_token
    from drivetrain_elastic._tls import server_credentials
    from drivetrain_elastic.journal import JournalError
    from drivetrain_elastic.journal._open import lease_of

    if arguments.with_parent:
        end_with_parent()
    journal = arguments.journal or os.environ.get("DRIVETRAIN_ELASTIC_JOURNAL")
    if not journal:
        message = (
            "the master needs a journal: --journal FILE, or DRIVETRAIN_ELASTIC_JOURNAL"
        )
        raise ProgramError(message)
    if not Path(arguments.token_file).exists():
        write_token(arguments.token_file, make_token())
    tls = server_credentials(arguments.tls_certificate, arguments.tls_key)
    token = read_token(arguments.token_file)
    lease = lease_of(journal)
    if lease is not None and not _stand_ready(lease, ending):
        return 0
    with Master(
        journal,
        address=arguments.address,
        token=token,
        tls=tls,
        patience_s=arguments.patience_s,
        lease=lease,
        metrics=arguments.metrics,
    ) as master:
        print(f"master {master.incarnation} at {master.address}", flush=True)
        if master.metrics is not None:
            print(f"metrics at http://{master.metrics}/metrics", flush=True)
        while not master.wait(0.0):
            if _is_ended(ending, 0.5):
                return 0
    # Whoever started it may start it again, to stand ready for its next turn.
    message = "the master has given way to another one, or lost its journal"
    raise JournalError(message)


def _stand_ready(lease: Lease, ending: set[signal.Signals]) -> bool:
    """Waits until no other master serves; returns False if a signal ends that."""
    told = None
    while not lease.acquire(0.5):
        if lease.served_at != told:
            told = lease.served_at
            print(f"ready; the master serves at {told or 'an address unknown'}")
            sys.stdout.flush()
        if _is_ended(ending, 0):
            return False
    return True


def _is_ended(ending: set[signal.Signals], timeout_s: float) -> bool:
    """Returns whether one of some blocked signals has come, or comes in a time."""
    found = signal.sigtimedwait(ending, timeout_s)
    # A process that was paused meanwhile gets a result that says nothing.
    return found is not None and found.si_signo in ending


def _leave(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import _messages as pb

    request = pb.LeaveRequest(
        node=arguments.node, within_s=arguments.within_s, reason=arguments.reason
    )
    with client_of(arguments) as client:
        client.call("Leave", request)
    return 0


def _readmit(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import _messages as pb

    with client_of(arguments) as client:
        client.call("Readmit", pb.ReadmitRequest(machine=arguments.machine))
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import _messages as pb

    with client_of(arguments) as client:
        client.call("Stop", pb.StopRequest(reason=arguments.reason))
    return 0


if __name__ == "__main__":
    sys.exit(main())
