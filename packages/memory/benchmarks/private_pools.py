"""Memory of graphs and pools, on the strict double of the CUDA driver."""

import ctypes
import random

import strict

from drivetrain_testing import Row

CHUNK = strict.CHUNK
STREAM = 0x101


def filled(allocator, sizes, draw, **options):
    """Blocks with contents, by their addresses."""
    blocks = {}
    for size in sizes:
        at = allocator.allocate(size, **options)
        blocks[at] = draw.randbytes(size)
        ctypes.memmove(at, blocks[at], size)
    return blocks


def num_wrong(blocks):
    return sum(ctypes.string_at(at, len(held)) != held for at, held in blocks.items())


def pools(quick):
    """Hundreds of pools: what is freed in one serves no other, and all comes back."""
    number = 50 if quick else 400
    path = strict.library()
    if path is None:
        return Row(figure="needs a C++ compiler", holds=None)
    double = strict.use(path, 4 * number)
    allocator = strict.allocator(path)
    draw = random.Random(1)
    sizes = [700, CHUNK, CHUNK // 2 + 512]
    wrong, kept, free = 0, {}, {}
    for pool in range(1, number + 1):
        blocks = filled(allocator, sizes, draw, graph=2 * pool)
        first = next(iter(blocks))
        free[pool] = first, len(blocks.pop(first))
        allocator.free(first)
        kept |= blocks
    reserved = double.strict_reserved() / number
    for pool, (at, size) in draw.sample(sorted(free.items()), number):
        # Its own place, and nobody else's.
        wrong += allocator.allocate(size, graph=2 * pool) != at
        allocator.free(at)
    wrong += num_wrong(kept)
    for at in kept:
        allocator.free(at)
    for pool in free:
        allocator.release_graph(2 * pool)
    allocator.trim()
    left = allocator.counters().reserved_bytes
    return Row(
        figure=f"{wrong} wrong in {number} pools, {reserved / 2**20:.0f} MiB of addresses "
        f"each; {left:,} bytes left in the end",
        holds=wrong == 0 and left == 0 and reserved <= 2**28,
        proven_on="host-driver",
    )


def trees(quick):
    """Graphs of one pool, captured one after the other, as those of a tree are.

    What one graph left free serves the next one's capture; what lives across captures
    stays; what is outside of graphs never comes from their memory, nor after a sleep.
    """
    number = 50 if quick else 300
    path = strict.library()
    if path is None:
        return Row(figure="needs a C++ compiler", holds=None)
    double = strict.use(path, 12 * number)
    double.strict_stream(ctypes.c_uint64(STREAM), 0, 0)
    allocator = strict.allocator(path)
    draw = random.Random(1)
    wrong, outputs, places = 0, {}, set()
    for _ in range(number):
        double.strict_capture(ctypes.c_uint64(STREAM), 1)
        options = {"stream": STREAM, "graph": 3}
        scratch = [allocator.allocate(3 * CHUNK, **options) for _ in range(2)]
        outputs |= filled(allocator, [CHUNK + 512], draw, **options)
        places |= {*scratch, *outputs}
        for at in scratch:
            allocator.free(at)
        double.strict_capture(ctypes.c_uint64(STREAM), 0)
    of_graphs = allocator.counters().reserved_bytes
    for _ in range(3):
        others = filled(allocator, [3 * CHUNK, 5000] * 20, draw)
        wrong += len(places & others.keys()) + num_wrong(outputs) + num_wrong(others)
        allocator.sleep(0, keeps=True)
        allocator.wake(0)
        wrong += num_wrong(outputs) + num_wrong(others)
        for at in others:
            allocator.free(at)
    spoilt = double.strict_spoilt()
    for at in outputs:
        allocator.free(at)
    allocator.release_graph(3)
    allocator.trim()
    left = allocator.counters().reserved_bytes
    needed = sum(map(len, outputs.values())) + 6 * CHUNK
    return Row(
        figure=f"{wrong} wrong, {spoilt} captures spoilt in {number} graphs of one pool, "
        f"with {of_graphs / needed:.2f} x what they need; {left:,} bytes left in the end",
        holds=wrong == spoilt == left == 0 and of_graphs <= 1.05 * needed,
        proven_on="host-driver",
    )
