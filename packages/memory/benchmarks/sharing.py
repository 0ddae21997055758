"""Memory that two processes have, on the strict double of the CUDA driver."""

import ctypes
import hashlib
import multiprocessing
import os
import random

import strict

from drivetrain_memory._native import cuda_driver, extension
from drivetrain_testing import Row

CHUNK = strict.CHUNK
SEEN_AT_ONCE = 4


def digest(at, size):
    return hashlib.sha256(ctypes.string_at(at, size)).digest()


def keep_some(path, pid, connection):
    """Takes what comes, says what it reads, and has the last few for a while."""
    strict.use(path, 128)
    kept = []
    while (message := connection.recv()) is not None:
        chunks, lease, offset, size = message
        driver = cuda_driver(0, library=path)
        opened = extension().OpenedStorage(driver, pid, chunks, lease, offset, size)
        kept.append((opened, size))
        del kept[:-SEEN_AT_ONCE]
        places = [(one.__cuda_array_interface__["data"][0], n) for one, n in kept]
        connection.send([digest(at, n) for at, n in places])


def messages(quick):
    """Blocks are sent and freed at once; the other process reads the last four."""
    number = 100 if quick else 2000
    path = strict.library()
    if path is None:
        return Row(figure="needs a C++ compiler", holds=None)
    strict.use(path, 128)
    allocator = strict.allocator(path)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    reader = spawn.Process(target=keep_some, args=(path, os.getpid(), there))
    reader.start()
    draw = random.Random(1)
    sent, wrong = [], 0
    for _ in range(number):
        size = draw.choice([700, 5000, CHUNK, 3 * CHUNK + 512, 6 * CHUNK])
        at = allocator.allocate(size)
        ctypes.memmove(at, draw.randbytes(size), size)
        sent.append(digest(at, size))
        shared = allocator.share(at)
        here.send((list(shared.chunks), shared.lease, shared.offset, size))
        allocator.free(at)
        # Others would have it next, if it were free.
        other = allocator.allocate(size)
        ctypes.memset(other, 0, size)
        allocator.free(other)
        wrong += here.recv() != sent[-SEEN_AT_ONCE:]
    here.send(None)
    reader.join()
    allocator.trim()
    left = allocator.counters().reserved_bytes
    return Row(
        figure=f"{wrong} wrong of {number:,} messages to another process; {left:,} bytes "
        "left in the end",
        holds=wrong == 0 and left == 0 and reader.exitcode == 0,
        proven_on="host-driver",
    )
