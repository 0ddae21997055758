"""The command `drivetrain-elastic check`: is this node fit to train, alone and with others."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from drivetrain_core import ProgramError
from drivetrain_core.commands import (
    UsageError,
    as_wrong_use,
    integer,
    number,
    reason_of,
)
from drivetrain_elastic._options import addresses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.distributed_c10d import Store

    from drivetrain_health.checks import CheckConfig, NodeReport, Together

__all__ = ["populate_check_parser"]

# How long a master may be away.
_PATIENCE_S = 10.0
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
        type=_meeting,
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
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    import socket

    from drivetrain_health.checks import check_node

    config = _config(arguments)
    if arguments.nodes > 1:
        _require_meeting(arguments)
    node = arguments.node or socket.gethostname()
    if arguments.nodes == 1:
        report = check_node(config, node=node)
        if arguments.json:
            _show_json(_of_report(report))
        else:
            _show_report(report, config.num_threads)
        return 0 if report.is_good and report.is_checked else 1
    from drivetrain_health.checks import Bench, check_together

    with Bench(config) as bench:
        # Before there is a connection to a master, with threads of its own.
        bench.start()
        with _store(arguments, node) as store:
            together = check_together(store, node, arguments.nodes, config, bench)
    if arguments.json:
        _show_json(_of_nodes(together))
    else:
        _show_nodes(together, config.num_threads)
    return 0 if together.verdict.is_good else 1


def _config(arguments: argparse.Namespace) -> CheckConfig:
    from drivetrain_health.checks import CheckConfig

    names = [name.replace("-", "_") for name, *_ in _NUMBERS] + ["folder", "address"]
    given = {name: getattr(arguments, name) for name in names}
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.checks is not None:
        options["checks"] = tuple(one.strip() for one in arguments.checks.split(","))
    if arguments.switches is not None:
        options["switches"] = _switches(arguments.switches)
    with as_wrong_use(arguments):
        return CheckConfig(**options)


def _switches(path: str) -> dict[str, str]:
    from pathlib import Path

    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        message = f"--switches {path} cannot be read: {reason_of(error)}"
        raise ProgramError(message) from error
    if not isinstance(table, dict) or not all(
        isinstance(s, str) for s in table.values()
    ):
        message = (
            f"{path} must hold one table, from names of nodes to names of switches"
        )
        raise ProgramError(message)
    return table


def _require_meeting(arguments: argparse.Namespace) -> None:
    """Refuses a call that does not say where the nodes meet."""
    if bool(arguments.rdzv_endpoint) == bool(arguments.init_method):
        message = (
            f"{arguments.nodes} nodes meet at a master, --rdzv-endpoint HOST:PORT, or by "
            "--init-method file:///PATH or tcp://HOST:PORT: give one of them"
        )
        raise UsageError(message)


def _meeting(text: str) -> str:
    """Returns the URL of a meeting without a master."""
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


@contextlib.contextmanager
def _store(arguments: argparse.Namespace, node: str) -> Iterator[Store]:
    """Yields where the nodes meet."""
    from torch.distributed.distributed_c10d import PrefixStore

    meet = _at_master if arguments.rdzv_endpoint else _by_url
    # A store of Python's is only as long there as somebody here has it.
    with meet(arguments, node) as store:
        yield PrefixStore(f"check {arguments.id}", store)


@contextlib.contextmanager
def _at_master(arguments: argparse.Namespace, node: str) -> Iterator[Store]:
    from drivetrain_elastic._client import MasterClient, address_and_token
    from drivetrain_elastic._secret import read_token
    from drivetrain_elastic._store import MasterStore

    del node  # the master does not mind who asks
    token = read_token(arguments.token_file) if arguments.token_file else None
    with as_wrong_use(arguments):
        where = address_and_token(arguments.rdzv_endpoint, token)
    with MasterClient(*where, patience_s=_PATIENCE_S) as client:
        yield MasterStore(client)


@contextlib.contextmanager
def _by_url(arguments: argparse.Namespace, node: str) -> Iterator[Store]:
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from drivetrain_health.checks import tcp_meeting

    url = urlsplit(arguments.init_method)
    if url.scheme == "file":
        yield FileStore(url.path, arguments.nodes)
        return
    host, port = url.hostname, url.port
    assert host
    assert port
    with tcp_meeting(host, port, num_nodes=arguments.nodes, node=node) as store:
        yield store


def _of_report(report: NodeReport) -> dict[str, Any]:
    found = {
        **report._asdict(),
        "is_good": report.is_good,
        "is_checked": report.is_checked,
    }
    del found["received"]
    return found


def _of_nodes(together: Together) -> dict[str, Any]:
    verdict = together.verdict
    return {
        "is_good": verdict.is_good,
        "num_rounds": verdict.num_rounds,
        "nodes": {node: o._asdict() for node, o in verdict.opinions.items()},
        "medians": verdict.medians,
        "rates": _best(together),
        "notes": list(verdict.notes),
        "absent": list(verdict.absent),
        "this": _of_report(together.report),
    }


def _best(together: Together) -> dict[str, dict[str, float]]:
    """Returns each node's best rate, by the measure's name."""
    found: dict[str, dict[str, float]] = {}
    for result in together.results:
        for name, rate in result.measures.items():
            rates = found.setdefault(name, {})
            rates[result.node] = max(rate, rates.get(result.node, rate))
    return found


def _show_report(report: NodeReport, num_threads: int) -> None:
    rows = [("measure", report.node)]
    rows += [(name, f"{rate:.4g}") for name, rate in report.measures.items()]
    _show_table(rows)
    _show_threads(report, num_threads)
    for build, digest in report.digests.items():
        _say(f"bits {digest}: {build}")
    _show_faults(report)
    if not report.is_checked:
        _say("nothing was checked")
    else:
        _say(f"{report.node} {'has passed' if report.is_good else 'has FAILED'}")


def _show_nodes(together: Together, num_threads: int) -> None:
    report, verdict = together.report, together.verdict
    rows = [("measure", report.node, "median", "lowest", "on")]
    for name, rates in _best(together).items():
        lowest = min(rates, key=lambda node: rates[node])
        mine = f"{rates[report.node]:.4g}" if report.node in rates else "-"
        median = verdict.medians.get(name)
        shown = "-" if median is None else f"{median:.4g}"
        rows.append((name, mine, shown, f"{rates[lowest]:.4g}", lowest))
    _show_table(rows)
    _show_threads(report, num_threads)
    _show_faults(report)
    for note in verdict.notes:
        _say(f"note: {note}")
    passed = [n for n, o in verdict.opinions.items() if o.outcome == "passed"]
    for node, opinion in verdict.opinions.items():
        if opinion.reason != "passed":
            _say(f"{node}: {opinion.outcome.upper()}: {opinion.reason}")
    _say(
        f"{len(passed)} of {len(verdict.opinions)} nodes have passed, in "
        f"{verdict.num_rounds} {'round' if verdict.num_rounds == 1 else 'rounds'}"
    )


def _show_faults(report: NodeReport) -> None:
    for name, why in report.failures.items():
        _say(f"{report.node} failed in {name}: {why}")
    for why in (report.network_failure, report.wrong_bits):
        if why:
            _say(f"{report.node} failed: {why}")
    for name, why in report.skipped.items():
        _say(f"skipped {name}: {why}")
    for name, why in report.not_made.items():
        _say(f"not made {name}: {why}")


def _show_threads(report: NodeReport, num_threads: int) -> None:
    if "compute_gflops" in report.measures:
        _say(f"threads {num_threads}")


def _show_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [
            text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)
        ]
        _say("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def _show_json(found: dict[str, Any]) -> None:
    _say(json.dumps(found))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
