"""Memory that processes share: chunks that are mapped in each of them."""

import contextlib
import ctypes
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from share_reader import contents, hold_shared, read_shared

from drivetrain_memory import DeviceError, DeviceMemoryError, MemoryUseError
from drivetrain_memory._native import (
    NativeAllocator,
    cuda_driver,
    extension,
    host_driver,
)

CHUNK = 2 * 2**20
STARTED = multiprocessing.get_context("spawn")


@pytest.fixture
def allocator(strict):
    ctypes.CDLL(strict).strict_configure(2, ctypes.c_uint64(64 * CHUNK))
    return NativeAllocator(cuda_driver(0, library=strict), headroom=-1.0)


@contextlib.contextmanager
def other_process(function, library, pid, place, size):
    """Another process that has what one shares, and the connection to it."""
    here, there = STARTED.Pipe()
    arguments = (library, pid, place, size, there)
    process = STARTED.Process(target=function, args=arguments)
    process.start()
    there.close()
    yield process, here
    process.join(60)
    assert process.exitcode is not None


def answer_of(connection):
    assert connection.poll(60)
    return connection.recv()


def place_of(shared):
    return list(shared.chunks), shared.lease, shared.offset


def fill_all(allocator):
    """Takes all that is to be had; returns how many chunks."""
    count = 0
    with contextlib.suppress(DeviceMemoryError):
        while True:
            allocator.allocate(CHUNK, tag=9)
            count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("size", [700, CHUNK, 3 * CHUNK + 512, 9 * CHUNK])
def test_two_processes_have_the_same_memory(strict, allocator, size):
    allocator.allocate(1000)
    at = allocator.allocate(size)
    ctypes.memmove(at, contents(1, size), size)
    place = place_of(allocator.share(at))
    with other_process(read_shared, strict, os.getpid(), place, size) as (_, other):
        assert answer_of(other) is True
        assert answer_of(other) == "written"
        assert ctypes.string_at(at, size) == contents(2, size)
        ctypes.memmove(at, contents(3, size), size)
        other.send("go on")
        assert answer_of(other) is True
        assert answer_of(other) == "closed"
        # It lives, and has nothing any more.
        allocator.free(at)
        allocator.trim()
        assert allocator.counters().active_bytes == 1024
        other.send("end")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["by itself", "by SIGKILL"])
def test_what_is_freed_waits_for_the_other_process(strict, allocator, ends):
    size = 30 * CHUNK
    at = allocator.allocate(size, tag=1)
    ctypes.memmove(at, contents(1, size), size)
    place = place_of(allocator.share(at))
    # It was sent, and is not yet there.
    allocator.free(at)
    assert allocator.counters().active_bytes == size
    with other_process(hold_shared, strict, os.getpid(), place, size) as (
        process,
        other,
    ):
        assert answer_of(other) is True
        assert fill_all(allocator) < 64 - 30
        for _ in range(2):
            with pytest.raises(DeviceMemoryError, match=r"60.00 MiB are .* used by"):
                allocator.allocate(10 * CHUNK)
        with pytest.raises(MemoryUseError, match="other processes have some memory"):
            allocator.sleep(1, keeps=False)
        if ends == "by itself":
            other.send("end")
        else:
            process.kill()
        process.join(60)
        open_files = set(Path("/proc/self/fd").iterdir())
        allocator.free(allocator.allocate(10 * CHUNK))
        # Descriptors of the chunks and of the lease went with it.
        assert len(open_files - set(Path("/proc/self/fd").iterdir())) == 31
    allocator.sleep(1, keeps=False)


def test_what_nobody_takes_stays(allocator):
    at = allocator.allocate(CHUNK)
    shared = allocator.share(at)
    again = allocator.share(at)
    assert place_of(shared) == place_of(again)
    for expected in (CHUNK, CHUNK, 0):
        if allocator.counters().live_bytes:
            allocator.free(at)
        allocator.trim()
        assert allocator.counters().active_bytes == expected
        if expected:
            extension().take_once(os.getpid(), shared.lease)


@pytest.mark.slow
def test_process_that_has_ended_shares_nothing_any_more(strict, allocator):
    ended = subprocess.Popen(["sleep", "0"])
    ended.wait()
    place = [3], (4, 1), 0
    with other_process(read_shared, strict, ended.pid, place, 1) as (_, other):
        assert "cannot be fetched: No such process" in answer_of(other)


def test_descriptor_that_is_none_is_refused(strict, allocator):
    driver = cuda_driver(0, library=strict)
    opened = extension().OpenedStorage
    lease = allocator.share(allocator.allocate(1)).lease
    open_files = set(Path("/proc/self/fd").iterdir())
    for chunks, of_lease in (([2**30], lease), ([3], (2**30, 1)), ([3], (-1, 1))):
        with pytest.raises(MemoryUseError, match="Bad file descriptor"):
            opened(driver, os.getpid(), chunks, of_lease, 0, 1)
    read_end, write_end = os.pipe()
    with pytest.raises(DeviceError, match="cuMemImportFromShareableHandle"):
        opened(driver, os.getpid(), [read_end], lease, 0, 1)
    os.close(read_end)
    os.close(write_end)
    assert set(Path("/proc/self/fd").iterdir()) == open_files


def test_what_lives_and_is_awake_alone_is_shared(allocator):
    at = allocator.allocate(3 * CHUNK, tag=1)
    shared = allocator.share(at + CHUNK + 512)
    assert (len(shared.chunks), shared.offset) == (3, CHUNK + 512)
    with pytest.raises(MemoryUseError, match="other processes have some"):
        allocator.sleep(1, keeps=True)
    extension().take_once(os.getpid(), shared.lease)
    allocator.sleep(1, keeps=True)
    with pytest.raises(MemoryUseError, match="memory with the tag of number 1 sleeps"):
        allocator.share(at)
    allocator.wake(1)
    # What was made after a sleep lies elsewhere.
    extension().take_once(os.getpid(), allocator.share(at).lease)
    allocator.free(at)
    with pytest.raises(MemoryUseError, match=r"no live block.*clone\(\)"):
        allocator.share(at)


def test_refusal_in_the_middle_leaves_nothing_shared(allocator, strict):
    at = allocator.allocate(3 * CHUNK)
    open_files = set(Path("/proc/self/fd").iterdir())
    library = ctypes.CDLL(strict)
    library.strict_fail(b"cuMemExportToShareableHandle", 1, 1, 1)
    with pytest.raises(DeviceError, match="cuMemExportToShareableHandle"):
        allocator.share(at)
    assert set(Path("/proc/self/fd").iterdir()) == open_files
    allocator.free(at)
    assert allocator.counters().active_bytes == 0
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


# A process of its own lowers its limit: threads of other tests that wait in `accept`
# hold descriptors that no listing shows.
SHARES_A_LARGE_BLOCK = """
import ctypes, os, resource, sys
from drivetrain_memory._native import NativeAllocator, cuda_driver, extension

library, chunk = sys.argv[1], 2**21
ctypes.CDLL(library).strict_configure(2, ctypes.c_uint64(64 * chunk))
allocator = NativeAllocator(cuda_driver(0, library=library), headroom=-1.0)
at = allocator.allocate(40 * chunk)
opened = max(int(name) for name in os.listdir("/proc/self/fd"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 20, hard))
shared = allocator.share(at)
assert len(set(shared.chunks)) == 40
extension().take_once(os.getpid(), shared.lease)
"""


def test_large_block_has_as_many_descriptors_as_it_needs(strict):
    command = [sys.executable, "-c", SHARES_A_LARGE_BLOCK, strict]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SHARES_TOO_MUCH = """
import ctypes, resource, sys
from drivetrain_memory import DeviceError
from drivetrain_memory._native import NativeAllocator, cuda_driver

library, chunk = sys.argv[1], 2**21
ctypes.CDLL(library).strict_configure(2, ctypes.c_uint64(64 * chunk))
allocator = NativeAllocator(cuda_driver(0, library=library), headroom=-1.0)
at = allocator.allocate(60 * chunk)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    allocator.share(at)
except DeviceError as error:
    assert "a file descriptor each" in str(error), error
else:
    raise AssertionError
allocator.free(at)
assert allocator.counters().active_bytes == 0
open("/dev/null").close()
"""


def test_too_few_descriptors_are_an_error_that_says_so(strict):
    command = [sys.executable, "-c", SHARES_TOO_MUCH, strict]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_device_that_shares_nothing_says_so():
    allocator = NativeAllocator(host_driver(64 * CHUNK, CHUNK))
    at = allocator.allocate(100)
    with pytest.raises(DeviceError, match="shares nothing"):
        allocator.share(at)
