"""The strict double of the CUDA driver keeps the rules that its documentation states."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parents[1] / "csrc" / "checks"
CHUNK = 2 << 20

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_HANDLE = 400
NOT_READY = 600
CAPTURE_UNSUPPORTED = 900
CAPTURE_ISOLATION = 905
CAPTURE_IMPLICIT = 906

NON_BLOCKING = 1
READ_WRITE = 3
RELAXED = 2


class Location(ctypes.Structure):
    """As in cuda.h."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """As in cuda.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """As in cuda.h."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


U64 = ctypes.c_uint64


class Driver:
    """The driver's functions, with numbers for handles; each call may be expected to fail."""

    def __init__(self, path, device=0):
        """Loads it, with the context of a device current."""
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.strict_configure(2, U64(16 * CHUNK))
        for name in ("count", "offences", "free", "submit", "submit_gate"):
            getattr(self.library, f"strict_{name}").restype = U64
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments, result=0):
        """Calls a function, whose result is to be this one."""
        given = [U64(a) if isinstance(a, int) else a for a in arguments]
        assert getattr(self.library, name)(*given) == result, name

    def make(self, name, *arguments, result=0):
        """Calls a function that makes something, and returns its handle."""
        made = U64()
        self.call(name, ctypes.byref(made), *arguments, result=result)
        return made.value

    def create(self, chunks=1, *, shareable=False, result=0):
        """Makes physical memory."""
        properties = Properties(1, int(shareable), Location(1, 0))
        size = ctypes.c_size_t(chunks * CHUNK)
        return self.make(
            "cuMemCreate", size, ctypes.byref(properties), 0, result=result
        )

    def map(self, handle, at, chunks=1):
        """Maps it, and makes it accessible."""
        self.call("cuMemMap", at, chunks * CHUNK, 0, handle, 0)
        access = Access(Location(1, 0), READ_WRITE)
        self.call("cuMemSetAccess", at, chunks * CHUNK, ctypes.byref(access), 1)

    def reserve(self, chunks):
        """Reserves addresses."""
        return self.make("cuMemAddressReserve", chunks * CHUNK, 0, 0, 0)

    def offence(self, which):
        """Counts dead streams, events, memory; spoilt captures; hangs; faults."""
        return self.library.strict_offences(which)


@pytest.fixture(scope="module")
def strict_cuda_file(tmp_path_factory):
    """Compiles the double once."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    target = tmp_path_factory.mktemp("cuda") / "strict_cuda.so"
    files = [str(CHECKS / "strict_cuda.cpp"), *map(str, CHECKS.glob("strict/*.cpp"))]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [compiler, *flags, *files, "-pthread", "-ldl", "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture
def driver(strict_cuda_file, tmp_path):
    """Returns a driver of the test's own: a copy is a library of its own."""
    found = Driver(shutil.copy(strict_cuda_file, tmp_path / "libcuda_of_test.so"))
    yield found
    found.call("cuCtxPopCurrent_v2", None)


@pytest.mark.slow
def test_memory_is_free_with_its_last_handle_and_mapping(driver):
    handle, at = driver.create(2), driver.reserve(4)
    driver.map(handle, at, 2)
    # Its page table is memory too.
    assert driver.library.strict_free(0) == 14 * CHUNK - (64 << 10)
    driver.call("cuMemMap", at + CHUNK, 2 * CHUNK, 0, handle, 0, result=INVALID_VALUE)
    again = driver.make("cuMemRetainAllocationHandle", ctypes.c_void_p(at))
    assert again == handle
    for _ in range(2):
        driver.call("cuMemRelease", handle)
    driver.call("cuMemRelease", handle, result=INVALID_VALUE)
    assert driver.offence(2) == 1
    driver.call("cuMemAddressFree", at, 4 * CHUNK, result=INVALID_VALUE)
    driver.call("cuMemUnmap", at, CHUNK, result=INVALID_VALUE)
    assert driver.library.strict_count(0) == 1
    driver.call("cuMemUnmap", at, 2 * CHUNK)
    driver.call("cuMemAddressFree", at, 4 * CHUNK)
    assert [driver.library.strict_count(kind) for kind in range(3)] == [0, 0, 0]
    assert driver.library.strict_free(0) == 16 * CHUNK


@pytest.mark.slow
def test_what_one_address_holds_its_other_address_holds(driver):
    handle, at = driver.create(), driver.reserve(2)
    for page in range(2):
        driver.map(handle, at + page * CHUNK)
    ctypes.memset(at + 5, 7, 3)
    assert ctypes.string_at(at + CHUNK + 4, 5) == b"\0\7\7\7\0"


@pytest.mark.slow
@pytest.mark.parametrize("result", [OUT_OF_MEMORY, INVALID_VALUE])
def test_call_is_refused_when_it_is_told_to(driver, result):
    driver.library.strict_fail(b"cuMemCreate", 1, result, 2)
    driver.create()
    for _ in range(2):
        driver.create(result=result)
    driver.create()
    driver.library.strict_fail_share(b"cuMemCreate", U64(1_000_000), result)
    driver.create(result=result)


_IMPORT = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_strict_cuda import Driver
driver = Driver(Path({path!r}))
handle = driver.make("cuMemImportFromShareableHandle", ctypes.c_void_p({file}), 1)
at = driver.reserve(1)
driver.map(handle, at)
assert ctypes.string_at(at, 4) == b"here"
ctypes.memmove(at + 4, b"there", 5)
assert driver.library.strict_free(0) >= 15 * (2 << 20)
"""


@pytest.mark.slow
def test_another_process_maps_what_is_shared(driver):
    private = driver.create()
    file = ctypes.c_int(-1)
    driver.call(
        "cuMemExportToShareableHandle",
        ctypes.byref(file),
        private,
        1,
        0,
        result=INVALID_VALUE,
    )
    handle, at = driver.create(shareable=True), driver.reserve(1)
    driver.map(handle, at)
    ctypes.memmove(at, b"here", 4)
    driver.call("cuMemExportToShareableHandle", ctypes.byref(file), handle, 1, 0)
    tests = str(Path(__file__).parent)
    code = _IMPORT.format(tests=tests, path=str(driver.path), file=file.value)
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, pass_fds=[file.value])
    os.close(file.value)
    assert ctypes.string_at(at, 9) == b"herethere"


@pytest.mark.slow
def test_copy_happens_when_its_stream_comes_to_it(driver):
    stream = driver.make("cuStreamCreate", NON_BLOCKING)
    at = driver.reserve(1)
    driver.map(driver.create(), at)
    pinned = driver.make("cuMemHostAlloc", 16, 0)
    ctypes.memset(pinned, 1, 16)
    driver.call("cuMemcpyHtoDAsync_v2", at, pinned, 16, stream)
    ctypes.memset(pinned, 2, 16)
    assert ctypes.string_at(at, 1) == b"\0"
    driver.call("cuStreamQuery", stream, result=NOT_READY)
    driver.call("cuStreamSynchronize", stream)
    assert ctypes.string_at(at, 16) == b"\2" * 16
    # What is not pinned is taken along at once.
    data = ctypes.create_string_buffer(b"\3" * 16)
    driver.call("cuMemcpyHtoDAsync_v2", at, data, 16, stream)
    ctypes.memset(data, 4, 16)
    back = ctypes.create_string_buffer(16)
    driver.call("cuMemcpyDtoHAsync_v2", back, at, 16, stream)
    assert back.raw == b"\3" * 16
    assert driver.offence(5) == 0
    unmapped = driver.reserve(1)
    driver.call("cuMemcpyHtoDAsync_v2", unmapped, data, 16, stream)
    driver.call("cuStreamSynchronize", stream)
    assert driver.offence(5) == 1


@pytest.mark.slow
def test_wait_that_cannot_end_is_a_hang(driver):
    streams = [driver.make("cuStreamCreate", NON_BLOCKING) for _ in range(2)]
    events = [driver.make("cuEventCreate", 0) for _ in streams]
    gate = driver.library.strict_submit_gate(U64(streams[0]))
    driver.call("cuEventRecord", events[0], streams[0])
    driver.call("cuEventQuery", events[0], result=NOT_READY)
    driver.call("cuStreamWaitEvent", streams[1], events[0], 0)
    driver.library.strict_submit_opening(U64(streams[1]), U64(gate))
    driver.call("cuCtxSynchronize")
    assert driver.offence(4) > 0
    # One whose opening comes by itself is none.
    before = driver.offence(4)
    gate = driver.library.strict_submit_gate(U64(streams[0]))
    driver.library.strict_submit_opening(U64(streams[1]), U64(gate))
    driver.call("cuStreamSynchronize", streams[0])
    assert driver.offence(4) == before


@pytest.mark.slow
def test_destroyed_stream_does_its_work_and_takes_no_more(driver):
    stream = driver.make("cuStreamCreate", NON_BLOCKING)
    event = driver.make("cuEventCreate", 0)
    driver.library.strict_submit(U64(stream))
    driver.call("cuEventRecord", event, stream)
    driver.call("cuStreamDestroy_v2", stream)
    driver.call("cuEventRecord", event, stream, result=INVALID_HANDLE)
    assert driver.offence(0) == 1
    driver.call("cuEventQuery", event, result=NOT_READY)
    driver.call("cuCtxSynchronize")
    driver.call("cuEventQuery", event)
    driver.call("cuEventDestroy_v2", event)
    driver.call("cuEventQuery", event, result=INVALID_HANDLE)
    assert driver.offence(1) == 1


@pytest.mark.slow
def test_capture_is_spoilt_by_what_may_not_be_called(driver):
    stream = driver.make("cuStreamCreate", 0)
    other = driver.make("cuStreamCreate", NON_BLOCKING)
    event, before = (driver.make("cuEventCreate", 0) for _ in range(2))
    driver.library.strict_submit(U64(other))
    driver.call("cuEventRecord", before, other)

    def spoils(*call, result):
        driver.library.strict_capture(U64(stream), 1)
        spoilt = driver.offence(3)
        driver.call(*call, result=result)
        driver.library.strict_capture(U64(stream), 0)
        return driver.offence(3) > spoilt

    assert spoils("cuEventQuery", before, result=CAPTURE_UNSUPPORTED)
    relaxed = ctypes.c_int(RELAXED)
    driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(relaxed))
    assert not spoils("cuEventQuery", before, result=NOT_READY)
    assert spoils("cuCtxSynchronize", result=CAPTURE_UNSUPPORTED)
    assert spoils("cuEventRecord", event, 0, result=CAPTURE_IMPLICIT)
    assert spoils("cuStreamWaitEvent", stream, before, 0, result=CAPTURE_ISOLATION)
    status = ctypes.c_int(-1)
    driver.library.strict_capture(U64(stream), 1)
    implicit = ("cuStreamIsCapturing", 0, ctypes.byref(status))
    driver.call(*implicit, result=CAPTURE_IMPLICIT)
    # Who waits for an event of the capture is part of it.
    driver.call("cuEventRecord", event, stream)
    driver.call("cuStreamWaitEvent", other, event, 0)
    driver.call("cuStreamIsCapturing", other, ctypes.byref(status))
    assert status.value == 1
    driver.library.strict_capture(U64(stream), 0)
    driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(relaxed))


@pytest.mark.slow
def test_event_of_another_context_is_refused(driver):
    stream = driver.make("cuStreamCreate", NON_BLOCKING)
    context = ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    driver.call("cuCtxPushCurrent_v2", context)
    event = driver.make("cuEventCreate", 0)
    driver.call("cuEventRecord", event, stream, result=INVALID_HANDLE)
    driver.call("cuCtxPopCurrent_v2", None)
