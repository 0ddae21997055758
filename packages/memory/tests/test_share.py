"""Memory that processes share: chunks that are mapped in each of them."""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from share_reader import contents, read_shared

from drivetrain_memory import DeviceError, MemoryUseError
from drivetrain_memory._native import (
    NativeAllocator,
    cuda_driver,
    extension,
    host_driver,
)

CHUNK = 2 * 2**20
STARTED = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """Returns the file of a driver whose memory processes can share."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    checks = Path(__file__).parents[1] / "csrc" / "checks"
    library = tmp_path_factory.mktemp("strict") / "libstrict_cuda.so"
    sources = [checks / "strict_cuda.cpp", *(checks / "strict").glob("*.cpp")]
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run(
        [*command, *map(str, sources), "-ldl", "-o", str(library)], check=True
    )
    return str(library)


@pytest.fixture
def allocator(strict):
    ctypes.CDLL(strict).strict_configure(2, ctypes.c_uint64(64 * CHUNK))
    return NativeAllocator(cuda_driver(0, library=strict), headroom=-1.0)


@contextlib.contextmanager
def reading(library, pid, shared, size):
    """Another process that reads what one shares, and the connection to it."""
    here, there = STARTED.Pipe()
    arguments = (library, pid, shared, size, there)
    process = STARTED.Process(target=read_shared, args=arguments)
    process.start()
    there.close()
    yield here
    process.join(60)
    assert process.exitcode == 0


def answer_of(connection):
    assert connection.poll(60)
    return connection.recv()


@pytest.mark.slow
@pytest.mark.parametrize("size", [700, CHUNK, 3 * CHUNK + 512, 9 * CHUNK])
def test_two_processes_have_the_same_memory(strict, allocator, size):
    allocator.allocate(1000)
    at = allocator.allocate(size)
    ctypes.memmove(at, contents(1, size), size)
    extension().allow_fetching()
    shared = allocator.share(at)
    with reading(strict, os.getpid(), shared, size) as other:
        assert answer_of(other) is True
        assert answer_of(other) == "written"
        assert ctypes.string_at(at, size) == contents(2, size)
        ctypes.memmove(at, contents(3, size), size)
        other.send("go on")
        assert answer_of(other) is True
        assert answer_of(other) == "closed"
    for file in shared[0]:
        os.close(file)
    allocator.free(at)


@pytest.mark.slow
def test_process_that_has_ended_shares_nothing_any_more(strict, allocator):
    ended = subprocess.Popen(["sleep", "0"])
    ended.wait()
    with reading(strict, ended.pid, ([3], 0), 1) as other:
        assert "cannot be fetched: No such process" in answer_of(other)


def test_descriptor_that_is_none_is_refused(strict):
    driver = cuda_driver(0, library=strict)
    open_files = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(MemoryUseError, match="Bad file descriptor"):
        extension().SharedMemory(driver, os.getpid(), [2**30])
    read_end, write_end = os.pipe()
    with pytest.raises(DeviceError, match="cuMemImportFromShareableHandle"):
        extension().SharedMemory(driver, os.getpid(), [read_end])
    os.close(read_end)
    os.close(write_end)
    assert set(Path("/proc/self/fd").iterdir()) == open_files


def test_what_lives_and_is_awake_alone_is_shared(allocator):
    at = allocator.allocate(3 * CHUNK, tag=1)
    files, offset = allocator.share(at + CHUNK + 512)
    assert (len(files), offset) == (2, 512)
    for file in files:
        os.close(file)
    allocator.sleep(1, keeps=True)
    with pytest.raises(MemoryUseError, match="no live block that is awake"):
        allocator.share(at)
    allocator.wake(1)
    allocator.free(at)
    with pytest.raises(MemoryUseError, match="no live block that is awake"):
        allocator.share(at)


def test_device_that_shares_nothing_says_so():
    allocator = NativeAllocator(host_driver(64 * CHUNK, CHUNK))
    at = allocator.allocate(100)
    with pytest.raises(DeviceError, match="shares nothing"):
        allocator.share(at)
