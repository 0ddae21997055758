"""What PyTorch calls, and how this allocator becomes PyTorch's."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch_stage import run

import drivetrain_memory
from drivetrain_memory import DeviceError
from drivetrain_memory._native import library_path

CSRC = Path(__file__).parents[1] / "csrc"
TORCH = Path(torch.__file__).parent


@pytest.mark.slow
def test_hooks_do_what_pytorch_expects(fake_cuda, tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "check_hooks"
    source = CSRC / "checks" / "check_hooks.cpp"
    command = [compiler, "-std=c++20", f"-I{TORCH}/include", str(source)]
    command += [f"-L{TORCH}/lib", "-lc10", "-ldl", f"-Wl,-rpath,{TORCH}/lib"]
    if (TORCH / "lib" / "libc10_cuda.so").exists():
        # As in a process that uses CUDA: some versions have the error's type there alone.
        command += ["-Wl,--no-as-needed", "-lc10_cuda"]
    subprocess.run([*command, "-o", str(program)], check=True)
    arguments = [str(program), str(library_path()), fake_cuda.path]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    # What may not throw is said.
    assert done.stderr.count("drivetrain-memory: free: no live block") == 2


def test_pytorch_without_cuda_is_refused():
    if hasattr(torch._C, "_cuda_customAllocator"):
        pytest.skip("this PyTorch has CUDA")
    with pytest.raises(DeviceError, match="was built without CUDA"):
        drivetrain_memory.enable()
    with (
        pytest.raises(DeviceError, match="was built without CUDA"),
        drivetrain_memory.pool(),
    ):
        pass
    assert not drivetrain_memory.is_enabled()


@pytest.mark.slow
def test_enable_sets_every_hook_and_answers_for_pytorch(fake_cuda):
    out = run(
        fake_cuda,
        """
        drivetrain_memory.enable(cuda_library=CUDA)
        (inner,) = current
        assert len(inner.hooks) == 7 and all(inner.hooks.values())
        assert drivetrain_memory.is_enabled()
        assert torch.cuda.memory_allocated() == 0
        drivetrain_memory.keep_history(100)
        block = inner.allocate(3 << 20, 0, None)
        assert torch.cuda.memory_allocated() == 3 << 20
        assert torch.cuda.memory_reserved(0) == 4 << 20
        assert torch.cuda.max_memory_allocated("cuda:0") == 3 << 20
        inner.free(block, 3 << 20, 0, None)
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 3 << 20
        counts = torch.cuda.memory_stats()
        assert counts["allocation.all.allocated"] == counts["allocation.all.freed"] == 1
        assert counts["allocation.all.current"] == 0
        # What is not counted has no name.
        assert not {"active.all.peak", "allocation.small_pool.current"} & counts.keys()
        torch.cuda.reset_accumulated_memory_stats()
        counts = torch.cuda.memory_stats_as_nested_dict()
        assert counts["allocation"]["all"] == {"current": 0, "allocated": 0, "freed": 0}
        assert counts["num_device_alloc"] == 0
        assert torch.cuda.max_memory_allocated() == 3 << 20
        accelerator = torch.accelerator
        assert accelerator.max_memory_allocated() == 3 << 20
        assert accelerator.memory_reserved(0) == 4 << 20
        assert accelerator.memory_stats("cuda:0")["reserved_bytes.all.peak"] == 4 << 20
        accelerator.reset_peak_memory_stats()
        assert accelerator.max_memory_allocated() == accelerator.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 0
        assert "allocated" in torch.cuda.memory_summary(0).lower()
        print(drivetrain_memory.stats())
        held = drivetrain_memory.snapshot()
        actions = [entry["action"] for entry in held["device_traces"][0]]
        assert actions == ["alloc", "free_requested", "free_completed"], actions
        (segment,) = held["segments"]
        assert segment["total_size"] == 4 << 20
        path = tempfile.mkdtemp() + "/snapshot.pickle"
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            assert file.read(2) == b"\\x80\\x04"  # what its viewer reads
        """,
    )
    assert "live_bytes=0" in out
    assert "allocations=1" in out


@pytest.mark.slow
def test_stream_is_recorded_for_what_begins_inside_a_block(fake_cuda):
    run(
        fake_cuda,
        """
        drivetrain_memory.enable(cuda_library=CUDA)
        (inner,) = current
        record_stream = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            inner.hooks["set_record_stream_fn"]
        )
        block = inner.allocate(4 << 20, 0, None)
        record_stream(block + 2400, 5)  # as DLPack of a slice has it
        inner.free(block, 4 << 20, 0, None)
        assert drivetrain_memory.stats(0).live_bytes == 0
        assert drivetrain_memory.stats(0).active_bytes == 4 << 20  # until stream 5 is done
        record_stream(block + 2400, 5)  # a block that is gone: somebody else's
        """,
    )


@pytest.mark.slow
def test_what_is_too_late_or_needs_another_allocator_is_refused(fake_cuda):
    run(
        fake_cuda,
        """
        enable = lambda: drivetrain_memory.enable(cuda_library=CUDA)
        torch.backends.cudnn.benchmark = True
        refused(MemoryUseError, "cudnn.benchmark", enable)
        torch.backends.cudnn.benchmark = False
        torch.cuda.is_initialized = lambda: True
        refused(MemoryUseError, "in use already", enable)
        torch.cuda.is_initialized = lambda: False
        refused(
            DeviceError,
            "no CUDA driver here",
            lambda: drivetrain_memory.enable(cuda_library="libnowhere.so"),
        )
        refused(MemoryUseError, "nothing was allocated", drivetrain_memory.stats)
        for value in (-1, 0, 1000, "16GB", True, 2**70, 1.5e9):
            refused(
                MemoryUseError,
                "capacity_bytes is a whole number of at least 2097152",
                lambda: drivetrain_memory.enable(capacity_bytes=value, cuda_library=CUDA),
            )
        assert not drivetrain_memory.is_enabled()
        enable()
        refused(MemoryUseError, "called before", enable)
        refused(MemoryUseError, "already", drivetrain_memory.pool().__enter__)
        """,
    )


@pytest.mark.slow
def test_pytorch_that_cannot_tell_of_streams_is_refused(fake_cuda):
    run(
        fake_cuda,
        """
        del Inner.set_record_stream_fn
        try:
            drivetrain_memory.enable(cuda_library=CUDA)
        except DeviceError as error:
            assert "corrupt" in str(error)
        else:
            raise AssertionError
        assert current == []
        """,
    )
