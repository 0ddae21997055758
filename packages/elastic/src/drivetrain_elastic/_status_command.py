"""The commands that show a job: status, nodes, shards, events and ledger."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import as_wrong_use
from drivetrain_elastic._options import addresses
from drivetrain_elastic._phases import TORCHRUN_AGENT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from drivetrain_elastic._client import MasterClient

__all__ = ["add_master_options", "client_of", "populate_status_parsers"]


def add_master_options(parser: argparse.ArgumentParser) -> None:
    """Adds what `client_of` takes to a parser.

    Args:
        parser: Of a command that asks a master.
    """
    parser.add_argument(
        "--address",
        type=addresses,
        metavar="HOST:PORT",
        help="of the master, or of all candidates with commas between them; by default "
        "DRIVETRAIN_ELASTIC_MASTER",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the job's token; by default that in DRIVETRAIN_ELASTIC_TOKEN",
    )
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="who vouches for a master with a certificate; by default "
        "DRIVETRAIN_ELASTIC_TLS_CA",
    )


def populate_status_parsers(commands: Any) -> None:
    """Adds the commands to those of a parser.

    Args:
        commands: What `add_subparsers` has returned.
    """
    for name, help_text, show in (
        ("status", "how the job stands", _status),
        ("nodes", "who trains where, how fast, and what is wrong there", _nodes),
        ("shards", "how far each dataset is", _shards),
        ("ledger", "where the time of the job has gone, with each cause", _ledger),
        ("events", "what has happened", _events),
    ):
        one = commands.add_parser(name, help=help_text, allow_abbrev=False)
        add_master_options(one)
        one.add_argument(
            "--json", action="store_true", help="one JSON object a line, for programs"
        )
        one.set_defaults(run=show)
        if show is _events:
            one.add_argument(
                "--follow", action="store_true", help="and what is to come"
            )
        elif show in {_status, _nodes}:
            one.add_argument(
                "--watch",
                action="store_true",
                help="show it live, until Ctrl-C",
            )


def client_of(arguments: argparse.Namespace) -> MasterClient:
    """Returns a client of the master that the arguments name."""
    from drivetrain_elastic._address import split_addresses
    from drivetrain_elastic._client import MasterClient, address_and_token
    from drivetrain_elastic._secret import read_token
    from drivetrain_elastic._tls import channel_credentials

    token = read_token(arguments.token_file) if arguments.token_file else None
    with as_wrong_use(arguments):
        address, token = address_and_token(arguments.address, token)
        split_addresses(address)
    tls = channel_credentials(arguments.tls_ca)
    return MasterClient(address, token, patience_s=5.0, tls=tls)


def _get_status(arguments: argparse.Namespace) -> Any:
    from drivetrain_elastic.protocol import messages as pb

    with client_of(arguments) as client:
        return client.call("GetStatus", pb.StatusRequest())


def _status(arguments: argparse.Namespace) -> int:
    if arguments.watch:
        return _watch(arguments)
    status = _get_status(arguments)
    if arguments.json:
        _print_json(status)
        return 0
    _say(f"master {status.incarnation}, up {status.up_s:.0f} s")
    if status.epoch:
        _say(f"world {status.epoch} of {_size_of(status)}: {status.reason}")
    if status.time.total_s:
        _say(_time_line(status.time))
    if status.ended:
        _say(f"ended with {status.exit_code}: {status.ended}")
    _print_nodes(status.nodes)
    _print_excluded(status.excluded)
    _print_datasets(status.datasets)
    return 0


def _size_of(status: Any) -> str:
    """Returns who makes up the world, and how many they are."""
    members = [w for node in status.nodes for w in node.workers if w.rank >= 0]
    if members and all(one.phase == TORCHRUN_AGENT for one in members):
        return f"{status.world_size} agents of torchrun, each with ranks of its own"
    return f"{status.world_size} workers"


def _watch(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic._live_table import show_live

    with client_of(arguments) as client:
        show_live(client)
    return 0


def _nodes(arguments: argparse.Namespace) -> int:
    if arguments.watch:
        return _watch(arguments)
    status = _get_status(arguments)
    if arguments.json:
        for node in status.nodes:
            _print_json(node)
    else:
        _print_nodes(status.nodes)
        _print_excluded(status.excluded)
    return 0


def _shards(arguments: argparse.Namespace) -> int:
    status = _get_status(arguments)
    if arguments.json:
        for dataset in status.datasets:
            _print_json(dataset)
    else:
        _print_datasets(status.datasets)
    return 0


def _ledger(arguments: argparse.Namespace) -> int:
    time = _get_status(arguments).time
    if arguments.json:
        _print_json(time)
        return 0
    _say(_time_line(time))
    for row in time.lost:
        times = "once" if row.times == 1 else f"{row.times} times"
        _say(
            f"{row.seconds:10.1f} s {row.seconds / time.total_s:6.2%}  {row.what}, "
            f"{times}: {row.cause}"
        )
    return 0


def _time_line(time: Any) -> str:
    share = time.effective_s / time.total_s if time.total_s else 0.0
    return (
        f"{time.effective_s:.1f} s of {time.total_s:.1f} s were effective ({share:.2%}), "
        f"in {time.num_steps} steps"
    )


def _events(arguments: argparse.Namespace) -> int:
    from drivetrain_elastic.protocol import messages as pb

    with client_of(arguments) as client:
        request = pb.EventsRequest(follow=arguments.follow)
        for event in client.stream("WatchEvents", request):
            if arguments.json:
                _print_json(event)
                continue
            at = dt.datetime.fromtimestamp(event.at_s).astimezone()
            _say(f"{at:%Y-%m-%d %H:%M:%S} {event.kind} {event.subject}: {event.reason}")
            sys.stdout.flush()
    return 0


def _print_nodes(nodes: Sequence[Any]) -> None:
    for node in nodes:
        where = f"process {node.pid} on {node.host}"
        _say(f"node {node.node}: {where}, heard of {node.silent_s:.1f} s ago")
        for alert in node.alerts:
            _say(f"  alert, {alert.kind}: {alert.reason}")
        for one in node.workers:
            rank = f"rank {one.rank}" if one.rank >= 0 else "no rank"
            slow = ""
            if one.slowness >= 1.1:
                slow = f", {one.slowness:.2f} times as long as others in {one.slow_section}"
            parts = [one.status, rank]
            # What it has not said yet, or does not say, is not made up.
            if one.pid:
                parts.append(f"process {one.pid}")
            if one.step:
                parts.append(f"step {one.step} in {one.step_s:.3f} s")
            if one.phase:
                parts.append(f"{one.phase} for {one.phase_s:.1f} s")
            _say(f"  {one.name}: {', '.join(parts)}{slow}")


def _print_excluded(excluded: Sequence[Any]) -> None:
    for one in excluded:
        at = dt.datetime.fromtimestamp(one.at_s).astimezone()
        _say(
            f"excluded {at:%Y-%m-%d %H:%M:%S}: {one.machine} (node {one.node}): "
            f"{one.reason}"
        )


def _print_datasets(datasets: Sequence[Any]) -> None:
    for one in datasets:
        spec = one.dataset
        epochs = f" x {spec.num_epochs} epochs" if spec.num_epochs != 1 else ""
        state = "finished" if one.finished else f"{one.num_leased} shards leased"
        _say(
            f"{spec.name}: {one.num_samples_done} of {spec.num_samples}{epochs} samples "
            f"done, {state}, {one.num_waiting} came back, {len(one.dead)} put aside"
        )
        for shard in one.dead:
            _say(
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
    _say(json.dumps(fields))
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
