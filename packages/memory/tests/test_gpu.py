"""The allocator as PyTorch's on a GPU; each in a process of its own."""

import subprocess
import sys
import textwrap

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
