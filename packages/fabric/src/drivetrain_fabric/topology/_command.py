"""The command `drivetrain fabric topo`: shows this host, a file, or measured links."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from drivetrain_core.commands import add_options, deferred
from drivetrain_fabric.topology._draw_host import host_svg
from drivetrain_fabric.topology._draw_text import host_rich, host_text
from drivetrain_fabric.topology._file import load_topology, topology_to_json
from drivetrain_fabric.topology._read import read_topology

if TYPE_CHECKING:
    import argparse

    from rich.console import RenderableType

# Showing a host needs no torch.
_measure = deferred("drivetrain_fabric.topology._measure_command:measure")


def populate_topo(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command `topo`, which sets `run` as other commands do.

    Args:
        commands: The sub-commands of `drivetrain fabric`.
    """
    parser = commands.add_parser(
        "topo",
        help="show GPUs, network cards, and how they hang together",
        allow_abbrev=False,
    )
    add_options(parser, files(__package__) / "options.toml")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    return _measure(args) if args.measure else _show(args)


def _show(args: argparse.Namespace) -> int:
    if args.file is not None:
        host = load_topology(args.file)
    elif args.sysfs is not None:
        folder = Path(args.sysfs)
        host = read_topology(folder, use_nvml=False, name=folder.resolve().name)
    else:
        host = read_topology()
    if args.svg is not None:
        Path(args.svg).write_text(host_svg(host), encoding="utf-8")
    if args.json:
        print_text(topology_to_json(host))
    else:
        print_either(host_rich(host), host_text(host))
    return 0


def print_either(rich: list[RenderableType], plain: str) -> None:
    """Prints the first to a terminal, and the second to all else."""
    console = Console()
    if console.is_terminal:
        console.print(*rich, sep="\n")
    else:
        print_text(plain)


def print_text(text: str) -> None:
    """Prints a text and the end of its line."""
    sys.stdout.write(f"{text}\n")
