"""Arrays that are mapped from a file: they travel by its name, not with its content."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np


def reduce_mapped(array: np.memmap[Any, Any]) -> tuple[Any, ...] | None:
    """Returns a call that maps an array again, in another process.

    What is written to the array there reaches neither the file nor this process.

    Args:
        array: A map of a file, or a part of one.

    Returns:
        A function and its arguments; None where only the values will do: the array has
        gaps or changes that the file has not, or the file is gone, cut or another one.
    """
    memory, name, flags = array._mmap, array.filename, array.flags  # type: ignore[attr-defined]
    if memory is None or name is None or array.mode == "c" or not array.size:
        return None
    whole = np.frombuffer(memory, np.uint8)
    begin, address = (one.__array_interface__["data"][0] for one in (whole, array))
    # The map begins at a whole page of the file, before the offset that was asked for.
    page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset, path = page + address - begin, Path(name).resolve()
    is_there = path.exists() and path.stat().st_ino == _inode(begin)
    if not is_there or path.stat().st_size < offset + array.nbytes or not flags.forc:
        return None
    mode, order = "r" if array.mode == "r" else "c", "C" if flags.c_contiguous else "F"
    return np.memmap, (str(path), array.dtype, mode, offset, array.shape, order)


def _inode(address: int) -> int:
    """Returns the number of the file that is mapped at an address; 0 for none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, _, _, inode, *_ = line.split()
        low, high = (int(part, 16) for part in where.split("-"))
        if low <= address < high:
            return int(inode)
    return 0
