"""PyTorch's side of the pluggable allocator, for a PyTorch that was built without CUDA."""

import os
import subprocess
import sys
import textwrap

STAGE = """
import ctypes, os, tempfile
import torch
import drivetrain_memory
from drivetrain_memory import DeviceError, MemoryUseError

CUDA = os.environ["FAKE_CUDA"]

class Inner:
    def __init__(self, allocate, free):
        self.allocate = ctypes.CFUNCTYPE(
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        )(allocate)
        self.free = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        )(free)
        self.hooks = {}

    def hook(self, setter, *kinds):
        return ctypes.CFUNCTYPE(None, *kinds)(self.hooks[setter])

for setter in ("set_record_stream_fn", "set_reset_fn", "set_memory_fraction_fn",
               "set_base_alloc_fn", "set_begin_allocate_to_pool",
               "set_end_allocate_to_pool_fn", "set_release_pool"):
    def keep(self, address, setter=setter):
        self.hooks[setter] = address
    setattr(Inner, setter, keep)

current = []

def change(allocator):
    if current:
        raise RuntimeError("Can't swap an already initialized allocator")
    current.append(allocator)

torch._C._cuda_customAllocator = Inner
torch._C._cuda_changeCurrentAllocator = change
torch.cuda.current_device = torch._utils._get_current_device_index = lambda: 0
torch.cuda.device_count = lambda: 2

def refused(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
"""

# What PyTorch's functions call in its library, as its pluggable allocator answers it.
ENABLED = """
drivetrain_memory.enable(cuda_library=CUDA)
(inner,) = current
for module in (torch.cuda, torch.cuda.memory):
    module._lazy_init = lambda: None
    module.is_initialized = lambda: True
torch.cuda.current_stream = lambda device: 0
torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = lambda index: 0
C = torch._C
C._cuda_emptyCache = inner.hook("set_reset_fn")
C._cuda_setMemoryFraction = inner.hook(
    "set_memory_fraction_fn", ctypes.c_double, ctypes.c_int
)
C._cuda_cudaCachingAllocator_raw_alloc = (
    lambda size, stream: inner.allocate(size, 0, stream)
)
C._cuda_cudaCachingAllocator_raw_delete = lambda at: inner.free(at, 0, 0, None)
C._cuda_cudaCachingAllocator_enable = lambda value: None
C._cuda_cudaCachingAllocator_is_enabled = lambda: True
pool_calls, pool_ids = [], iter(range(1, 100))
torch.cuda.graphs._graph_pool_handle = lambda: (0, next(pool_ids))
for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
    def called(device, pool, name=name):
        pool_calls.append((name[:3], device, pool))
    setattr(C, "_cuda_" + name, called)
"""


def run(fake_cuda, script):
    """Runs a script in a process of its own, after the stage is set."""
    environment = os.environ | {"FAKE_CUDA": fake_cuda.path}
    done = subprocess.run(
        [sys.executable, "-c", STAGE + textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_enabled(fake_cuda, script):
    """Runs a script in which the allocator is PyTorch's."""
    return run(fake_cuda, ENABLED + textwrap.dedent(script))
