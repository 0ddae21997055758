"""Options of `drivetrain fabric simulate`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import deferred, integer, number

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_RAILS = "all cards of a node on one leaf"
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


def _of(
    default: object, kind: Any = None, text: str = "", **more: Any
) -> dict[str, Any]:
    """Returns an option whose help ends with its default."""
    text = f"{text} (default: %(default)s)".strip()
    return {"type": kind, "default": default, "help": text, **more}


OF_FABRIC: dict[str, dict[str, Any]] = {
    "--gpus": _of(12288, integer(1)),
    "--gpus-per-node": _of(8, integer(1)),
    "--nics": _of(8, integer(1), "network cards of a node"),
    "--nic-gbps": _of(200, number(above=0)),
    "--no-rails": {"action": _Noted, "nargs": 0, "default": False, "help": _NO_RAILS},
    "--tiers": _of(3, int, choices=(2, 3)),
    "--leaf-downlinks": _of(64, integer(1)),
    "--leaf-uplinks": _of(32, integer(1)),
    "--spine-downlinks": {
        "type": integer(1),
        "help": "(default: 32, with two tiers 64)",
    },
    "--spine-uplinks": _of(32, integer(1)),
    "--core-downlinks": _of(64, integer(1)),
    "--uplink-gbps": _of(400, number(above=0)),
    "--latency-us": _of(5, number(0), "node to node"),
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
    add = parser.add_argument
    placements, names = "random,packed,advised", "of given, random, packed, advised"
    add("--placements", metavar="LIST", **_of(placements, None, names))
    add("--queue-pairs", metavar="LIST", **_of("1,2,4,8", _counts, "of a connection"))
    add("--hash", **_of("crc", None, "of switches: crc, unseeded, or random"))
    add("--seed", type=integer(0), default=0, help="of hashes and order")
    add("--seeds", **_of(1, integer(1), "how many are averaged over"))
    add("--advice", metavar="FILE", help="write the advised order of nodes, one a line")
    add("--svg", metavar="FILE", help="write a picture as well")
    add("--json", action="store_true", help="print JSON")
    # Other commands need no numpy.
    run = deferred("drivetrain_fabric.network._command:run_fabric")
    parser.set_defaults(run=run, given=frozenset())


def _add_fabric(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the fabric").add_argument
    text = "a cluster file, instead of all below but --failed"
    add("--spec", metavar="FILE", help=text)
    for name, options in OF_FABRIC.items():
        add(name, **options)
    text = "ports up of leaves that fail, by chance"
    add("--failed", type=integer(0), default=0, help=text)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the traffic").add_argument
    text = "of all ranks: all-reduce, tree, all-gather, reduce-scatter, all-to-all, "
    text += "or a step of a job: job"
    add("--traffic", **_of("all-reduce", None, text))
    add("--size", **_of("1G", _bytes(number(above=0)), "bytes of a rank's vector"))
    add("--tensor", **_of(8, integer(1), "of a job"))
    add("--pipeline", **_of(8, integer(1), "stages of a job"))
    text = "bytes that a rank sends on in a step"
    add("--activations", **_of("256M", _bytes(number(0)), text))
    text = "instead: queues, pauses and a victim when so many send to one"
    add("--incast", type=integer(1), metavar="SENDERS", help=text)


def _counts(text: str) -> list[int]:
    """Returns whole numbers of at least 1 out of a list such as `1,2,4`."""
    return [integer(1)(part) for part in text.split(",")]


def _bytes(kind: Callable[[str], float]) -> Callable[[str], float]:
    """Returns the `type` of an option that takes `256M` or `1.5G`."""

    def parse(text: str) -> float:
        unit = _UNITS.get(text[-1:].lower())
        return kind(text) if unit is None else kind(text[:-1]) * unit

    return parse
