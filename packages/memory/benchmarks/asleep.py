"""Memory that sleeps and wakes, on a device of the machine's own memory."""

import ctypes
import random

from drivetrain_memory._native import NativeAllocator, host_driver
from drivetrain_testing import Row

CHUNK = 2 * 2**20
TAG = 1


def turns(quick):
    """Sizes that fill chunks and sizes that share them, over and over."""
    number = 100 if quick else 1000
    driver = host_driver(256 * CHUNK, CHUNK)
    allocator = NativeAllocator(driver, headroom=-1.0)
    draw = random.Random(1)
    blocks = {}
    for size in [3 * CHUNK, CHUNK + 512, 700, 5000, CHUNK // 2, 2 * CHUNK] * 2:
        at = allocator.allocate(size, tag=TAG)
        blocks[at] = draw.randbytes(size)
        ctypes.memmove(at, blocks[at], size)
    pool = allocator.counters().reserved_bytes
    wrong, least = 0, 1.0
    for _ in range(number):
        least = min(least, allocator.sleep(TAG, keeps=True) / pool)
        # Others have the memory meanwhile.
        other = allocator.allocate(32 * CHUNK)
        ctypes.memset(other, 1, 32 * CHUNK)
        allocator.free(other)
        allocator.wake(TAG)
        wrong += any(ctypes.string_at(at, len(b)) != b for at, b in blocks.items())
    return Row(
        figure=f"{wrong} wrong of {number:,} turns, at least {100 * least:.0f}% of the "
        "pool given back",
        holds=wrong == 0 and least >= 0.95,
        proven_on="host-driver",
    )
