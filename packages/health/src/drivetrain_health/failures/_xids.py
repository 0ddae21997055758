"""The errors that NVIDIA's driver numbers, and what each says of the GPU: `xids.toml`."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue, shortened
from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

_GPU = FailureClass.GPU_HARDWARE
_XIDS = tomllib.loads(files(__package__).joinpath("xids.toml").read_text())
_XID = re.compile(r"nvrm: xid \((?:pci:)?([0-9a-f:.]+)[^)]*\): (\d{1,4})\b(.*)")
# Xid 154 says what the driver asks for from now on; 0 is nothing.
_RECOVERY = re.compile(r"changed from 0x\w+ \([^)]*\) to 0x0*([1-9a-f]\w*)")
_SXID = re.compile(r"sxid \((?:pci:)?[0-9a-f:.]+\): (\d{5}), (fatal|non-fatal)?")


def clue_of_xid(number: int, reason: str = "") -> Clue | None:
    """Returns what an Xid says; None if it is no failure, or not known.

    Args:
        number: Of the Xid.
        reason: Where it was read; its meaning if empty.

    Example:
        >>> clue_of_xid(79).cause, clue_of_xid(45)
        ('xid-79', None)
    """
    if str(number) not in _XIDS:
        return None
    failure_class, meaning = _XIDS[str(number)]
    # A program can make each of these: it takes the same again on the node to blame it.
    kind = FailureClass(failure_class)
    return Clue(kind, f"xid-{number}", reason or f"Xid {number}: {meaning}")


def clues_of_xid_lines(lines: Sequence[str]) -> list[Clue]:
    """Returns what the messages of NVIDIA's drivers in a kernel log say.

    Args:
        lines: Messages of the kernel.

    Example:
        >>> [clue.cause for clue in clues_of_xid_lines([
        ...     "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."])]
        ['xid-79']
    """
    clues = []
    for line in lines:
        lowered = line.lower()
        if (found := _XID.search(lowered)) is not None:
            number, rest = int(found[2]), found[3]
            if number == 154 and _RECOVERY.search(rest):
                clues.append(Clue(_GPU, "xid-154", shortened(line)))
            elif (clue := clue_of_xid(number, shortened(line))) is not None:
                clues.append(clue)
        elif (found := _SXID.search(lowered)) is not None and found[2] == "fatal":
            clues.append(Clue(_GPU, f"sxid-{found[1]}", shortened(line)))
    return clues
