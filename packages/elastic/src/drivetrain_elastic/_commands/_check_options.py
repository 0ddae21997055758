"""Options of the command `drivetrain-elastic check`: of one node, or of several."""

from __future__ import annotations

import argparse
from importlib.resources import files
from urllib.parse import urlsplit

from drivetrain_core.commands import add_options, deferred
from drivetrain_elastic._commands._address_options import addresses


def populate_check_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    add_options(
        parser,
        files(__package__) / "check_options.toml",
        addresses=addresses,
        url=_rendezvous_url,
    )
    parser.set_defaults(run=_check)


def _rendezvous_url(text: str) -> str:
    """Returns the URL of a rendezvous without a master."""
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


def _check(arguments: argparse.Namespace) -> int:
    # What several nodes need imports torch.
    is_alone = arguments.nodes == 1 or arguments.dry_run
    how = "_check_node" if is_alone else "_check_nodes"
    return deferred(f"drivetrain_elastic._commands.{how}:run")(arguments)
