"""The allocator as PyTorch's on a GPU; each in a process of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


PRELUDE = "import torch, drivetrain_memory\ndrivetrain_memory.enable(headroom=0.0)\n"


def run(script, prelude=PRELUDE):
    command = [sys.executable, "-c", prelude + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_scattered_memory_is_joined_and_keeps_its_contents():
    run(
        """
        size = 4 << 20
        blocks = [
            torch.full((size,), i % 250, dtype=torch.uint8, device="cuda")
            for i in range(64)
        ]
        reserved = drivetrain_memory.stats().reserved_bytes
        for i in (0, 1, 4, 5, 8, 9, 12, 13):
            blocks[i] = None
        joined = torch.full((8 * size,), 251, dtype=torch.uint8, device="cuda")
        assert bool((joined == 251).all())
        for i, block in enumerate(blocks):
            assert block is None or bool((block == i % 250).all()), i
        stats = drivetrain_memory.stats()
        assert stats.reserved_bytes <= reserved + (64 << 20)
        """
    )


LOSSES = """
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(
    *(torch.nn.Linear(1024, 1024, device="cuda") for _ in range(4))
)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    kept = [torch.empty((1 << 20) + i, device="cuda") for i in range(step + 1)]
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
assert torch.cuda.memory_allocated() > 0
assert "allocated" in torch.cuda.memory_summary().lower()
torch.cuda.empty_cache()
"""


def test_losses_are_those_of_pytorchs_allocator(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    plain = run(LOSSES, prelude="import torch\n")
    assert len(plain.split()) == 5
    assert run(LOSSES) == plain


def test_out_of_memory_is_pytorchs_error_and_nothing_is_lost():
    run(
        """
        kept = torch.ones(1 << 20, device="cuda")
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            assert "CUDA out of memory. Tried to allocate" in str(error)
        else:
            raise AssertionError
        assert float(kept.sum()) == 1 << 20
        """
    )


def test_memory_of_another_stream_is_not_reused_too_early():
    run(
        """
        side = torch.cuda.Stream()
        for value in range(50):
            block = torch.full((1 << 26,), value % 250, dtype=torch.uint8, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                copy = block.clone()
                block.record_stream(side)
            del block
            torch.full((1 << 26,), 255, dtype=torch.uint8, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            assert bool((copy == value % 250).all())
            copy.record_stream(torch.cuda.current_stream())
        """
    )


def test_memory_of_a_graph_is_private():
    run(
        """
        x = torch.ones(1 << 22, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (x * 2).sum()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x * 2 + 1) * 3
        for value in range(1, 20):
            x.fill_(value)
            others = [torch.full((1 << 22,), -1.0, device="cuda") for _ in range(4)]
            graph.replay()
            assert bool((y == (2 * value + 1) * 3).all())
            assert all(bool((other == -1).all()) for other in others)
        """
    )


def test_segments_of_a_pool_come_from_here():
    script = """
        import torch, drivetrain_memory
        with drivetrain_memory.pool():
            inside = torch.ones(1 << 24, device="cuda")
        assert drivetrain_memory.stats().live_bytes >= 4 << 24
        assert float(inside.sum()) == 1 << 24
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_functions_that_ask_no_allocator_answer_on_a_gpu():
    run(
        """
        pinned = torch.ones(1 << 10, pin_memory=True)
        kept = pinned.to("cuda")
        assert torch.cuda.host_memory_stats()["active_bytes.current"] > 0
        assert "active_bytes" in torch.cuda.host_memory_stats_as_nested_dict()
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        if hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()
        free, total = torch.cuda.mem_get_info()
        assert 0 < free < total == torch.accelerator.get_memory_info()[1]
        assert isinstance(torch.cuda.list_gpu_processes(), str)
        assert torch.cuda.get_allocator_backend() == "pluggable"
        torch.cuda.ipc_collect()
        try:
            import pynvml
        except ModuleNotFoundError:
            pass
        else:
            assert torch.cuda.device_memory_used() > 0
            assert 0 <= torch.cuda.memory_usage() <= 100
        """
    )


def test_functions_that_ask_an_allocator_ask_this_one_on_a_gpu():
    run(
        """
        block = torch.ones(1 << 22, device="cuda")
        for module in (torch.cuda, torch.accelerator):
            assert module.memory_allocated() == 1 << 24
            assert module.memory_stats(0)["allocation.all.current"] == 1
        del block
        torch.accelerator.empty_cache()
        assert torch.cuda.memory_reserved("cuda:0") == 0
        at = torch.cuda.caching_allocator_alloc(1 << 24)
        assert torch.accelerator.memory_allocated() == 1 << 24
        torch.cuda.caching_allocator_delete(at)
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
        torch.cuda.set_per_process_memory_fraction(0.001)
        assert torch.cuda.get_per_process_memory_fraction(0) == 0.001
        try:
            torch.empty(torch.cuda.mem_get_info()[1] // 500, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            raise AssertionError
        try:
            torch.cuda.memory_allocated(torch.cuda.device_count())
        except drivetrain_memory.MemoryUseError:
            pass
        else:
            raise AssertionError
        """
    )


REFUSED = """
def refused(text, call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

x = torch.ones(1 << 12, device="cuda")
"""


def test_tensor_is_shared_with_another_process():
    run(
        """
        import sys
        import torch.multiprocessing as mp

        sys.path.insert(0, TESTS)
        import share_reader

        spawn = mp.get_context("spawn")
        here, there = spawn.SimpleQueue(), spawn.SimpleQueue()
        process = spawn.Process(target=share_reader.double_tensors, args=(here, there))
        process.start()
        for size in (7, 1 << 20, (1 << 22) + 5):
            values = torch.arange(size, dtype=torch.float32, device="cuda")
            here.put(values)
            assert there.get() == "doubled"
            assert torch.equal(values, 2 * torch.arange(size, device="cuda"))
            del values
        # What it has is nobody else's; when it has ended, all of it comes back.
        used = torch.cuda.memory_stats()["active_bytes.all.current"]
        assert used > 4 << 22
        here.put(None)
        process.join(60)
        assert process.exitcode == 0
        torch.cuda.empty_cache()
        assert torch.cuda.memory_stats()["active_bytes.all.current"] < used - (4 << 22)
        """,
        PRELUDE + f"TESTS = {str(Path(__file__).parent)!r}\n",
    )


def test_memory_sleeps_and_graphs_hold_after_it():
    run(
        """
        with drivetrain_memory.tag("weights"):
            weights = torch.randn(1 << 24, device="cuda")
        kept = weights.cpu()
        with drivetrain_memory.tag("cache"):
            cache = torch.ones(1 << 24, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (weights * 2).sum()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = (weights * 2).sum()
        graph.replay()
        expected = total.item()
        place = weights.data_ptr()
        for _ in range(20):
            free = torch.cuda.mem_get_info()[0]
            assert drivetrain_memory.sleep("weights") == 4 << 24
            assert drivetrain_memory.sleep("cache", keep=False) == 4 << 24
            assert torch.cuda.mem_get_info()[0] >= free + 0.95 * (8 << 24)
            other = torch.full((1 << 25,), -1.0, device="cuda")
            del other
            torch.cuda.empty_cache()
            drivetrain_memory.wake("cache")
            drivetrain_memory.wake("weights")
            assert weights.data_ptr() == place
            assert torch.equal(weights.cpu(), kept)
            total.zero_()
            graph.replay()
            assert total.item() == expected
        """
    )


def test_pool_has_memory_of_its_own():
    run(
        """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = torch.ones(1 << 22, device="cuda")
        segments = pool.snapshot()
        assert sum(segment["allocated_size"] for segment in segments) == 4 << 22
        place = inside.data_ptr()
        del inside
        outside = torch.ones(1 << 22, device="cuda")
        assert outside.data_ptr() != place
        with torch.cuda.use_mem_pool(pool):
            again = torch.ones(1 << 22, device="cuda")
        assert again.data_ptr() == place
        assert float(again.sum()) == 1 << 22
        """
    )


def test_observer_of_out_of_memory_is_refused():
    run(
        """
        refused("does not yet support attachOutOfMemoryObserver",
                torch._C._cuda_attach_out_of_memory_observer, print)
        """,
        PRELUDE + REFUSED,
    )


def test_trees_of_graphs_are_refused():
    pytest.importorskip("triton")
    run(
        """
        compiled = torch.compile(lambda x: (x * 2 + 1).sum(), mode="reduce-overhead")
        refused("does not yet support", lambda: [compiled(x) for _ in range(5)])
        plain = torch.compile(lambda x: (x * 2 + 1).sum(), mode="default")
        assert float(plain(x)) == 3 << 12
        """,
        PRELUDE + REFUSED,
    )


def test_traceback_and_metadata_of_a_block_are_empty():
    run(
        """
        import warnings

        memory = torch.cuda.memory
        memory._record_memory_history()
        block = torch.ones(1 << 12, device="cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            memory._set_memory_metadata("text")
        assert memory._get_memory_metadata() == ""
        if hasattr(memory, "_allocation_traceback"):
            assert memory._allocation_traceback(block.data_ptr()) is None
        """
    )


def test_profiler_sees_no_memory_of_the_device():
    run(
        """
        with torch.profiler.profile(profile_memory=True) as profile:
            torch.ones(1 << 22, device="cuda").sum().item()
        events = profile.key_averages()
        assert len(events) > 0
        assert not any(event.self_device_memory_usage for event in events)
        """
    )
