"""A process that reads what another shares."""

import ctypes
import random

from drivetrain_memory import DeviceError, MemoryUseError
from drivetrain_memory._native import cuda_driver, extension


def contents(seed, size):
    """Returns the same bytes in each process."""
    return random.Random(seed).randbytes(size)


def read_shared(library, pid, shared, size, connection):
    """Reads what another process shares, writes into it, and lets it go."""
    ctypes.CDLL(library).strict_configure(2, ctypes.c_uint64(2**27))
    files, offset = shared
    try:
        memory = extension().SharedMemory(cuda_driver(0, library=library), pid, files)
    except (DeviceError, MemoryUseError) as error:
        connection.send(str(error))
        return
    connection.send(ctypes.string_at(memory.at + offset, size) == contents(1, size))
    ctypes.memmove(memory.at + offset, contents(2, size), size)
    connection.send("written")
    connection.recv()
    connection.send(ctypes.string_at(memory.at + offset, size) == contents(3, size))
    del memory
    connection.send("closed")
