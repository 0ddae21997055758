"""Reads what is set for NCCL, torch and Gloo: the environment, then NCCL's files.

NCCL itself reads files as its source (misc/param.cc) says: the variable wins over the
file, the user's file over /etc/nccl.conf; a line without `=` is skipped in silence, and
nothing is trimmed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._facts import Assignment
from drivetrain_fabric.adviser._versions import is_slip

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIXES = ("GLOO_", "NCCL_", "TORCH_GLOO_", "TORCH_NCCL_")

_Read = tuple[tuple[Assignment, ...], tuple[tuple[str, str], ...]]


def parse_conf(text: str, source: str) -> _Read:
    r"""Returns the settings of a file, and the lines that set nothing.

    Args:
        text: What it holds.
        source: What to call it.

    Example:
        >>> found, bad = parse_conf("# ours\nNCCL_DEBUG=WARN\nNCCL_IB_TC 106", "a")
        >>> found[0].where, bad
        ('a:2', (('a:3', 'NCCL_IB_TC 106'),))
    """
    found, bad = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{source}:{number}"
        name, equals, value = line.partition("=")
        if not equals or not name.isidentifier():
            bad.append((where, line.strip()))
        else:
            found.append(Assignment(name=name, value=value, where=where))
    return tuple(found), tuple(bad)


def read_settings(
    environment: Mapping[str, str], root: Path, home: Path | None
) -> _Read:
    """Returns all that is set, what counts first, and the lines that set nothing.

    Args:
        environment: The variables.
        root: Where the host's `etc` is.
        home: Where a user's `.nccl.conf` is; None if there is no user.

    Returns:
        The settings, and the lines with where they stand; an empty line stands for the
        whole file that NCCL_CONF_FILE names, if it cannot be read.
    """
    found = [
        Assignment(name=name, value=environment[name])
        for name in sorted(environment)
        if name.startswith(_PREFIXES) or is_slip(name)
    ]
    files = []
    if environment.get("NCCL_CONF_FILE"):
        files.append(Path(environment["NCCL_CONF_FILE"]))
    elif home is not None:
        files.append(home / ".nccl.conf")
    bad: list[tuple[str, str]] = []
    for file in [*files, root / "etc/nccl.conf"]:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            if str(file) == environment.get("NCCL_CONF_FILE"):
                bad.append((str(file), ""))
            continue
        settings, lines = parse_conf(text, str(file))
        found += settings
        bad += lines
    return tuple(found), tuple(bad)
