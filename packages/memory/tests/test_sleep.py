"""Memory that sleeps: it goes back to the device, and comes again below its addresses."""

import contextlib
import ctypes
import random

import pytest

from drivetrain_memory import DeviceError, DeviceMemoryError, MemoryUseError
from drivetrain_memory._native import NativeAllocator, cuda_driver, host_driver
from drivetrain_memory._snapshot import snapshot_of

CHUNK = 2 * 2**20
MIB = 2**20
WEIGHTS, CACHE = 1, 2
NO_MEMORY = 2


@pytest.fixture
def make():
    def allocator(chunks=64, **options):
        driver = host_driver(chunks * CHUNK, CHUNK)
        return NativeAllocator(driver, headroom=-1.0, **options)

    return allocator


@pytest.fixture
def make_cuda(fake_cuda):
    def allocator(chunks=64):
        fake_cuda.configure(chunks * CHUNK)
        driver = cuda_driver(0, library=fake_cuda.path)
        return NativeAllocator(driver, headroom=-1.0)

    return allocator


def write(at, size, seed):
    ctypes.memmove(at, random.Random(seed).randbytes(size), size)


def reads(at, size, seed):
    return ctypes.string_at(at, size) == random.Random(seed).randbytes(size)


def fill(allocator, sizes, tag=WEIGHTS, **options):
    """Returns blocks with contents, by their addresses."""
    blocks = {}
    for size in sizes:
        at = allocator.allocate(size, tag=tag, **options)
        blocks[at] = size
        write(at, size, at)
    return blocks


def require_same(blocks):
    assert all(reads(at, size, at) for at, size in blocks.items())


SIZES = [512, 700, 3 * MIB, CHUNK, 5 * CHUNK + 512, MIB // 2, 100, 9 * MIB]


def test_contents_and_addresses_are_the_same_after_many_turns(make):
    allocator = make()
    blocks = fill(allocator, SIZES)
    other = fill(allocator, SIZES, tag=0)
    before = allocator.counters().reserved_bytes
    held = before // 2
    for _ in range(50):
        given = allocator.sleep(WEIGHTS, keeps=True)
        assert given >= 0.95 * held
        assert allocator.counters().reserved_bytes == before - given
        require_same(other)
        allocator.wake(WEIGHTS)
        assert allocator.counters().reserved_bytes == before
        require_same(blocks)
    assert allocator.counters().live_bytes >= 2 * sum(SIZES)
    for at in (*blocks, *other):
        allocator.free(at)


def test_what_is_dropped_has_its_addresses_again(make):
    allocator = make()
    blocks = fill(allocator, SIZES, tag=CACHE)
    kept = fill(allocator, SIZES)
    allocator.sleep(CACHE, keeps=False)
    allocator.sleep(WEIGHTS, keeps=True)
    assert allocator.counters().reserved_bytes == 0
    allocator.wake(WEIGHTS)
    require_same(kept)
    allocator.wake(CACHE)
    for at, size in blocks.items():
        write(at, size, at)
    require_same(blocks)
    require_same(kept)


def test_others_have_the_memory_meanwhile(make):
    allocator = make(16)
    blocks = fill(allocator, [10 * CHUNK])
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(12 * CHUNK)
    allocator.sleep(WEIGHTS, keeps=True)
    other = fill(allocator, [12 * CHUNK], tag=0)
    with pytest.raises(DeviceMemoryError, match=r"20\.00 MiB"):
        allocator.wake(WEIGHTS)
    # It sleeps on, and nothing is lost.
    assert allocator.counters().reserved_bytes == 12 * CHUNK
    with pytest.raises(MemoryUseError, match="sleeps already"):
        allocator.sleep(WEIGHTS, keeps=True)
    require_same(other)
    for at in other:
        allocator.free(at)
    allocator.wake(WEIGHTS)
    require_same(blocks)


def test_what_is_freed_asleep_needs_nothing_and_is_nobodys(make):
    allocator = make(40)
    blocks = fill(allocator, [4 * CHUNK + 512, 4 * CHUNK, 300, 400, 6 * CHUNK])
    allocator.sleep(WEIGHTS, keeps=True)
    first, second, third, fourth, last = blocks
    for at in (second, third, last):
        allocator.free(at)
        del blocks[at]
    with pytest.raises(MemoryUseError, match="no live block"):
        allocator.free(second)
    allocator.wake(WEIGHTS)
    require_same(blocks)
    # The pages of the first and the small ones alone.
    assert allocator.counters().reserved_bytes == (5 + 1) * CHUNK
    more = fill(allocator, [4 * CHUNK, 300, 6 * CHUNK, 20 * CHUNK])
    assert not set(more) & {first, fourth}
    require_same(blocks | more)
    for at in (*blocks, *more):
        allocator.free(at)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


def test_nothing_is_allocated_where_memory_sleeps(make):
    allocator = make()
    blocks = fill(allocator, [MIB, CHUNK])
    allocator.sleep(WEIGHTS, keeps=True)
    for size in (MIB, CHUNK, 5 * CHUNK):
        with pytest.raises(MemoryUseError, match="wake it before"):
            allocator.allocate(size, tag=WEIGHTS)
        allocator.free(allocator.allocate(size))
        allocator.free(allocator.allocate(size, tag=CACHE))
    allocator.trim()
    allocator.wake(WEIGHTS)
    with pytest.raises(MemoryUseError, match="does not sleep"):
        allocator.wake(WEIGHTS)
    require_same(blocks)
    allocator.free(allocator.allocate(MIB, tag=WEIGHTS))


def test_tag_without_memory_sleeps_and_wakes(make):
    allocator = make()
    assert allocator.sleep(7, keeps=True) == 0
    allocator.wake(7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_find_their_contents(make, seed):
    allocator = make(48)
    choose = random.Random(seed)
    blocks, asleep, turns = {}, set(), 0
    for _ in range(1500):
        action = choose.random()
        if action < 0.5:
            tag, stream = choose.choice([0, WEIGHTS, CACHE]), choose.randrange(3)
            size = choose.choice(
                [300, 5000, MIB, 3 * MIB, choose.randrange(1, 9 * MIB)]
            )
            try:
                at = allocator.allocate(size, stream, tag=tag)
            except MemoryUseError:
                assert tag in asleep
                continue
            except DeviceMemoryError:
                continue
            assert tag not in asleep
            blocks[at] = size, tag
            write(at, min(size, 4096), at)
            write(at + size - min(size, 4096), min(size, 4096), at)
        elif action < 0.85 and blocks:
            at = choose.choice(list(blocks))
            allocator.free(at)
            del blocks[at]
        elif action < 0.9:
            allocator.trim()
        else:
            tag = choose.choice([WEIGHTS, CACHE])
            if tag in asleep:
                try:
                    allocator.wake(tag)
                except DeviceMemoryError:
                    continue
                asleep.remove(tag)
                turns += 1
            else:
                allocator.sleep(tag, keeps=True)
                asleep.add(tag)
        for at, (size, tag) in blocks.items():
            if tag not in asleep and choose.random() < 0.05:
                assert reads(at + size - min(size, 4096), min(size, 4096), at)
                assert size < 8192 or reads(at, 4096, at)
    assert turns > 10
    for at in blocks:
        allocator.free(at)
    for tag in asleep:
        allocator.wake(tag)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


def test_memory_of_a_graph_sleeps_with_its_tag(make_cuda, fake_cuda):
    allocator = make_cuda()
    stream = 5
    fake_cuda.capture(stream)
    at = allocator.allocate(3 * CHUNK, stream, graph=1, tag=WEIGHTS)
    for call in (
        lambda: allocator.sleep(WEIGHTS, keeps=True),
        lambda: allocator.wake(WEIGHTS),
    ):
        with pytest.raises(MemoryUseError, match=r"captured|does not sleep"):
            call()
    fake_cuda.capture(stream, on=False)
    write(at, 3 * CHUNK, 1)
    assert allocator.sleep(WEIGHTS, keeps=True) == 3 * CHUNK
    assert not fake_cuda.usable(at, 3 * CHUNK)
    allocator.wake(WEIGHTS)
    assert fake_cuda.usable(at, 3 * CHUNK)
    assert reads(at, 3 * CHUNK, 1)


@pytest.mark.parametrize("tag", [0, WEIGHTS])
def test_graph_has_all_that_its_replays_use_after_sleep(make_cuda, fake_cuda, tag):
    """What a capture has freed is used again when the graph is launched."""
    allocator = make_cuda(12)
    stream = 5
    fake_cuda.capture(stream)
    first, second, third, fourth = (
        allocator.allocate(3 * CHUNK, stream, graph=2, tag=tag) for _ in range(4)
    )
    allocator.free(first)
    allocator.free(fourth)
    # Has the memory of both, joined: each chunk of theirs has two addresses.
    joined = allocator.allocate(6 * CHUNK, stream, graph=2, tag=tag)
    fake_cuda.capture(stream, on=False)
    places = {first: 3, second: 3, third: 3, fourth: 3, joined: 6}
    before = fake_cuda.counts
    for at, size in places.items():
        assert fake_cuda.usable(at, size * CHUNK)
    write(joined, 6 * CHUNK, 1)
    images = [ctypes.string_at(at, size * CHUNK) for at, size in places.items()]
    for _ in range(3):
        assert allocator.sleep(tag, keeps=True) == 12 * CHUNK
        assert fake_cuda.counts[:2] == (0, 0)
        allocator.wake(tag)
        assert fake_cuda.counts == before
        for (at, size), image in zip(places.items(), images, strict=True):
            assert fake_cuda.usable(at, size * CHUNK)
            if at in {first, fourth, joined}:
                assert ctypes.string_at(at, size * CHUNK) == image
    allocator.release_graph(2)
    for at in (second, third, joined):
        allocator.free(at)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


REFUSED_ASLEEP = ["cuMemAllocHost", "cuMemcpyDtoH", "cuMemUnmap", "cuMemRelease"]
REFUSED_AWAKE = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoD"]


@pytest.mark.parametrize("function", REFUSED_ASLEEP + REFUSED_AWAKE)
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("result", [1, NO_MEMORY])
def test_refusal_of_the_driver_loses_nothing(
    make_cuda, fake_cuda, function, after, result
):
    allocator = make_cuda()
    blocks = fill(allocator, SIZES)
    if function in REFUSED_ASLEEP:
        fake_cuda.fail(function, after, result)
        try:
            allocator.sleep(WEIGHTS, keeps=True)
        except DeviceError as error:
            # What it says tells whether it sleeps.
            sleeps = "it sleeps" in str(error)
            with (
                pytest.raises(MemoryUseError, match="does not sleep")
                if not sleeps
                else (contextlib.nullcontext())
            ):
                allocator.wake(WEIGHTS)
    else:
        allocator.sleep(WEIGHTS, keeps=True)
        fake_cuda.fail(function, after, result)
        with contextlib.suppress(DeviceError, DeviceMemoryError):
            allocator.wake(WEIGHTS)
    fake_cuda.fail(function, times=0)
    # Whichever it is now.
    with contextlib.suppress(MemoryUseError):
        allocator.sleep(WEIGHTS, keeps=True)
    allocator.wake(WEIGHTS)
    require_same(blocks)
    for at in blocks:
        allocator.free(at)
    del allocator
    assert fake_cuda.counts == (0, 0, 0)


def test_wake_that_is_refused_leaves_others_what_they_cached(make):
    allocator = make(16)
    blocks = fill(allocator, [8 * CHUNK])
    allocator.sleep(WEIGHTS, keeps=True)
    cached = allocator.allocate(4 * CHUNK)
    taken = allocator.allocate(6 * CHUNK)
    allocator.allocate(3 * CHUNK)
    allocator.free(cached)
    before = allocator.counters().as_dict()
    with pytest.raises(DeviceMemoryError, match=r"Tried to wake memory with the tag"):
        allocator.wake(WEIGHTS)
    assert allocator.allocate(4 * CHUNK) == cached
    after = allocator.counters().as_dict()
    for name in ("created", "mapped", "unmapped", "misses"):
        assert after[name] == before[name]
    allocator.free(taken)
    allocator.wake(WEIGHTS)
    require_same(blocks)


def test_what_sleeps_is_live_for_nothing_that_has_memory(make):
    allocator = make()
    asleep = allocator.allocate(30 * CHUNK, tag=WEIGHTS)
    awake = allocator.allocate(4 * CHUNK)
    allocator.sleep(WEIGHTS, keeps=False)
    found = allocator.counters()
    assert (found.live_bytes, found.active_bytes) == (4 * CHUNK, 4 * CHUNK)
    assert found.asleep_bytes == 30 * CHUNK
    assert found.live_bytes <= found.reserved_bytes == 4 * CHUNK
    with pytest.raises(DeviceMemoryError) as refusal:
        allocator.allocate(63 * CHUNK)
    assert "Tenants have 8.00 MiB of the" in str(refusal.value)
    assert "what sleeps needs 60.00 MiB to wake" in str(refusal.value)
    assert "Most is held by 1 x 8.00 MiB." in str(refusal.value)
    assert {block.at for block in allocator.blocks()} == {awake}
    allocator.free(asleep)
    assert allocator.counters().asleep_bytes == 0
    allocator.wake(WEIGHTS)
    assert allocator.counters().live_bytes == 4 * CHUNK
    # The peak is what had memory at a time.
    assert allocator.counters().peak_live_bytes == 34 * CHUNK


def test_headroom_counts_only_what_is_awake():
    allocator = NativeAllocator(host_driver(64 * CHUNK, CHUNK), headroom=0.0)
    allocator.allocate(20 * CHUNK, tag=WEIGHTS)
    allocator.sleep(WEIGHTS, keeps=False)
    allocator.reset_peaks()
    scattered = [allocator.allocate(2 * CHUNK) for _ in range(8)]
    for at in scattered[::2]:
        allocator.free(at)
    # Joined, since no more is to be reserved than what has been live and awake.
    allocator.allocate(8 * CHUNK)
    assert allocator.counters().reserved_bytes == 16 * CHUNK


def test_history_tells_which_addresses_slept(make):
    allocator = make()
    allocator.keep_history(100)
    at = allocator.allocate(3 * CHUNK, tag=WEIGHTS)
    allocator.sleep(WEIGHTS, keeps=True)
    allocator.wake(WEIGHTS)
    events = snapshot_of(allocator)["device_traces"][0]
    moves = [(one["action"], one["addr"], one["size"]) for one in events[1:]]
    assert moves == [(a, at, 3 * CHUNK) for a in ("segment_unmap", "segment_map")]


def host_blocks(fake_cuda):
    return fake_cuda.calls("cuMemAllocHost") - fake_cuda.calls("cuMemFreeHost")


def test_host_has_its_memory_back_when_nothing_is_left(make_cuda, fake_cuda):
    allocator = make_cuda()
    first, second = fill(allocator, [CHUNK, 700])
    allocator.sleep(WEIGHTS, keeps=True)
    assert host_blocks(fake_cuda) == 1
    allocator.free(first)
    assert host_blocks(fake_cuda) == 1
    allocator.free(second)
    assert host_blocks(fake_cuda) == 0
    allocator.wake(WEIGHTS)
    assert allocator.counters().reserved_bytes == 0


def test_refusal_of_host_memory_names_the_ways_out(make_cuda, fake_cuda):
    allocator = make_cuda()
    blocks = fill(allocator, SIZES)
    fake_cuda.fail("cuMemAllocHost", 0, NO_MEMORY)
    with pytest.raises(DeviceError, match=r"page-locked memory.*keep=False"):
        allocator.sleep(WEIGHTS, keeps=True)
    assert not allocator.is_asleep(WEIGHTS)
    require_same(blocks)
    assert allocator.sleep(WEIGHTS, keeps=False) > 0
    assert allocator.is_asleep(WEIGHTS)


def test_device_that_is_broken_is_no_capture(make_cuda, fake_cuda):
    allocator = make_cuda()
    blocks = fill(allocator, SIZES)
    illegal_address = 700
    fake_cuda.fail("cuCtxSynchronize", 0, illegal_address)
    with pytest.raises(DeviceError, match="cuCtxSynchronize"):
        allocator.sleep(WEIGHTS, keeps=True)
    allocator.sleep(WEIGHTS, keeps=True)
    # Before memory comes, and when it is there.
    for after in (0, 1):
        fake_cuda.fail("cuCtxSynchronize", after, illegal_address)
        with pytest.raises(DeviceError, match="cuCtxSynchronize"):
            allocator.wake(WEIGHTS)
        assert allocator.is_asleep(WEIGHTS)
        assert allocator.counters().reserved_bytes == 0
    allocator.wake(WEIGHTS)
    require_same(blocks)


def test_wake_that_fails_at_the_copy_holds_no_memory(make_cuda, fake_cuda):
    allocator = make_cuda()
    blocks = fill(allocator, SIZES)
    allocator.sleep(WEIGHTS, keeps=True)
    fake_cuda.fail("cuMemcpyHtoD", 2, 1)
    with pytest.raises(DeviceError, match="cuMemcpyHtoD"):
        allocator.wake(WEIGHTS)
    fake_cuda.fail("cuMemcpyHtoD", times=0)
    assert allocator.is_asleep(WEIGHTS)
    assert allocator.counters().reserved_bytes == 0
    allocator.wake(WEIGHTS)
    require_same(blocks)
