"""What the programs of this folder share: their options, their table, their figure."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INSTALL = 'pip install "./integration/examples/optimizers[plot]"'


def run_program(
    name: str,
    document: str | None,
    program: Callable[[Path, bool, list[str]], None],
    *,
    argv: Sequence[str] | None,
    methods: Sequence[str],
) -> int:
    """Reads the options, runs a comparison on one thread, and returns an exit status.

    Args:
        name: Of the module.
        document: Its docstring, for the help.
        program: Takes the folder of the results, whether to be quick, and the methods.
        argv: The options; those of the process when None.
        methods: All that can be compared.
    """
    parser = argparse.ArgumentParser(
        prog=f"optimizer_examples.{name}",
        description=(document or "").split("\n", 1)[0],
        allow_abbrev=False,
    )
    parser.add_argument("--out", default=name, help="folder of the results")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny run that shows that it works"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the runs of that folder"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=methods, default=list(methods), metavar="NAME"
    )
    arguments = parser.parse_args(argv)
    folder = Path(arguments.out)
    if not arguments.resume and (file := folder / f"{name}.json").exists():
        way_out = "go on with them by --resume, or name another folder by --out"
        print(f"error: {file} holds runs: {way_out}", file=sys.stderr)
        return 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # A run that diverged is ten times slower where tiny numbers are not taken for zero.
    torch.set_flush_denormal(True)
    try:
        program(folder, arguments.quick, arguments.methods)
    except (MissingLibraryError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    return 0


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure of matplotlib.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        MissingLibraryError: matplotlib is not installed; the message says how to.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = f"the plot needs matplotlib: {INSTALL}"
        raise MissingLibraryError(message) from error
    return Figure(figsize=(width, height), layout="constrained")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as aligned text.

    Example:
        >>> print(table(["optimizer", "loss"], [["SGD", "1.25"], ["AGD", "0.5"]]))
        optimizer  loss
        SGD        1.25
        AGD         0.5
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in (header, *rows):
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)
