"""How the commands of all packages end: with a status, and never with a traceback."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from drivetrain_core._errors import DrivetrainError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["run_command"]


def run_command(
    program: str,
    run: Callable[[argparse.Namespace], int],
    arguments: argparse.Namespace,
) -> int:
    """Runs a command and returns its exit status.

    An expected failure is one line on standard error and the status 1; an interrupt is
    the status 130; and if whoever reads the output goes away, the command ends with the
    status 1 and says nothing.

    Args:
        program: The name that its line on standard error starts with.
        run: Does what the command is for, and returns the exit status.
        arguments: What it is given.

    Example:
        >>> from argparse import Namespace
        >>> run_command("program", lambda _: 0, Namespace())
        0
    """
    try:
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # What Python still holds would raise once more when it ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return 1
    except (DrivetrainError, OSError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        return 130
    return status
