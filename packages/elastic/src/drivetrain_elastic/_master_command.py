"""The command `drivetrain-elastic master`: serves a job, or stands ready to."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError, as_wrong_use, number
from drivetrain_elastic._options import address

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from drivetrain_elastic.journal import RedisLease

__all__ = ["populate_master_parser"]


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

    from drivetrain_core.processes import end_with_parent
    from drivetrain_elastic import Master
    from drivetrain_elastic._address import check_host
    from drivetrain_elastic._metrics import import_prometheus
    from drivetrain_elastic._secret import make_token, read_token, write_token
    from drivetrain_elastic._tls import server_credentials
    from drivetrain_elastic.journal import JournalError
    from drivetrain_elastic.journal._open import check_journal, lease_of

    if arguments.with_parent:
        end_with_parent()
    journal = arguments.journal or os.environ.get("DRIVETRAIN_ELASTIC_JOURNAL")
    if not journal:
        message = (
            "the master needs a journal: --journal FILE, or DRIVETRAIN_ELASTIC_JOURNAL"
        )
        raise UsageError(message)
    check_journal(journal)
    if not Path(arguments.token_file).exists():
        write_token(arguments.token_file, make_token())
    token = read_token(arguments.token_file)
    if (arguments.tls_certificate is None) != (arguments.tls_key is None):
        message = "--tls-certificate FILE and --tls-key FILE go together"
        raise UsageError(message)
    tls = server_credentials(arguments.tls_certificate, arguments.tls_key)
    # What a master that stands ready lacks should not show only when it takes over.
    _check_address(arguments.address, has_tls=tls is not None)
    if arguments.metrics is not None:
        import_prometheus()
        check_host(arguments.metrics)
    with as_wrong_use(arguments):
        lease = lease_of(journal, token=token)
    if lease is not None and not _stand_ready(lease, arguments, ending):
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
        _say(f"master {master.incarnation} at {master.address}")
        if master.metrics is not None:
            _say(f"metrics at http://{master.metrics}/metrics")
        while not master.wait(0.0):
            if _is_ended(ending, 0.5):
                return 0
    # Whoever started it may start it again, to stand ready for its next turn.
    message = "the master has given way to another one, or lost its journal"
    raise JournalError(message)


def _check_address(address: str, *, has_tls: bool) -> None:
    """Finds out whether a master can serve there, but for the port.

    Raises:
        UsageError: It needs a certificate there.
        ProgramError: It cannot.
    """
    from drivetrain_elastic._address import check_host, is_loopback

    if not has_tls and not is_loopback(address):
        message = (
            f"{address} can be reached from other machines, so the master needs a "
            "certificate there: --tls-certificate FILE and --tls-key FILE"
        )
        raise UsageError(message)
    check_host(address)


def _stand_ready(
    lease: RedisLease, arguments: argparse.Namespace, ending: set[signal.Signals]
) -> bool:
    """Waits until no other master serves; returns False if a signal ends that.

    Raises:
        ProgramError: This one could not serve in its place.
        JournalError: The lease cannot be had.
    """
    from drivetrain_elastic._address import check_port

    told = ""
    while not lease.acquire(0.5):
        # One that begins to serve has not said yet where.
        if not lease.is_away and lease.served_at and lease.served_at != told:
            if arguments.address != lease.served_at:
                check_port(arguments.address)
            told = lease.served_at
            _say(f"ready; the master serves at {told}")
        if _is_ended(ending, 0):
            return False
    return True


def _is_ended(ending: set[signal.Signals], timeout_s: float) -> bool:
    """Returns whether one of some blocked signals has come, or comes in a time."""
    found = signal.sigtimedwait(ending, timeout_s)
    # A process that was paused meanwhile gets a result that says nothing.
    return found is not None and found.si_signo in ending


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    # Whoever has started it waits for this line.
    sys.stdout.flush()
