"""What must not go wrong with memory that processes share: old messages, forks, descriptors."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain_memory import DeviceError, MemoryUseError
from drivetrain_memory._native import NativeAllocator, cuda_driver, extension

CHUNK = 2 * 2**20


@pytest.fixture
def library(strict):
    library = ctypes.CDLL(strict)
    library.strict_configure(2, ctypes.c_uint64(64 * CHUNK))
    return library


@pytest.fixture
def allocator(library, strict):
    return NativeAllocator(cuda_driver(0, library=strict), headroom=-1.0)


@pytest.fixture
def take(library, strict):
    """Takes what is shared, as another process would."""
    driver = cuda_driver(0, library=strict)

    def take(shared, size=1, *, offset=None):
        place = list(shared.chunks), shared.lease
        offset = shared.offset if offset is None else offset
        return extension().OpenedStorage(driver, os.getpid(), *place, offset, size)

    return take


@contextlib.contextmanager
def child():
    """A child of this process that does nothing, and says when it is there."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, b"here")
        signal.pause()
        os._exit(0)
    assert os.read(read_end, 4) == b"here"
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)


def open_files(pid="self"):
    return {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}


def test_message_that_was_taken_before_shows_nobodys_memory(allocator, take):
    first = allocator.allocate(CHUNK)
    message = allocator.share(first)
    taken = take(message)
    # More may have it, as long as somebody has.
    again = take(message)
    del taken, again
    allocator.free(first)
    allocator.trim()
    second = allocator.allocate(CHUNK)
    later = allocator.share(second)
    # The same descriptors, of other memory.
    assert list(later.chunks) == list(message.chunks)
    assert later.lease[0] == message.lease[0]
    for use in (take, lambda old: extension().take_once(os.getpid(), old.lease)):
        with pytest.raises(MemoryUseError, match="shares this memory no longer"):
            use(message)
    # Which counts as taken by nobody.
    allocator.free(second)
    allocator.trim()
    assert allocator.counters().active_bytes == CHUNK
    take(later)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 3 * CHUNK + 1),
        (3 * CHUNK - 1, 2),
        (2**63, 1),
        (1, 2**64 - 1),
        (4 * CHUNK, 0),
    ],
)
def test_place_beyond_the_chunks_is_refused(allocator, take, offset, size):
    shared = allocator.share(allocator.allocate(3 * CHUNK))
    with pytest.raises(MemoryUseError, match="do not lie in the 6291456 bytes"):
        take(shared, size, offset=offset)
    assert take(shared, 3 * CHUNK).__cuda_array_interface__["shape"] == (3 * CHUNK,)


def test_child_of_who_has_the_memory_keeps_none_of_it(allocator, take):
    at = allocator.allocate(CHUNK)
    taken = take(allocator.share(at))
    with child():
        allocator.free(at)
        allocator.trim()
        assert allocator.counters().active_bytes == CHUNK
        del taken
        allocator.trim()
        assert allocator.counters().reserved_bytes == 0


def test_child_of_who_shares_keeps_none_of_it(allocator, take):
    shared = allocator.share(allocator.allocate(3 * CHUNK))
    files = {*shared.chunks, shared.lease[0]}
    with child() as pid:
        assert not files & open_files(pid)
        # It ends nothing either.
        assert take(shared, 3 * CHUNK)


def test_child_that_frees_what_its_parent_shares_ends_nothing(allocator, take):
    at = allocator.allocate(CHUNK)
    ctypes.memset(at, 7, CHUNK)
    shared = allocator.share(at)
    pid = os.fork()
    if pid == 0:
        allocator.free(at)
        allocator.trim()
        # Whether a number that was closed is closed once more.
        file = os.open("/dev/null", os.O_RDONLY)
        del allocator
        os._exit(0 if os.fstat(file) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    taken = take(shared, CHUNK)
    place = taken.__cuda_array_interface__["data"][0]
    assert ctypes.string_at(place, CHUNK) == b"\7" * CHUNK
    assert allocator.counters().live_bytes == CHUNK


def test_memory_dropped_in_a_capture_is_had_until_it_is_unmapped(
    allocator, take, library
):
    first, second = allocator.allocate(CHUNK), allocator.allocate(CHUNK)
    taken = take(allocator.share(first))
    library.strict_capture(ctypes.c_uint64(77), 1)
    # Work of the capture may use it; the host may not wait.
    del taken
    library.strict_capture(ctypes.c_uint64(77), 0)
    allocator.free(first)
    allocator.trim()
    assert allocator.counters().active_bytes == 2 * CHUNK
    other = take(allocator.share(second))
    allocator.trim()
    assert allocator.counters().active_bytes == CHUNK
    del other


# Processes of their own count descriptors: threads of other tests that wait in `accept`
# hold some that no listing shows.
BEGINNING = """
import ctypes, os, resource, sys
from drivetrain_memory import DeviceError, MemoryUseError
from drivetrain_memory._native import NativeAllocator, cuda_driver, extension

library, chunk = sys.argv[1], 2**21
ctypes.CDLL(library).strict_configure(2, ctypes.c_uint64(64 * chunk))
driver = cuda_driver(0, library=library)
allocator = NativeAllocator(driver, headroom=-1.0)

def take(shared, size=1):
    place = list(shared.chunks), shared.lease, shared.offset
    return extension().OpenedStorage(driver, os.getpid(), *place, size)

"""


def run_alone(script, strict):
    command = [sys.executable, "-c", BEGINNING + script, strict]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SHARES_THOUSANDS = """
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 50, hard))
blocks = [allocator.allocate(700) for _ in range(1500)]
shared = [allocator.share(at) for at in blocks]
# Those who take them need one each.
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 3100, hard))
taken = [take(one) for one in shared]
for at in blocks:
    allocator.free(at)
taken.clear()
allocator.trim()
assert allocator.counters().reserved_bytes == 0
assert len(os.listdir("/proc/self/fd")) == before
"""


def test_thousands_of_small_blocks_have_the_descriptors_they_need(strict):
    run_alone(SHARES_THOUSANDS, strict)


SHARES_ONE_AFTER_THE_OTHER = """
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

# What stays live, and nobody has any more, needs no descriptor.
for _ in range(300):
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    lease = allocator.share(allocator.allocate(700)).lease
    for file in spare:
        os.close(file)
    extension().take_once(os.getpid(), lease)

# What is still to be taken does.
shared = []
try:
    while True:
        shared.append(allocator.share(allocator.allocate(700)))
except DeviceError as error:
    assert "see ulimit -n" in str(error), error
assert len(shared) > 20
taken = []
try:
    for one in shared:
        taken.append(take(one))
except MemoryUseError as error:
    assert "each tensor has a file descriptor here" in str(error), error
else:
    raise AssertionError
"""


def test_descriptors_that_are_used_up_are_those_in_use(strict):
    run_alone(SHARES_ONE_AFTER_THE_OTHER, strict)


REFUSED = ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap"]


@pytest.mark.parametrize("function", [*REFUSED, "cuMemSetAccess"])
@pytest.mark.parametrize("after", [0, 1])
def test_receiver_whose_driver_refuses_has_nothing(
    allocator, take, library, function, after
):
    at = allocator.allocate(3 * CHUNK)
    first = take(allocator.share(at))
    del first
    shared = allocator.share(at)
    library.strict_count.restype = ctypes.c_uint64
    before = [library.strict_count(kind) for kind in range(3)]
    files = open_files()
    library.strict_fail(function.encode(), after, 1, 1)
    try:
        taken = take(shared, 3 * CHUNK)
    except DeviceError:
        assert [library.strict_count(kind) for kind in range(3)] == before
        assert open_files() == files
    else:
        assert after > 0
        del taken
    library.strict_fail(function.encode(), 0, 0, 0)
    allocator.free(at)
    allocator.trim()
    assert allocator.counters().reserved_bytes == 0
