"""Tensors of this allocator in the queues of `torch.multiprocessing`."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from torch_stage import run_enabled

# A tensor of the double's memory, as PyTorch describes one of a GPU to other processes:
# a PyTorch without CUDA has none.
SENDER = """
import gc, multiprocessing, os, sys
sys.path.insert(0, TESTS)
import share_reader
from torch.multiprocessing import reductions

share_reader.use_strict(CUDA)
waits = []
torch.cuda.synchronize = waits.append

class Storage:
    device = torch.device("cuda", 0)

    def __init__(self, size):
        self.size = size
        self.at = inner.allocate(size, 0, None) if size else 0

    def nbytes(self):
        return self.size

    def data_ptr(self):
        return self.at

class Tensor:
    is_cuda = True

    def __init__(self, values, kind=torch.Tensor, requires_grad=False):
        self.kind, self.requires_grad = kind, requires_grad
        self.shape = (len(values),)
        self.storage = Storage(4 * len(values))
        held = (ctypes.c_float * len(values))(*values)
        ctypes.memmove(self.storage.at, held, 4 * len(values))

    def values(self):
        return list((ctypes.c_float * self.shape[0]).from_address(self.storage.at))

def described(tensor):
    how = torch.UntypedStorage._share_cuda_(tensor.storage)
    device, place, size, offset, *rest = how
    return reductions.rebuild_cuda_tensor, (
        tensor.kind, tensor.shape, (1,), 0, torch.storage.TypedStorage, torch.float32,
        device, place, size, offset, tensor.requires_grad, *rest)

# `reduced` asks PyTorch, which has no tensor of a GPU here.
own, reductions.reduce_tensor = reductions.reduce_tensor, described
pickler = multiprocessing.reduction.ForkingPickler
pickler.register(Tensor, pickler._extra_reducers[torch.Tensor])

def active():
    drivetrain_memory._stats.inspector(0)
    return torch.cuda.memory_stats()["active_bytes.all.current"]

def started():
    here, there = multiprocessing.get_context("spawn").Pipe()
    arguments = (CUDA, there)
    process = multiprocessing.get_context("spawn").Process(
        target=share_reader.use_tensors, args=arguments)
    process.start()
    there.close()
    return process, pickling(here)

class pickling:
    def __init__(self, connection):
        self.connection = connection

    def send(self, message):
        self.connection.send_bytes(pickler.dumps(message))

    def recv(self):
        assert self.connection.poll(60)
        return self.connection.recv()
"""


@pytest.fixture
def run(strict):
    def run(script):
        stage = f"TESTS = {str(Path(__file__).parent)!r}\n{SENDER}"
        return run_enabled(SimpleNamespace(path=strict), stage + script)

    return run


@pytest.mark.slow
def test_other_process_has_the_tensor_itself(run):
    run(
        """
process, other = started()
first = Tensor([1.0, 2.0, 3.0])
other.send(first)
place, kind, values = other.recv()
assert (kind, values) == ("Tensor", [1.0, 2.0, 3.0])
assert other.recv() is False
assert waits == [0]
assert first.values() == [2.0, 4.0, 6.0]

# Sent again, it is the same storage there, and its message counts.
other.send(first)
assert other.recv() == (place, "Tensor", [2.0, 4.0, 6.0])
other.recv()
weight = Tensor([5.0], torch.nn.Parameter, requires_grad=True)
other.send(weight)
assert other.recv()[1:] == ("Parameter", [5.0])
assert other.recv() is True

# What is freed here has no next tenant while it is used there.
before = active()
inner.free(first.storage.at, 0, 0, None)
torch.cuda.empty_cache()
assert active() == before
other.send("drop")
other.recv()
torch.cuda.empty_cache()
assert active() < before
other.send("end")
process.join(60)
assert process.exitcode == 0
"""
    )


@pytest.mark.slow
def test_tensor_without_elements_is_sent(run):
    run(
        """
device, place, size, *_ = torch.UntypedStorage._share_cuda_(Storage(0))
assert (device, place, size) == (0, None, 0)
"""
    )


@pytest.mark.slow
def test_what_came_from_another_process_is_not_sent_on(run):
    run(
        """
foreign = Storage(0)
foreign.size, foreign.at = 4, 4096
inner.allocate(4, 0, None)
refused(MemoryUseError, "clone()", torch.UntypedStorage._share_cuda_, foreign)
"""
    )


@pytest.mark.slow
def test_tensors_of_the_cpu_are_sent_as_before(run):
    run(
        """
reductions.reduce_tensor = own
function, arguments = pickler._extra_reducers[torch.Tensor](torch.ones(3))
assert function is reductions.rebuild_tensor
"""
    )


@pytest.mark.slow
def test_gpu_that_has_another_number_here_is_refused(run):
    run(
        """
from drivetrain_memory import _share

_share._take_tensors()
torch.cuda._lazy_init = lambda: None
there = share_reader.of_host
tensor = Tensor([1.0, 2.0])
arguments = torch.UntypedStorage._share_cuda_(tensor.storage)
# What lies on another GPU is copied to the one that is asked for.
torch.as_tensor = lambda opened, device: there(opened, device).clone()
refused(MemoryUseError, "CUDA_VISIBLE_DEVICES",
        torch.UntypedStorage._new_shared_cuda, *arguments)

# Whom it was sent to has it no longer.
torch.as_tensor = there
inner.free(tensor.storage.at, 0, 0, None)
gc.collect()
torch.cuda.empty_cache()
assert active() == 0
"""
    )
