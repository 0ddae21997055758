"""The command `drivetrain-elastic check` of several nodes, which meet at a store."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from drivetrain_core.commands import UsageError
from drivetrain_elastic._commands._check_node import (
    config_of,
    plain_report,
    print_columns,
    print_faults,
    print_threads,
)
from drivetrain_health.checks import check_together, tcp_rendezvous_store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from torch.distributed.distributed_c10d import Store

    from drivetrain_health.checks import Together


def run(arguments: argparse.Namespace) -> int:
    """Checks this node and the others, and returns the exit status."""
    config = config_of(arguments)
    _require_rendezvous(arguments)
    node = arguments.node or socket.gethostname()
    with _store(arguments, node) as store:
        # A store of Python's is only as long there as somebody here has it.
        room = PrefixStore(f"check {arguments.id}", store)
        together = check_together(room, node, arguments.nodes, config)
    if arguments.json:
        print(json.dumps(_plain(together)), flush=True)
    else:
        _print_nodes(together, config.num_threads)
    return 0 if together.verdict.is_good else 1


def _require_rendezvous(arguments: argparse.Namespace) -> None:
    """Refuses a call that does not say where the nodes meet."""
    if bool(arguments.rdzv_endpoint) == bool(arguments.init_method):
        message = (
            f"{arguments.nodes} nodes meet at a master, --rdzv-endpoint HOST:PORT, or by "
            "--init-method file:///PATH or tcp://HOST:PORT: give one of them"
        )
        raise UsageError(message)


@contextlib.contextmanager
def _store(arguments: argparse.Namespace, node: str) -> Iterator[Store]:
    """Yields where the nodes meet."""
    if arguments.rdzv_endpoint:
        from drivetrain_elastic._commands._store_at_master import store_at_master

        with store_at_master(arguments) as store:
            yield store
        return
    url = urlsplit(arguments.init_method)
    if url.scheme == "file":
        yield FileStore(url.path, arguments.nodes)
        return
    host, port = url.hostname, url.port
    assert host
    assert port
    with tcp_rendezvous_store(
        host, port, num_nodes=arguments.nodes, node=node
    ) as store:
        yield store


def _plain(together: Together) -> dict[str, Any]:
    verdict = together.verdict
    return {
        "is_good": verdict.is_good,
        "num_rounds": verdict.num_rounds,
        "nodes": {node: o._asdict() for node, o in verdict.opinions.items()},
        "medians": verdict.medians,
        "rates": _best(together),
        "notes": list(verdict.notes),
        "absent": list(verdict.absent),
        "bad_switches": dict(verdict.bad_switches),
        "this": plain_report(together.report),
    }


def _best(together: Together) -> dict[str, dict[str, float]]:
    """Returns each node's best rate, by the measure's name."""
    found: dict[str, dict[str, float]] = {}
    for result in together.results:
        for name, rate in result.measures.items():
            rates = found.setdefault(name, {})
            rates[result.node] = max(rate, rates.get(result.node, rate))
    return found


def _print_nodes(together: Together, num_threads: int) -> None:
    report, verdict = together.report, together.verdict
    rows = [("measure", report.node, "median", "lowest", "on")]
    for name, rates in _best(together).items():
        lowest = min(rates, key=lambda node: rates[node])
        mine = f"{rates[report.node]:.4g}" if report.node in rates else "-"
        median = verdict.medians.get(name)
        shown = "-" if median is None else f"{median:.4g}"
        rows.append((name, mine, shown, f"{rates[lowest]:.4g}", lowest))
    print_columns(rows)
    print_threads(report, num_threads)
    print_faults(report)
    for note in verdict.notes:
        print(f"note: {note}")
    passed = [n for n, o in verdict.opinions.items() if o.outcome == "passed"]
    for node, opinion in verdict.opinions.items():
        if opinion.reason != "passed":
            print(f"{node}: {opinion.outcome.upper()}: {opinion.reason}")
    for switch, why in verdict.bad_switches.items():
        print(f"switch {switch}: BAD: {why}")
    print(
        f"{len(passed)} of {len(verdict.opinions)} nodes have passed, in "
        f"{verdict.num_rounds} {'round' if verdict.num_rounds == 1 else 'rounds'}"
    )
