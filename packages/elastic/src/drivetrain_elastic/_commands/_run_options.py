"""Options of the command `drivetrain-elastic run`, which are torchrun's."""

from __future__ import annotations

import argparse
from importlib.resources import files

from drivetrain_core.commands import add_options, deferred, integer
from drivetrain_core.machine_limits import num_cores
from drivetrain_elastic._commands._address_options import address, addresses


def populate_run_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    add_options(
        parser,
        files(__package__) / "run_options.toml",
        address=address,
        addresses=addresses,
        workers=_num_workers,
        nodes=_range,
    )
    parser.set_defaults(run=deferred("drivetrain_elastic._commands._run:run"))


def _range(text: str) -> tuple[int, int]:
    """Returns the fewest and the most nodes.

    Example:
        >>> _range("2:4"), _range("3")
        ((2, 4), (3, 3))
    """
    first, _, last = text.partition(":")
    fewest, most = integer(1)(first), integer(1)(last or first)
    if fewest > most:
        message = f"MIN must not be more than MAX, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return fewest, most


def _num_workers(text: str) -> int:
    """Returns how many workers a node has."""
    if text not in {"gpu", "cpu", "auto"}:
        try:
            return integer(1)(text)
        except argparse.ArgumentTypeError as error:
            message = f"{error} (or gpu, cpu, auto)"
            raise argparse.ArgumentTypeError(message) from None
    import torch

    num_gpus = torch.accelerator.device_count()
    if text == "gpu" and not num_gpus:
        message = "gpu: this machine has none that torch can use"
        raise argparse.ArgumentTypeError(message)
    if text == "cpu" or not num_gpus:
        return num_cores()
    return num_gpus
