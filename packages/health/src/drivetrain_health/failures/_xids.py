"""The errors that NVIDIA's driver numbers, and what each says of the GPU.

The numbers and their meaning are those of NVIDIA's catalogue of Xid errors
(https://docs.nvidia.com/deploy/xid-errors/). What a program can cause by itself, as a
wrong address, is not held against the hardware; what only follows another error (45) or
tells of a repair that was made (63) is no cause at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue, shortened
from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

_GPU, _LINK = FailureClass.GPU_HARDWARE, FailureClass.INTERCONNECT
_CRASH = FailureClass.CRASH
_XIDS: dict[int, tuple[FailureClass, str]] = {
    8: (_CRASH, "the GPU stopped processing"),
    11: (_CRASH, "an invalid push buffer"),
    13: (_CRASH, "an exception of the graphics engine"),
    31: (_CRASH, "a page fault of the GPU"),
    32: (_CRASH, "an invalid push buffer"),
    43: (_CRASH, "the GPU stopped processing"),
    48: (_GPU, "a double-bit ECC error"),
    62: (_GPU, "its micro-controller halted"),
    64: (_GPU, "a row of memory could not be remapped"),
    69: (_CRASH, "a class error of the graphics engine"),
    74: (_LINK, "an NVLink error"),
    79: (_GPU, "it has fallen off the bus"),
    92: (_GPU, "many single-bit ECC errors"),
    94: (_GPU, "an ECC error that was contained"),
    95: (_GPU, "an ECC error that was not contained"),
    109: (_GPU, "a context switch timed out"),
    110: (_GPU, "a security fault"),
    119: (_GPU, "its system processor did not answer"),
    120: (_GPU, "an error of its system processor"),
    121: (_LINK, "an error of its link to the processor"),
    140: (_GPU, "an ECC error that was not recovered"),
    143: (_GPU, "it could not be initialized"),
    **dict.fromkeys(range(144, 151), (_LINK, "an NVLink error")),
    155: (_LINK, "an NVLink error"),
    157: (_GPU, "a resource could not be retired"),
    158: (_GPU, "a fatal time-out"),
}
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
    if number not in _XIDS:
        return None
    failure_class, meaning = _XIDS[number]
    # A program can make each of these: it takes the same again on the node to blame it.
    return Clue(failure_class, f"xid-{number}", reason or f"Xid {number}: {meaning}")


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
            clues.append(Clue(_LINK, f"sxid-{found[1]}", shortened(line)))
    return clues
