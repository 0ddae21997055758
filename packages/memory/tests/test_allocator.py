"""One allocator on a device that is book-keeping, or memory of this machine."""

import ctypes

import pytest

from drivetrain_memory import DeviceMemoryError, MemoryUseError
from drivetrain_memory._native import NativeAllocator, host_driver, null_driver

CHUNK = 64 * 1024


@pytest.fixture(params=["null", "host"])
def make(request):
    """Makes an allocator of so many chunks of 64 KiB."""

    def on_device(chunks, **options):
        driver = host_driver if request.param == "host" else null_driver
        return NativeAllocator(driver(chunks * CHUNK, CHUNK), **options)

    return on_device


def test_blocks_do_not_overlap_and_are_aligned(make):
    allocator = make(64)
    sizes = [1, 511, 512, 513, CHUNK // 2, CHUNK // 2 + 1, CHUNK, 5 * CHUNK + 7]
    begins = sorted((allocator.allocate(size), size) for size in sizes)
    assert all(at % 512 == 0 for at, _ in begins)
    ends = [at + size for at, size in begins]
    assert all(end <= at for end, (at, _) in zip(ends, begins[1:], strict=False))


def every_other(blocks):
    """Every second one of either run in which blocks of one size lie in turn."""
    return [block for i, block in enumerate(blocks) if i % 4 < 2]


def test_request_of_nothing_has_no_address(make):
    allocator = make(4)
    assert allocator.allocate(0) == 0
    allocator.free(0)
    assert allocator.counters().allocations == 0


def test_scattered_chunks_serve_one_request(make):
    allocator = make(8)
    blocks = [allocator.allocate(CHUNK) for _ in range(8)]
    for block in every_other(blocks):
        allocator.free(block)
    joined = allocator.allocate(4 * CHUNK)
    counters = allocator.counters()
    assert counters.created == 8
    assert counters.remapped >= 3
    allocator.free(joined)


def test_chunks_come_back_without_the_driver(make):
    allocator = make(8)
    calls = []
    for _ in range(20):
        blocks = [allocator.allocate(CHUNK) for _ in range(8)]
        freed = every_other(blocks)
        for block in freed:
            allocator.free(block)
        joined = allocator.allocate(4 * CHUNK)
        for block in (*(b for b in blocks if b not in freed), joined):
            allocator.free(block)
        calls.append(allocator.counters().mapped)
    assert calls[0] >= 8 + 3
    assert calls[-3] == calls[-1]
    assert allocator.counters().returned > 0


def test_another_stream_gets_memory_after_a_wait(make):
    allocator = make(8)
    block = allocator.allocate(8 * CHUNK, stream=1)
    allocator.free(block)
    allocator.allocate(8 * CHUNK, stream=2)
    counters = allocator.counters()
    assert counters.stolen == 8
    assert counters.created == 8
    assert counters.host_waits == 0


def test_memory_that_does_not_fit_is_refused_and_nothing_is_lost(make):
    allocator = make(8)
    blocks = [allocator.allocate(CHUNK) for _ in range(6)]
    allocator.free(blocks[0])
    with pytest.raises(DeviceMemoryError, match="Tried to allocate"):
        allocator.allocate(4 * CHUNK)
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(2**50)
    assert allocator.counters().out_of_memory == 2
    # What was gathered for it is still there.
    allocator.allocate(3 * CHUNK)
    assert allocator.counters().reserved_bytes == 8 * CHUNK


def test_wrong_address_is_refused(make):
    allocator = make(8)
    block = allocator.allocate(1000)
    with pytest.raises(MemoryUseError, match="no live block begins"):
        allocator.free(block + 512)
    allocator.free(block)
    with pytest.raises(MemoryUseError, match="freed twice"):
        allocator.free(block)
    with pytest.raises(MemoryUseError, match="no stream can use it"):
        allocator.record_stream(block, 3)


def test_trim_gives_everything_back(make):
    allocator = make(8)
    kept = allocator.allocate(CHUNK)
    for block in [allocator.allocate(2 * CHUNK, stream=s) for s in (0, 1, 2)]:
        allocator.free(block)
    allocator.trim()
    assert allocator.counters().reserved_bytes == CHUNK
    allocator.free(kept)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0
    allocator.allocate(8 * CHUNK)


def test_memory_of_a_graph_is_private_until_it_is_released(make):
    allocator = make(8)
    block = allocator.allocate(6 * CHUNK, graph=7)
    allocator.free(block)
    with pytest.raises(DeviceMemoryError, match="private to graphs"):
        allocator.allocate(6 * CHUNK)
    assert allocator.allocate(6 * CHUNK, graph=7) == block
    allocator.free(block)
    allocator.release_graph(7)
    allocator.allocate(6 * CHUNK)


def test_headroom_bounds_what_is_reserved(make):
    free, bound = make(1000, headroom=-1.0), make(1000, headroom=0.0)
    for allocator in (free, bound):
        blocks = [allocator.allocate(CHUNK) for _ in range(100)]
        for block in every_other(blocks):
            allocator.free(block)
        allocator.allocate(50 * CHUNK)
    assert free.counters().reserved_bytes == 150 * CHUNK
    assert bound.counters().reserved_bytes == 100 * CHUNK


def test_mappings_are_evicted_at_their_limit(make):
    allocator = make(16, mapped=24 * CHUNK)
    for size in (1, 3, 2, 5, 4, 7, 8, 3, 16, 5, 1):
        blocks = [allocator.allocate(size * CHUNK) for _ in range(16 // size)]
        for block in blocks:
            allocator.free(block)
    counters = allocator.counters()
    assert counters.mapped - counters.unmapped <= 24


def test_alias_shows_what_was_written_elsewhere():
    allocator = NativeAllocator(host_driver(4 * CHUNK, CHUNK))
    blocks = [allocator.allocate(CHUNK) for _ in range(4)]
    for number, block in enumerate(blocks):
        ctypes.memset(block, number + 1, CHUNK)
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    joined = allocator.allocate(2 * CHUNK)
    # The very chunks of the two that were freed.
    assert {ctypes.string_at(joined + i * CHUNK, 1) for i in (0, 1)} == {b"\2", b"\4"}
    assert ctypes.string_at(blocks[0], CHUNK) == b"\1" * CHUNK
    assert ctypes.string_at(blocks[2], CHUNK) == b"\3" * CHUNK


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({"headroom": float("nan")}, "headroom is no number"),
        ({"capacity": CHUNK - 1}, "holds no chunk"),
    ],
    ids=["nan", "small"],
)
def test_options_without_sense_are_refused(make, options, because):
    with pytest.raises(MemoryUseError, match=because):
        make(4, **options)


def test_chunk_must_be_a_power_of_two():
    with pytest.raises(MemoryUseError, match="a power of two"):
        null_driver(2**20, 3000)
    with pytest.raises(MemoryUseError, match="a power of two"):
        host_driver(2**20, 2048)


def test_limit_is_never_above_what_was_given_at_first(make):
    allocator = make(100, capacity=10 * CHUNK)
    allocator.limit(100 * CHUNK)
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(11 * CHUNK)
    allocator.limit(4 * CHUNK)
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(5 * CHUNK)
    allocator.allocate(4 * CHUNK)


def test_limit_is_a_chunk_at_least(make):
    with pytest.raises(MemoryUseError):
        make(100).limit(CHUNK - 1)
