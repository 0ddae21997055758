"""Processes that have what another shares."""

import ctypes
import random

from drivetrain_memory import DeviceError, MemoryUseError
from drivetrain_memory._native import cuda_driver, extension


def contents(seed, size):
    """Returns the same bytes in each process."""
    return random.Random(seed).randbytes(size)


def use_strict(library):
    """Makes the double of the driver this process's, with room for 128 MiB."""
    ctypes.CDLL(library).strict_configure(2, ctypes.c_uint64(2**27))


def open_shared(library, pid, place, size):
    """Returns what another process shares, and where it lies in this one."""
    driver = cuda_driver(0, library=library)
    opened = extension().OpenedStorage(driver, pid, *place, size)
    return opened, opened.__cuda_array_interface__["data"][0]


def read_shared(library, pid, place, size, connection):
    """Reads what another process shares, writes into it, and lets it go."""
    use_strict(library)
    try:
        opened, at = open_shared(library, pid, place, size)
    except (DeviceError, MemoryUseError) as error:
        connection.send(str(error))
        return
    connection.send(ctypes.string_at(at, size) == contents(1, size))
    ctypes.memmove(at, contents(2, size), size)
    connection.send("written")
    connection.recv()
    connection.send(ctypes.string_at(at, size) == contents(3, size))
    del opened
    connection.send("closed")
    connection.recv()


def hold_shared(library, pid, place, size, connection):
    """Has what another process shares until it is told to end, or is killed."""
    use_strict(library)
    _opened, at = open_shared(library, pid, place, size)
    connection.send(ctypes.string_at(at, size) == contents(1, size))
    connection.recv()


def use_tensors(library, connection):
    """Takes tensors from a pipe as PyTorch does, and answers what they hold."""
    import torch

    use_strict(library)
    # What PyTorch was built with; the double's memory is the host's.
    torch.cuda._lazy_init = lambda: None
    torch.as_tensor = of_host
    kept = []
    while (message := connection.recv()) != "end":
        if message == "drop":
            kept.clear()
            connection.send(None)
            continue
        kept.append(message)
        place = message.untyped_storage().data_ptr()
        connection.send((place, type(message).__name__, message.tolist()))
        message.detach().mul_(2)
        connection.send(message.requires_grad)
        del message


def of_host(opened, device):
    """Returns the bytes that lie on the double, as a tensor that keeps them."""
    import torch

    described = opened.__cuda_array_interface__
    (size,), (at, _) = described["shape"], described["data"]
    memory = (ctypes.c_uint8 * size).from_address(at)
    memory.kept = opened
    assert device == torch.device("cuda", 0)
    return torch.frombuffer(memory, dtype=torch.uint8)


def double_tensors(tensors, answers):
    """Doubles what comes by a queue, on a GPU, and keeps it."""
    import torch

    kept = []
    while (tensor := tensors.get()) is not None:
        kept.append(tensor.mul_(2))
        torch.cuda.synchronize()
        answers.put("doubled")
