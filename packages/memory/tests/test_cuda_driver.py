"""The CUDA driver's side, on a driver that needs no GPU."""

import contextlib
import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from drivetrain_memory import DeviceError, DeviceMemoryError
from drivetrain_memory._native import NativeAllocator, cuda_driver, num_cuda_devices

CHUNK = 2 * 2**20
CSRC = Path(__file__).parents[1] / "csrc"


@pytest.fixture
def make(fake_cuda):
    def allocator(chunks, **options):
        fake_cuda.configure(chunks * CHUNK)
        driver = cuda_driver(0, library=fake_cuda.path)
        return NativeAllocator(driver, headroom=-1.0, **options)

    return allocator


@pytest.mark.slow
def test_memory_is_mapped_accessible_and_given_back_at_the_end(make, fake_cuda):
    allocator = make(8)
    blocks = [allocator.allocate(size) for size in (512, 3 * CHUNK, CHUNK + 512)]
    for block, size in zip(blocks, (512, 3 * CHUNK, CHUNK + 512), strict=True):
        assert fake_cuda.usable(block, size)
        ctypes.memset(block, 7, size)
    assert fake_cuda.counts[0] == allocator.counters().created
    del allocator
    assert fake_cuda.counts == (0, 0, 0)


@pytest.mark.slow
def test_scattered_chunks_alias_at_one_range(make):
    allocator = make(8)
    blocks = [allocator.allocate(CHUNK) for _ in range(8)]
    # Blocks of one size lie in two runs in turn: every second one of either goes.
    kept = [block for i, block in enumerate(blocks) if i % 4 > 1]
    for block in blocks:
        if block not in kept:
            allocator.free(block)
    for block in kept:
        ctypes.memset(block, 9, CHUNK)
    joined = allocator.allocate(4 * CHUNK)
    assert allocator.counters().remapped >= 3
    ctypes.memset(joined, 1, 4 * CHUNK)
    for block in kept:
        assert set(ctypes.string_at(block, CHUNK)) == {9}


@pytest.mark.slow
def test_access_is_set_once_for_a_range(make, fake_cuda):
    allocator = make(64)
    allocator.allocate(64 * CHUNK)
    assert fake_cuda.calls("cuMemMap") == 64
    assert fake_cuda.calls("cuMemSetAccess") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "after"),
    [("cuMemMap", 0), ("cuMemMap", 2), ("cuMemSetAccess", 0), ("cuMemCreate", 2)],
)
def test_refusal_in_the_middle_loses_nothing(make, fake_cuda, function, after):
    allocator = make(8)
    kept = allocator.allocate(CHUNK)
    ctypes.memset(kept, 5, CHUNK)
    fake_cuda.fail(function, after)
    with pytest.raises(DeviceError, match=function):
        allocator.allocate(4 * CHUNK)
    # Whatever came before the refusal serves the next request.
    block = allocator.allocate(7 * CHUNK)
    assert fake_cuda.usable(block, 7 * CHUNK)
    ctypes.memset(block, 6, 7 * CHUNK)
    assert set(ctypes.string_at(kept, CHUNK)) == {5}
    allocator.free(block)
    allocator.free(kept)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0
    del allocator
    assert fake_cuda.counts == (0, 0, 0)


def test_refusal_to_remap_loses_nothing(make, fake_cuda):
    allocator = make(8)
    blocks = [allocator.allocate(CHUNK) for _ in range(8)]
    for i, block in enumerate(blocks):
        if i % 4 < 2:
            allocator.free(block)
    fake_cuda.fail("cuMemSetAccess")
    with pytest.raises(DeviceError, match="cuMemSetAccess"):
        allocator.allocate(4 * CHUNK)
    block = allocator.allocate(4 * CHUNK)
    assert fake_cuda.usable(block, 4 * CHUNK)
    assert allocator.counters().live_bytes == 8 * CHUNK


LACKS_MEMORY = 2


@pytest.mark.parametrize(
    ("function", "after", "times"),
    [
        ("cuMemMap", 0, 1),
        ("cuMemMap", 3, 1),
        ("cuMemSetAccess", 0, 1),
        # A range that has to be is asked for twice.
        ("cuMemAddressReserve", 0, 2),
    ],
)
def test_what_is_free_is_given_back_where_the_driver_lacks_memory(
    make, fake_cuda, function, after, times
):
    """Page tables lie in the device's own memory, which the cache holds."""
    allocator = make(8)
    kept = allocator.allocate(CHUNK)
    for stream in (0, 1, 2):
        allocator.free(allocator.allocate(2 * CHUNK, stream=stream))
    fake_cuda.fail(function, after, LACKS_MEMORY, times)
    block = allocator.allocate(5 * CHUNK, stream=3)
    assert fake_cuda.usable(block, 5 * CHUNK)
    counters = allocator.counters()
    assert counters.reserved_bytes == 6 * CHUNK
    assert counters.out_of_memory == 0
    allocator.free(block)
    allocator.free(kept)


@pytest.mark.parametrize("is_captured", [False, True])
def test_driver_that_lacks_memory_for_good_is_out_of_memory(
    make, fake_cuda, is_captured
):
    allocator = make(8)
    kept = allocator.allocate(CHUNK)
    ctypes.memset(kept, 5, CHUNK)
    allocator.free(allocator.allocate(2 * CHUNK))
    fake_cuda.capture(4, is_captured)
    fake_cuda.fail("cuMemMap", 0, LACKS_MEMORY, times=100)
    with pytest.raises(
        DeviceMemoryError, match=r"driver lacks memory: cuMemMap: CUDA_E"
    ):
        allocator.allocate(4 * CHUNK, stream=4)
    # While a graph is captured the host may not wait for what was free.
    left = 3 * CHUNK if is_captured else CHUNK
    assert allocator.counters().reserved_bytes >= left
    fake_cuda.fail("cuMemMap", times=0)
    fake_cuda.capture(4, False)
    block = allocator.allocate(4 * CHUNK, stream=4)
    assert fake_cuda.usable(block, 4 * CHUNK)
    assert set(ctypes.string_at(kept, CHUNK)) == {5}


def test_device_that_others_use_is_out_of_memory(make, fake_cuda):
    allocator = make(8)
    other = NativeAllocator(cuda_driver(0, library=fake_cuda.path))
    theirs = other.allocate(4 * CHUNK)
    with pytest.raises(DeviceMemoryError, match=r"8\.00 MiB are not ours.*nvidia-smi"):
        allocator.allocate(6 * CHUNK)
    other.free(theirs)
    other.trim()
    allocator.allocate(6 * CHUNK)


def test_stream_that_is_captured_is_asked_for_no_event(make, fake_cuda):
    allocator = make(8)
    # Freed on a stream that is captured then: nobody else can wait for it.
    block = allocator.allocate(8 * CHUNK, stream=5)
    allocator.free(block)
    fake_cuda.capture(5)
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(8 * CHUNK, stream=6)
    assert allocator.allocate(8 * CHUNK, stream=5) == block
    allocator.free(block)
    fake_cuda.capture(5, False)
    allocator.allocate(8 * CHUNK, stream=6)
    assert allocator.counters().stolen == 8


def test_block_that_a_captured_stream_uses_waits_for_its_end(make, fake_cuda):
    allocator = make(8)
    block = allocator.allocate(8 * CHUNK, stream=5)
    allocator.record_stream(block, 6)
    fake_cuda.capture(6)
    allocator.free(block)
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(8 * CHUNK, stream=5)
    fake_cuda.capture(6, False)
    assert allocator.allocate(8 * CHUNK, stream=5) == block


def test_capture_takes_memory_of_its_own_stream_and_of_the_device(make, fake_cuda):
    allocator = make(8)
    other = allocator.allocate(2 * CHUNK, stream=6)
    allocator.free(other)
    fake_cuda.capture(5)
    private = [allocator.allocate(CHUNK, stream=5, graph=1) for _ in range(6)]
    with pytest.raises(DeviceMemoryError):
        allocator.allocate(CHUNK, stream=5, graph=1)
    for block in private[::2]:
        allocator.free(block)
    # Joined without an event.
    allocator.allocate(3 * CHUNK, stream=5, graph=1)
    fake_cuda.capture(5, False)


def test_trim_leaves_what_a_captured_stream_used(make, fake_cuda):
    allocator = make(8)
    for stream in (5, 6):
        allocator.free(allocator.allocate(4 * CHUNK, stream=stream))
    fake_cuda.capture(5)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 4 * CHUNK
    fake_cuda.capture(5, False)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


CAPTURE_IMPLICIT, INVALID_HANDLE = 906, 400


def test_stream_that_must_be_left_alone_concerns_nobody_else(make, fake_cuda):
    # As the legacy stream, while a blocking one is captured.
    allocator = make(8)
    block = allocator.allocate(2 * CHUNK)
    allocator.record_stream(block, 5)
    fake_cuda.fail("cuStreamIsCapturing", 0, CAPTURE_IMPLICIT)
    recorded = fake_cuda.calls("cuEventRecord")
    allocator.free(block)
    assert fake_cuda.calls("cuEventRecord") == recorded
    assert allocator.counters().active_bytes == 2 * CHUNK
    assert allocator.allocate(8 * CHUNK, 7)
    assert allocator.counters().active_bytes == 8 * CHUNK


def test_stream_that_was_destroyed_ends_no_request_of_others(make, fake_cuda):
    allocator = make(8)
    allocator.free(allocator.allocate(2 * CHUNK, 5))
    fake_cuda.fail("cuStreamIsCapturing", 1, INVALID_HANDLE)  # 0 is the one that asks
    assert allocator.allocate(8 * CHUNK, 7)
    # It is done when the device is.
    assert fake_cuda.calls("cuCtxSynchronize") == 1
    allocator.trim()
    assert allocator.counters().active_bytes == 8 * CHUNK


def test_machine_without_cuda_says_so():
    with pytest.raises(DeviceError, match="no CUDA driver here"):
        cuda_driver(0, library="libcuda_that_is_nowhere.so")
    with pytest.raises(DeviceError, match="no CUDA driver here"):
        num_cuda_devices("libcuda_that_is_nowhere.so")


def test_driver_that_is_too_old_says_what_it_lacks():
    with pytest.raises(DeviceError, match="too old: it has no cuInit"):
        cuda_driver(0, library="libm.so.6")


def test_device_that_cannot_map_is_refused(fake_cuda):
    fake_cuda.configure(8 * CHUNK, devices=2, virtual_memory=False)
    with pytest.raises(DeviceError, match="device 0 has no virtual memory"):
        num_cuda_devices(fake_cuda.path)
    with pytest.raises(DeviceError, match="device 1 has no virtual memory"):
        cuda_driver(1, library=fake_cuda.path)


def test_device_that_is_not_there_is_refused(fake_cuda):
    assert num_cuda_devices(fake_cuda.path) == 1
    with pytest.raises(DeviceError, match="cuDeviceGet"):
        cuda_driver(3, library=fake_cuda.path)


def test_layout_is_that_of_the_cuda_header(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    header = Path("/usr/local/cuda/include/cuda.h")
    if compiler is None or not header.exists():
        pytest.skip("needs a C++ compiler and CUDA's header")
    command = [compiler, "-std=c++17", f"-I{header.parent}", "-Wall", "-Werror"]
    source = CSRC / "checks" / "check_cuda_abi.cpp"
    subprocess.run([*command, "-c", str(source), "-o", str(tmp_path / "o")], check=True)


def test_refused_question_loses_no_block_and_gives_none_twice(make, fake_cuda):
    allocator = make(8)
    blocks = [allocator.allocate(CHUNK) for _ in range(8)]
    for block in blocks:
        allocator.record_stream(block, 5)
        allocator.free(block)
    for after in (0, 1, 3):
        fake_cuda.fail("cuEventQuery", after)
        with contextlib.suppress(DeviceError):
            allocator.trim()
    allocator.trim()
    counters = allocator.counters()
    assert (counters.active_bytes, counters.reserved_bytes) == (0, 0)
    assert allocator.allocate(8 * CHUNK)


@pytest.mark.parametrize("function", ["cuEventRecord", "cuStreamIsCapturing"])
def test_block_whose_free_is_refused_lives_on(make, fake_cuda, function):
    allocator = make(4)
    block = allocator.allocate(CHUNK)
    allocator.record_stream(block, 5)
    fake_cuda.fail(function)
    with pytest.raises(DeviceError, match=function):
        allocator.free(block)
    assert allocator.counters().live_bytes == CHUNK
    allocator.free(block)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


@pytest.mark.parametrize("function", ["cuMemRelease", "cuMemUnmap"])
@pytest.mark.parametrize("after", [0, 2])
def test_refused_release_leaves_every_chunk_with_one_owner(
    make, fake_cuda, function, after
):
    allocator = make(8)
    for block in [allocator.allocate(CHUNK) for _ in range(6)]:
        allocator.free(block)
    fake_cuda.fail(function, after)
    with pytest.raises(DeviceError, match=function):
        allocator.trim()
    blocks = [allocator.allocate(CHUNK) for _ in range(8)]
    for number, block in enumerate(blocks):
        ctypes.memset(block, number, CHUNK)
    for number, block in enumerate(blocks):
        assert set(ctypes.string_at(block, CHUNK)) == {number}


def test_graphs_that_are_gone_leave_their_addresses_to_the_next(make, fake_cuda):
    allocator = make(8)
    for graph in range(1, 50):
        block = allocator.allocate(CHUNK, graph=graph)
        ctypes.memset(block, 3, CHUNK)
        allocator.free(block)
        allocator.release_graph(graph)
    assert fake_cuda.calls("cuMemAddressReserve") <= 2


def test_graph_does_not_get_what_a_tensor_of_another_still_holds(make):
    allocator = make(8)
    kept = allocator.allocate(CHUNK, graph=1)
    ctypes.memset(kept, 4, CHUNK)
    allocator.release_graph(1)
    for block in [allocator.allocate(CHUNK, graph=2) for _ in range(7)]:
        ctypes.memset(block, 8, CHUNK)
    assert set(ctypes.string_at(kept, CHUNK)) == {4}


def test_addresses_grow_with_what_is_used(make, fake_cuda):
    """A stream that uses little has few addresses; a range goes on where it ends."""
    allocator = make(256)
    blocks = [allocator.allocate(CHUNK)]
    ranges = fake_cuda.calls("cuMemAddressReserve")
    blocks += [allocator.allocate(30 * CHUNK) for _ in range(8)]
    # Twice as many each time, in each of two runs.
    assert ranges < fake_cuda.calls("cuMemAddressReserve") <= ranges + 8
    for block, chunks in zip(blocks, [1] + 8 * [30], strict=True):
        assert fake_cuda.usable(block, chunks * CHUNK)
    for block in blocks:
        allocator.free(block)
    allocator.trim()
    whole = allocator.allocate(250 * CHUNK)
    assert fake_cuda.usable(whole, 250 * CHUNK)


def test_range_that_cannot_go_on_is_followed_by_another(make, fake_cuda):
    allocator = make(256)
    blocks = [allocator.allocate(CHUNK)]
    fake_cuda.fail("cuMemAddressReserve", 0, LACKS_MEMORY, 1)
    blocks.append(allocator.allocate(40 * CHUNK))
    fake_cuda.fail("cuMemAddressReserve", 0, LACKS_MEMORY, 100)
    # What there is serves what fits there.
    blocks.append(allocator.allocate(12 * CHUNK))
    for block, chunks in zip(blocks, (1, 40, 12), strict=True):
        assert fake_cuda.usable(block, chunks * CHUNK)


def test_all_addresses_go_back(make, fake_cuda):
    allocator = make(256)
    for stream in range(4):
        for size in (1, 3, 40):
            allocator.allocate(size * CHUNK, stream=stream)
    assert fake_cuda.counts[2] == 8
    del allocator
    assert fake_cuda.counts == (0, 0, 0)
