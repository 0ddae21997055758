"""The commands that show a job: status, nodes, shards, ledger and events."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from drivetrain_core.commands import deferred
from drivetrain_elastic._commands._requests import client_of
from drivetrain_elastic._observability._sections import TORCHRUN_AGENT
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# It draws with rich, of which a quick command has no need.
_show_live = deferred("drivetrain_elastic._commands._live_table:run")


def _get_status(arguments: argparse.Namespace) -> Any:
    with client_of(arguments) as client:
        return client.call("GetStatus", pb.StatusRequest())


def status(arguments: argparse.Namespace) -> int:
    """Shows how the job stands."""
    if arguments.watch:
        return _show_live(arguments)
    status = _get_status(arguments)
    if arguments.json:
        _print_json(status)
        return 0
    print(f"master {status.incarnation}, up {status.up_s:.0f} s")
    if status.epoch:
        print(f"world {status.epoch} of {_size_of(status)}: {status.reason}")
    if status.time.total_s:
        print(_time_line(status.time))
    if status.ended:
        print(f"ended with {status.exit_code}: {status.ended}")
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


def nodes(arguments: argparse.Namespace) -> int:
    """Shows who trains where, how fast, and what is wrong there."""
    if arguments.watch:
        return _show_live(arguments)
    status = _get_status(arguments)
    if arguments.json:
        for node in status.nodes:
            _print_json(node)
    else:
        _print_nodes(status.nodes)
        _print_excluded(status.excluded)
    return 0


def shards(arguments: argparse.Namespace) -> int:
    """Shows how far each dataset is."""
    status = _get_status(arguments)
    if arguments.json:
        for dataset in status.datasets:
            _print_json(dataset)
    else:
        _print_datasets(status.datasets)
    return 0


def ledger(arguments: argparse.Namespace) -> int:
    """Shows where the time of the job has gone, with each cause."""
    time = _get_status(arguments).time
    if arguments.json:
        _print_json(time)
        return 0
    print(_time_line(time))
    for row in time.lost:
        times = "once" if row.times == 1 else f"{row.times} times"
        print(
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


def events(arguments: argparse.Namespace) -> int:
    """Shows what has happened."""
    with client_of(arguments) as client:
        request = pb.EventsRequest(follow=arguments.follow)
        for event in client.stream("WatchEvents", request):
            if arguments.json:
                _print_json(event)
                continue
            at = dt.datetime.fromtimestamp(event.at_s).astimezone()
            what = f"{event.kind} {event.subject}: {event.reason}"
            print(f"{at:%Y-%m-%d %H:%M:%S} {what}", flush=True)
    return 0


def _print_nodes(nodes: Sequence[Any]) -> None:
    for node in nodes:
        where = f"process {node.pid} on {node.host}"
        print(f"node {node.node}: {where}, heard of {node.silent_s:.1f} s ago")
        for alert in node.alerts:
            print(f"  alert, {alert.kind}: {alert.reason}")
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
            print(f"  {one.name}: {', '.join(parts)}{slow}")


def _print_excluded(excluded: Sequence[Any]) -> None:
    for one in excluded:
        at = dt.datetime.fromtimestamp(one.at_s).astimezone()
        print(
            f"excluded {at:%Y-%m-%d %H:%M:%S}: {one.machine} (node {one.node}): "
            f"{one.reason}"
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
    fields = MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    print(json.dumps(fields), flush=True)
