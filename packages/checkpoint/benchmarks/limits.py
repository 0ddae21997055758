"""What the hardware allows: copies into memory that is present, and direct writes."""

import ctypes
import functools
import itertools
import mmap
import os
import statistics
from array import array
from concurrent.futures import ThreadPoolExecutor

import torch
from workload import MIB, NUM_THREADS, timed

from drivetrain_checkpoint import _native

_CHUNK = 4 * MIB
_BLOCK = 8 * MIB
_NUM_WRITERS = 4


class Area:
    """Shared memory whose pages are present, such as a checkpoint is copied into."""

    def __init__(self, size_bytes):
        self.size_bytes = size_bytes
        self.memory = mmap.mmap(-1, size_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for at in range(0, size_bytes, mmap.PAGESIZE):
            self.memory[at] = 1

    def views(self, state):
        """Tensors like those of a state, one after the other in this memory."""
        found, at = [], 0
        for tensor in state.values():
            view = torch.frombuffer(
                self.memory, dtype=tensor.dtype, count=tensor.numel(), offset=at
            )
            found.append(view.view(tensor.shape))
            at += tensor.nbytes
        return found


def copies(state, area):
    """The ways to copy a state into present memory, by name."""
    targets = area.views(state)
    pairs = list(zip(targets, state.values(), strict=True))
    blocks = [(s.data_ptr(), t.data_ptr(), s.nbytes) for t, s in pairs]
    ways = {
        "torch copy_": functools.partial(_torch_copy, pairs),
        "libc memcpy": functools.partial(_memcpy, blocks),
    }
    if _native.missing_because() is None:
        columns = [array("Q", column) for column in zip(*blocks, strict=True)]
        ways["native copy"] = functools.partial(_native.copy, *columns, NUM_THREADS)
    return ways


def _torch_copy(pairs):
    for target, source in pairs:
        target.copy_(source)


@functools.cache
def _threads(num_threads):
    return ThreadPoolExecutor(num_threads)


def _memcpy(blocks):
    """Copies with the C library, in chunks that the threads take in turn."""
    chunks = [
        (source + at, target + at, min(_CHUNK, size - at))
        for source, target, size in blocks
        for at in range(0, size, _CHUNK)
    ]
    turns = itertools.count()

    def work():
        while (turn := next(turns)) < len(chunks):
            source, target, size = chunks[turn]
            ctypes.memmove(target, source, size)

    done = [_threads(NUM_THREADS).submit(work) for _ in range(NUM_THREADS)]
    for future in done:
        future.result()


class Alternated:
    """Times of every way to copy, taken in turns with what is compared with them."""

    def __init__(self, ways):
        self._ways = ways
        self.times = {name: [] for name in ways}
        for way in ways.values():
            way()

    def take(self):
        """Takes the time of each way once."""
        for name, way in self._ways.items():
            self.times[name].append(timed(way))

    def fastest(self):
        """The name and the times of the way that is the fastest."""
        return min(self.times.items(), key=lambda item: statistics.median(item[1]))


def direct_write(path, area):
    """Writes an area to a new file past the page cache, and syncs it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT
    fd = os.open(path, flags, 0o644)
    view = memoryview(area.memory)
    turns = itertools.count(0, _BLOCK)

    def work():
        while (at := next(turns)) < area.size_bytes:
            block = view[at : at + _BLOCK]
            done = os.pwrite(fd, block, at)
            assert done == len(block)

    try:
        futures = [_threads(_NUM_WRITERS).submit(work) for _ in range(_NUM_WRITERS)]
        for future in futures:
            future.result()
        os.fsync(fd)
    finally:
        view.release()
        os.close(fd)
