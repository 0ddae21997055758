"""The double of the CUDA driver that keeps the rules of its documentation, as a library."""

import ctypes
import shutil
import subprocess

from programs import CSRC, folder

from drivetrain_memory._native import NativeAllocator, cuda_driver

CHUNK = 2 * 2**20


def library():
    """The library's file; None without a compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    target = f"{folder().name}/libstrict_cuda.so"
    checks = CSRC / "checks"
    sources = [checks / "strict_cuda.cpp", *sorted((checks / "strict").glob("*.cpp"))]
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, *map(str, sources), "-ldl", "-o", target], check=True)
    return target


def use(path, chunks):
    """Makes it this process's driver, of a device with so many chunks."""
    strict = ctypes.CDLL(path)
    strict.strict_configure(2, ctypes.c_uint64(chunks * CHUNK))
    strict.strict_reserved.restype = ctypes.c_uint64
    return strict


def allocator(path):
    return NativeAllocator(cuda_driver(0, library=path), headroom=-1.0)
