"""A host that reads device memory ends: no read goes unseen."""

import ctypes
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")
testing = pytest.importorskip("drivetrain_simulated_accelerator.testing")
Settings = pytest.importorskip("drivetrain_simulated_accelerator").Settings

pytestmark = pytest.mark.simulated_accelerator


def address_of_a_tensor():
    tensor = torch.ones(4, device="sim")
    torch.sim.synchronize()
    globals()["kept"] = tensor
    return tensor.data_ptr()


def read_by_ctypes():
    return ctypes.c_float.from_address(address_of_a_tensor()).value


def read_by_numpy():
    array = (ctypes.c_float * 4).from_address(address_of_a_tensor())
    return float(np.frombuffer(array, dtype=np.float32).sum())


def read_by_memmove():
    target = (ctypes.c_float * 4)()
    ctypes.memmove(target, address_of_a_tensor(), 16)
    return list(target)


def read_by_native_kernel():
    """A CPU tensor on the address, as native code makes it of a `data_ptr`."""
    array = (ctypes.c_float * 4).from_address(address_of_a_tensor())
    return torch.frombuffer(array, dtype=torch.float32).sum().item()


READS = [read_by_ctypes, read_by_numpy, read_by_memmove, read_by_native_kernel]


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
def test_host_that_reads_device_memory_ends(read):
    ended = testing.run_child(read)
    assert ended.exit_code == -signal.SIGSEGV
    assert ended.result is None


def test_readable_memory_can_be_read_to_debug():
    ended = testing.run_child(read_by_ctypes, settings=Settings(readable=True))
    assert (ended.result, ended.error) == (1.0, "")


def test_tensor_refuses_to_become_an_array():
    with pytest.raises(TypeError, match="can't convert sim:0"):
        torch.ones(2, device="sim").numpy()
