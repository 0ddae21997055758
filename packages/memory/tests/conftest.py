"""Long checks run where they are asked for; a CUDA driver that needs no GPU."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain_memory import _native

PACKAGE = Path(__file__).parents[1]
CSRC = PACKAGE / "csrc"

# What records the traces that ship is a package, `recordings`.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(config, items):
    """Leaves out what is marked `faults`, unless `-m` asks for it; skips without a library."""
    if _native._missing is not None:
        lacks = pytest.mark.skip(reason=f"there is no allocator: {_native._missing}")
        for item in items:
            if PACKAGE in item.path.parents:
                item.add_marker(lacks)
    if "faults" in (config.getoption("markexpr", default="") or ""):
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


class FakeCuda:
    """A CUDA driver in the machine's own memory; see `fake_cuda.cpp`.

    Args:
        path: The library.
    """

    def __init__(self, path):
        """Loads it."""
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.fake_cuda_count.restype = ctypes.c_uint64

    def configure(self, total, devices=1, virtual_memory=True):
        """Says what the devices are; before they are used."""
        self._library.fake_cuda_configure(
            ctypes.c_uint64(total), devices, int(virtual_memory)
        )

    def fail(self, function, after=0, result=1, times=1):
        """Lets calls of a function fail, after so many that do not."""
        self._library.fake_cuda_fail(function.encode(), after, result, times)

    def capture(self, stream, on=True):
        """Begins or ends the capture of a stream."""
        self._library.fake_cuda_capture(ctypes.c_void_p(stream), int(on))

    def calls(self, function):
        """Returns how often a function was called."""
        return self._library.fake_cuda_calls(function.encode())

    def usable(self, at, size):
        """Returns whether a range is mapped, and its access set."""
        return bool(
            self._library.fake_cuda_usable(ctypes.c_uint64(at), ctypes.c_uint64(size))
        )

    @property
    def counts(self):
        """How many chunks, mappings and reservations there are."""
        return tuple(int(self._library.fake_cuda_count(i)) for i in range(3))


@pytest.fixture(scope="session")
def fake_cuda_file(tmp_path_factory):
    """Compiles the driver once."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    target = tmp_path_factory.mktemp("cuda") / "fake_cuda.so"
    names = ("checks/fake_cuda", "driver/host_driver", "driver/host_stream")
    files = [f"{CSRC}/{name}.cpp" for name in names]
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [compiler, *flags, *files, "-pthread", "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="session")
def strict(tmp_path_factory):
    """Returns the file of a driver whose memory processes can share."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    checks = CSRC / "checks"
    library = tmp_path_factory.mktemp("strict") / "libstrict_cuda.so"
    sources = [checks / "strict_cuda.cpp", *(checks / "strict").glob("*.cpp")]
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run(
        [*command, *map(str, sources), "-ldl", "-o", str(library)], check=True
    )
    return str(library)


@pytest.fixture
def fake_cuda(fake_cuda_file, tmp_path):
    """Returns a driver of the test's own: a copy is a library of its own."""
    return FakeCuda(shutil.copy(fake_cuda_file, tmp_path / "libcuda_of_test.so"))
