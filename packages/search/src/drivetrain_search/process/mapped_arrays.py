"""Arrays that are mapped from a file: they travel by its name, not with its content."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

_CHUNK = 1 << 24


def reduce_mapped(array: np.memmap[Any, Any]) -> tuple[Any, ...] | None:
    """Returns a call that maps an array again, in another process.

    What is written to the array there reaches neither the file nor this process.

    Args:
        array: A map of a file, or a part of one in any strides.

    Returns:
        A function and its arguments; None where only the values will do: the file is
        gone, shorter, or another one by now, or the array was changed in memory alone.
    """
    memory, name = array._mmap, array.filename  # type: ignore[attr-defined]
    if memory is None or name is None or not array.size:
        return None
    whole = np.frombuffer(memory, np.uint8)
    # The map begins at a whole page of the file, before the offset that was asked for.
    page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    begin, address = (one.__array_interface__["data"][0] for one in (whole, array))
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    first = address - begin + sum(step for step in reach if step < 0)
    num_bytes = sum(map(abs, reach)) + array.itemsize
    try:
        found = Path(name).stat()
        if found.st_ino != _inode(begin) or found.st_size < page + first + num_bytes:
            return None
        mode = "r" if array.mode == "r" else "c"
        place = str(Path(name).resolve()), mode, page + first, num_bytes
        if array.mode == "c":
            again = np.memmap(place[0], np.uint8, "r", place[2], (num_bytes,))
            part = whole[first : first + num_bytes]
            chunks = (slice(at, at + _CHUNK) for at in range(0, num_bytes, _CHUNK))
            if not all(np.array_equal(part[one], again[one]) for one in chunks):
                return None
    except OSError:
        return None
    start = address - begin - first
    return _map, (*place, start, array.dtype, array.shape, array.strides)


def _map(
    name: str,
    mode: Any,
    offset: int,
    num_bytes: int,
    start: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    memory = np.memmap(name, np.uint8, mode, offset, (num_bytes,))
    first = memory[start : start + dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(first, shape, strides, subok=True)


def _inode(address: int) -> int:
    """Returns the number of the file that is mapped at an address; 0 for none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, _, _, inode, *_ = line.split()
        low, high = (int(part, 16) for part in where.split("-"))
        if low <= address < high:
            return int(inode)
    return 0
