"""The command `drivetrain-elastic master`: serves a job, or stands ready to."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError, as_wrong_use
from drivetrain_core.processes import end_with_parent
from drivetrain_elastic._client._address import check_host, check_port, is_loopback
from drivetrain_elastic._client._tls import server_context
from drivetrain_elastic._client._token import make_token, read_token, write_token
from drivetrain_elastic._commands._blocked_signals import is_ended
from drivetrain_elastic._master._master import Master
from drivetrain_elastic._observability._metrics_server import import_prometheus
from drivetrain_elastic.journal import JournalError
from drivetrain_elastic.journal._open import check_journal, lease_of

if TYPE_CHECKING:
    import argparse

    from drivetrain_elastic.journal import RedisLease


def serve(arguments: argparse.Namespace) -> int:
    """Serves a job, or stands ready to, until a blocked signal ends it.

    Args:
        arguments: Of the command.
    """
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
    tls = server_context(arguments.tls_certificate, arguments.tls_key)
    # What a master that stands ready lacks should not show only when it takes over.
    _check_address(arguments.address, has_tls=tls is not None)
    if arguments.metrics is not None:
        import_prometheus()
        check_host(arguments.metrics)
    with as_wrong_use(arguments):
        lease = lease_of(journal, token=token)
    if lease is not None and not _stand_ready(lease, arguments):
        return 0
    # Its streams are many objects, and nothing of them is garbage: to look through them all
    # every few seconds keeps a thousand agents waiting.
    gc.set_threshold(5_000, 10, 100)
    with Master(
        journal,
        address=arguments.address,
        token=token,
        tls=tls,
        patience_s=arguments.patience_s,
        lease=lease,
        metrics=arguments.metrics,
    ) as master:
        # Whoever has started it waits for this line.
        print(f"master {master.incarnation} at {master.address}", flush=True)
        if master.metrics is not None:
            print(f"metrics at http://{master.metrics}/metrics", flush=True)
        while not master.wait(0.0):
            if is_ended(0.5):
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
    if not has_tls and not is_loopback(address):
        message = (
            f"{address} can be reached from other machines, so the master needs a "
            "certificate there: --tls-certificate FILE and --tls-key FILE"
        )
        raise UsageError(message)
    check_host(address)


def _stand_ready(lease: RedisLease, arguments: argparse.Namespace) -> bool:
    """Waits until no other master serves; returns False if a signal ends that.

    Raises:
        ProgramError: This one could not serve in its place.
        JournalError: The lease cannot be had.
    """
    told = ""
    while not lease.acquire(0.5):
        # One that begins to serve has not said yet where.
        if not lease.is_away and lease.served_at and lease.served_at != told:
            if arguments.address != lease.served_at:
                check_port(arguments.address)
            told = lease.served_at
            print(f"ready; the master serves at {told}", flush=True)
        if is_ended(0):
            return False
    return True
