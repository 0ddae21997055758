"""Options of `drivetrain fabric simulate`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import deferred, integer, number

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


class _Noted(argparse.Action):
    """Stores a value, and that the option was given: its default may be the same."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  (argparse passes it)
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002  (likewise)
    ) -> None:
        setattr(namespace, self.dest, values if self.nargs != 0 else True)
        namespace.given |= {self.option_strings[0]}


_DEFAULT = "(default: %(default)s)"
OF_FABRIC: dict[str, dict[str, Any]] = {
    "--gpus": {"type": integer(1), "default": 12288, "help": _DEFAULT},
    "--gpus-per-node": {"type": integer(1), "default": 8, "help": _DEFAULT},
    "--nics": {
        "type": integer(1),
        "default": 8,
        "help": f"network cards of a node {_DEFAULT}",
    },
    "--nic-gbps": {"type": number(above=0), "default": 200, "help": _DEFAULT},
    "--no-rails": {
        "action": _Noted,
        "nargs": 0,
        "default": False,
        "help": "all cards of a node on one leaf",
    },
    "--tiers": {"type": int, "choices": (2, 3), "default": 3, "help": _DEFAULT},
    "--leaf-downlinks": {"type": integer(1), "default": 64, "help": _DEFAULT},
    "--leaf-uplinks": {"type": integer(1), "default": 32, "help": _DEFAULT},
    "--spine-downlinks": {
        "type": integer(1),
        "help": "(default: 32, with two tiers 64)",
    },
    "--spine-uplinks": {"type": integer(1), "default": 32, "help": _DEFAULT},
    "--core-downlinks": {"type": integer(1), "default": 64, "help": _DEFAULT},
    "--uplink-gbps": {"type": number(above=0), "default": 400, "help": _DEFAULT},
    "--latency-us": {
        "type": number(0),
        "default": 5,
        "help": f"node to node {_DEFAULT}",
    },
}
"""What describes the fabric, for which a cluster file stands as well."""


def populate_simulate(commands: Any) -> None:
    """Adds the command `simulate`, which sets `run` as other commands do.

    Args:
        commands: The sub-commands of `drivetrain fabric`.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="simulate a job on a data-centre network: placement, ECMP, congestion",
        allow_abbrev=False,
    )
    parser.register("action", None, _Noted)
    _add_fabric(parser)
    _add_traffic(parser)
    parser.add_argument(
        "--placements",
        metavar="LIST",
        default="random,packed,advised",
        help="of given, random, packed, advised (the default: %(default)s)",
    )
    parser.add_argument(
        "--queue-pairs",
        type=_counts,
        metavar="LIST",
        default="1,2,4,8",
        help="of a connection (the default: %(default)s)",
    )
    parser.add_argument(
        "--hash",
        default="crc",
        help="of switches: crc, unseeded, or random (the default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=integer(0), default=0, help="of hashes and order"
    )
    parser.add_argument(
        "--seeds",
        type=integer(1),
        default=1,
        help="how many are averaged over (default: 1)",
    )
    parser.add_argument(
        "--advice", metavar="FILE", help="write the advised order of nodes, one a line"
    )
    parser.add_argument("--svg", metavar="FILE", help="write a picture as well")
    parser.add_argument("--json", action="store_true", help="print JSON")
    # Other commands need no numpy.
    run = deferred("drivetrain_fabric.network._command:run_fabric")
    parser.set_defaults(run=run, given=frozenset())


def _add_fabric(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the fabric").add_argument
    add(
        "--spec",
        metavar="FILE",
        help="a cluster file, instead of all below but --failed",
    )
    for name, options in OF_FABRIC.items():
        add(name, **options)
    add(
        "--failed",
        type=integer(0),
        default=0,
        help="ports up of leaves that fail, by chance",
    )


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the traffic").add_argument
    add(
        "--traffic",
        default="all-reduce",
        help="of all ranks: all-reduce, tree, all-gather, reduce-scatter, all-to-all, "
        "or a step of a job: job (the default: %(default)s)",
    )
    add(
        "--size",
        type=_bytes(number(above=0)),
        default="1G",
        help="bytes of a rank's vector (default: %(default)s)",
    )
    add("--tensor", type=integer(1), default=8, help="of a job (default: %(default)s)")
    add("--pipeline", type=integer(1), default=8, help="stages of a job (default: 8)")
    add(
        "--activations",
        type=_bytes(number(0)),
        default="256M",
        help="bytes that a rank sends on in a step (default: %(default)s)",
    )
    add(
        "--incast",
        type=integer(1),
        metavar="SENDERS",
        help="instead: queues, pauses and a victim when so many send to one",
    )


def _counts(text: str) -> list[int]:
    """Returns whole numbers of at least 1 out of a list such as `1,2,4`."""
    return [integer(1)(part) for part in text.split(",")]


def _bytes(kind: Callable[[str], float]) -> Callable[[str], float]:
    """Returns the `type` of an option that takes `256M` or `1.5G`."""

    def parse(text: str) -> float:
        unit = _UNITS.get(text[-1:].lower())
        return kind(text) if unit is None else kind(text[:-1]) * unit

    return parse
