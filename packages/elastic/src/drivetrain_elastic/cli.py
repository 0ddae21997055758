"""The command `drivetrain-elastic`, also `drivetrain elastic`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_core.commands import run_command
from drivetrain_elastic._demo_command import populate_demo_parser
from drivetrain_elastic._run_command import populate_run_parser
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
        "--with-parent",
        action="store_true",
        help="end when the process that started this one does",
    )
    master.set_defaults(run=_serve)

    for name, help_text, show in (
        ("status", "how the job stands", _status),
        ("nodes", "who trains where", _nodes),
        ("shards", "how far each dataset is", _shards),
        ("events", "what has happened", _events),
    ):
        one = commands.add_parser(name, help=help_text, allow_abbrev=False)
        one.add_argument(
            "--address",
            metavar="HOST:PORT",
            help="of the master, or of all candidates with commas between them; by "
            "default DRIVETRAIN_ELASTIC_MASTER",
        )
        one.add_argument(
            "--token-file",
            metavar="FILE",
            help="the job's token; by default that in DRIVETRAIN_ELASTIC_TOKEN",
        )
        one.add_argument(
            "--json", action="store_true", help="one JSON object a line, for programs"
        )
        one.set_defaults(run=show)
    one.add_argument("--follow", action="store_true", help="and what is to come")

    for name, help_text, ask in (
        ("leave", "let a node go at the end of a step", _leave),
        ("stop", "end the job", _stop),
    ):
        one = commands.add_parser(name, help=help_text, allow_abbrev=False)
        one.add_argument("--address", metavar="HOST:PORT", help="of the master")
        one.add_argument("--token-file", metavar="FILE")
        one.add_argument("--reason", default="somebody asked for it", metavar="TEXT")
        one.set_defaults(run=ask)
        if ask is _leave:
            one.add_argument("node", metavar="NODE")
            one.add_argument(
                "--within-s",
                type=float,
                default=30.0,
                metavar="SECONDS",
                help="after which its workers are ended",
            )
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
    ) as master:
        print(f"master {master.incarnation} at {master.address}", flush=True)
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


def _client(arguments: argparse.Namespace) -> Any:
    from drivetrain_elastic._client import MasterClient, address_and_token
    from drivetrain_elastic._secret import read_token

    token = read_token(arguments.token_file) if arguments.token_file else None
    return MasterClient(*address_and_token(arguments.address, token), patience_s=5.0)


def _get_status(arguments: argparse.Namespace) -> Any:
    from drivetrain_elastic.protocol import _messages as pb

    with _client(arguments) as client:
        return client.call("GetStatus", pb.StatusRequest())


def _status(arguments: argparse.Namespace) -> int:
    status = _get_status(arguments)
    if arguments.json:
        _print_json(status)
        return 0
    print(f"master {status.incarnation}, up {status.up_s:.0f} s")
    if status.epoch:
        print(f"world {status.epoch} of {status.world_size} workers: {status.reason}")
    if status.ended:
        print(f"ended with {status.exit_code}: {status.ended}")
    _print_nodes(status.nodes)
    _print_datasets(status.datasets)
    return 0


def _nodes(arguments: argparse.Namespace) -> int:
    status = _get_status(arguments)
    if arguments.json:
        for node in status.nodes:
            _print_json(node)
    else:
        _print_nodes(status.nodes)
    return 0


def _leave(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import _messages as pb

    request = pb.LeaveRequest(
        node=arguments.node, within_s=arguments.within_s, reason=arguments.reason
    )
    with _client(arguments) as client:
        client.call("Leave", request)
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import _messages as pb

    with _client(arguments) as client:
        client.call("Stop", pb.StopRequest(reason=arguments.reason))
    return 0


def _shards(arguments: argparse.Namespace) -> int:
    status = _get_status(arguments)
    if arguments.json:
        for dataset in status.datasets:
            _print_json(dataset)
    else:
        _print_datasets(status.datasets)
    return 0


def _events(arguments: argparse.Namespace) -> int:
    import datetime as dt

    from drivetrain_elastic.protocol import _messages as pb

    with _client(arguments) as client:
        request = pb.EventsRequest(follow=arguments.follow)
        for event in client.stream("WatchEvents", request):
            if arguments.json:
                _print_json(event)
                continue
            at = dt.datetime.fromtimestamp(event.at_s).astimezone()
            print(
                f"{at:%Y-%m-%d %H:%M:%S} {event.kind} {event.subject}: {event.reason}"
            )
            sys.stdout.flush()
    return 0


def _print_nodes(nodes: Sequence[Any]) -> None:
    for node in nodes:
        where = f"process {node.pid} on {node.host}"
        print(f"node {node.node}: {where}, heard of {node.silent_s:.1f} s ago")
        for one in node.workers:
            rank = f"rank {one.rank}" if one.rank >= 0 else "no rank"
            print(
                f"  {one.name}: {one.status}, {rank}, process {one.pid}, step {one.step} "
                f"in {one.step_s:.3f} s, {one.phase} for {one.phase_s:.1f} s"
            )


def _print_datasets(datasets: Sequence[Any]) -> None:
    for one in datasets:
        spec = one.dataset
        epochs = f" x {spec.num_epochs} epochs" if spec.num_epochs != 1 else ""
        state = "finished" if one.finished else f"{one.num_leased} shards leased"
        print(
            f"{spec.name}: {one.num_samples_done} of {spec.num_samples}{epochs} samples "
            f"done, {state}, {one.num_waiting} came back, {len(one.dead)} put aside"
        )
        for shard in one.dead:
            print(
                f"  put aside: epoch {shard.epoch}, places {shard.start} to {shard.end}: "
                f"{shard.reason}"
            )


def _print_json(message: Any) -> None:
    from google.protobuf.json_format import MessageToDict

    fields = MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
